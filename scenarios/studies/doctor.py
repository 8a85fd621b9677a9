"""This machine as runs see it: cores, memory, GPUs, versions and data sets; and, by calibration, its training speed.

`examine` changes nothing. `calibrate` measures training in another process, since torch stays out of this one, and
writes one file: this machine as a device that a scenario's fleet can name.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median
from typing import IO

import psutil
from msgspec import Struct, json, to_builtins
from msgspec.structs import asdict
from rich.console import Console

from coordinator.workers.launcher import environment, how_ended, quote
from coordinator.workers.sockets import MAX_SOCKET_PATH_NBYTES
from coordinator.workers.task import PoolError
from costmodel.fleet.codec_costs import SIZES, reference_rates
from costmodel.fleet.devices import Device, MeasuredStep, devices, in_ratio
from costmodel.fleet.model_demand import Operations, speed
from costmodel.units import format_bytes
from edge.data.locate import ENVIRONMENT, find_data
from edge.data.registry import DATASETS
from edge.protocol import interpreter
from edge.protocol.files import write_text
from edge.runtime import numerics
from scenarios.config.cache import cache_folder
from scenarios.config.load import ScenarioError
from scenarios.config.toml_writer import toml_text
from scenarios.report import calibration, terminal
from scenarios.run.host import PACKAGES, default_workers

SOCKET_NAME_NBYTES = len("/fedbr-abcdefgh.scratch/pool")
THIS_HOST = "this-host"
LIKE = "laptop-cpu"
"""The shipped device whose figures are taken where nothing can be measured."""
ASSUMED_CLOCK_HZ = 2.5e9
NOTICE = "measuring training steps of reference networks and shipped models, and codecs, on one core; some two minutes"
QUICK_NOTICE = "measuring a few training steps of two networks, and codecs, on one core"
BAR = 0.1
"""Largest relative error of a predicted step that counts as right."""


class Cache(Struct, frozen=True):
    folder: str
    bytes: int


class OpenFiles(Struct, frozen=True):
    """Limits on a process."""

    soft: int
    hard: int


class SocketFolder(Struct, frozen=True):
    folder: str
    problem: str | None
    """Why its sockets cannot be used"""


class MachineFacts(Struct, frozen=True):
    """The output of ``check --json`` without a scenario."""

    cores: int
    memory_bytes: int
    memory_available_bytes: int
    gpus: list[str]
    platform: str
    versions: dict[str, str | None]
    """Package -> its version; None: not installed"""
    data: dict[str, str | None]
    """Data set -> where it is"""
    data_folder: str | None
    cache: Cache
    free_disk_bytes: int
    open_files: OpenFiles
    sockets: SocketFolder


def examine() -> MachineFacts:
    """The facts of this machine."""
    memory, cache = psutil.virtual_memory(), cache_folder()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("fedbr-edge", *PACKAGES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    place = Path(tempfile.gettempdir())
    return MachineFacts(
        cores=default_workers(),
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        gpus=numerics.gpus() or sorted(map(str, Path("/dev").glob("nvidia[0-9]*"))),
        platform=platform.platform(),
        versions=versions,
        data={name: find_data(name, None, cache) for name in DATASETS},
        data_folder=os.environ.get(ENVIRONMENT),
        cache=Cache(str(cache), folder_nbytes(cache)),
        free_disk_bytes=shutil.disk_usage(Path.cwd()).free,
        open_files=OpenFiles(soft, hard),
        sockets=SocketFolder(str(place), socket_problem(place)),
    )


def folder_nbytes(folder: Path) -> int:
    """Bytes of all files below a folder; 0 if there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def socket_problem(folder: Path) -> str | None:
    """The reason why sockets in this folder cannot be used; None if they can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return "not writable"
    if len(os.fsencode(folder)) + SOCKET_NAME_NBYTES > MAX_SOCKET_PATH_NBYTES:
        return "its path is too long for a socket; set TMPDIR to a shorter folder"
    return None


def show(facts: MachineFacts, stream: IO[str] | None = None) -> None:
    terminal.print_facts(rows(facts), stream)


def rows(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    yield "cores", str(facts.cores)
    yield "memory", f"{format_bytes(facts.memory_bytes)}, {format_bytes(facts.memory_available_bytes)} available"
    yield "GPUs", ", ".join(facts.gpus) or "none"
    yield "platform", facts.platform
    for name, number in facts.versions.items():
        yield f"  {name}", number or "not installed"
    yield "data folder", facts.data_folder or f"${ENVIRONMENT} is not set"
    for name, place in facts.data.items():
        yield f"  {name}", place or "not found"
    yield "cache", f"{facts.cache.folder}, {format_bytes(facts.cache.bytes)}"
    yield "free disk here", format_bytes(facts.free_disk_bytes)
    yield "open files", f"{facts.open_files.soft} (at most {facts.open_files.hard})"
    yield "sockets", f"{facts.sockets.folder}: {facts.sockets.problem or 'writable'}"


# --- calibration ------------------------------------------------------------------------------------------------------


class MeasuredSteps(Struct, frozen=True):
    """Steps of one network at one batch size, as `edge.profile.fit.Measurement`."""

    model: str
    width: int | None
    fitted: bool
    family: str
    batch: int
    flops: float
    seconds: float
    spread: float
    operations: dict[str, tuple[float, float]]
    """Kind -> how many, per example and per step"""


class Prediction(MeasuredSteps, frozen=True):
    """A measurement beside the step of a device as runs take it."""

    predicted_seconds: float
    relative_error: float


Codecs = dict[str, dict[str, list[float]]]
"""Kind of codec -> encode or decode -> bytes per second, by size"""


class Measured(Struct, frozen=True):
    """The output of `edge.profile.calibrate`."""

    step_seconds: float
    operations_per_second: dict[str, float]
    flops_per_second: dict[str, float]
    codecs: Codecs
    memory_bytes_per_second: float
    torch: str
    """Its version"""
    measurements: list[MeasuredSteps]


class CalibratedRow(Struct, frozen=True):
    """The fields of `costmodel.fleet.devices.Device` but its name."""

    flops_per_second: dict[str, float]
    operations_per_second: dict[str, float]
    step_seconds: float
    modes: list[float]
    memory_bytes: int
    train_watts: float
    idle_watts: float
    clock_hz: float
    codec_slowdown: float
    codecs: Codecs
    memory_bytes_per_second: float
    source: str
    year: int
    assumed: list[str]


class PredictionErrors(Struct, frozen=True):
    """How far predictions are from measurements. None for no measurement."""

    count: int
    within_bar: int
    """Errors within `BAR`"""
    median: float | None
    """Of absolute relative errors, as the next one"""
    worst: float | None
    spread: float | None
    """Median over measurements, of their passes"""


class Calibration(Struct, frozen=True):
    """The output of ``check --calibrate --json``."""

    device: str
    file: str
    step_seconds: float
    flops_per_second: dict[str, float]
    operations_per_second: dict[str, float]
    codec_slowdown: float
    codecs: Codecs
    memory_bytes_per_second: float
    """Read and written in an optimizer's step"""
    measurements: list[Prediction]
    fitted: PredictionErrors
    not_fitted: PredictionErrors


def calibrate(
    name: str = THIS_HOST, quick: bool = False, quiet: bool = False, passes: int | None = None
) -> Calibration:
    """Measure training steps of reference networks, and codecs, on this machine, write the device that results, and
    check it.

    The check predicts steps of shipped models that were measured but not fitted. It takes about two minutes of a core,
    which is announced on stderr unless ``quiet``; ``quick`` measures little. ``passes``: repetitions, of which the
    least time counts. Signals require the main thread. ScenarioError for a name that no device can have, for less than
    one pass, or if the file cannot be written; PoolError if the measuring process fails.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise ScenarioError(f"--name {name!r}: must be at most 64 letters, digits, - and _")
    if name in devices():
        raise ScenarioError(f"--name {name}: a shipped device has that name; choose another")
    if passes is not None and passes < 1:
        raise ScenarioError(f"--passes {passes}: must be at least 1")
    path = cache_folder() / "devices" / f"{name}.toml"
    if not quiet:
        print(f"fedbr: {QUICK_NOTICE if quick else NOTICE}", file=sys.stderr, flush=True)
    # SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the measuring process is ended too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measured = json.decode(_measure(quick, passes), type=Measured)
    finally:
        signal.signal(signal.SIGTERM, before)
    row = profile(measured, devices()[LIKE])
    measurements = predicted(Device(name=name, **asdict(row)), measured.measurements)
    result = Calibration(
        device=name,
        file=str(path),
        step_seconds=row.step_seconds,
        flops_per_second=row.flops_per_second,
        operations_per_second=row.operations_per_second,
        codec_slowdown=row.codec_slowdown,
        codecs=row.codecs,
        memory_bytes_per_second=row.memory_bytes_per_second,
        measurements=measurements,
        fitted=errors([one for one in measurements if one.fitted]),
        not_fitted=errors([one for one in measurements if not one.fitted]),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, device_text(name, row, map(step, measurements)))
    except OSError as error:
        raise ScenarioError(f"cannot write {path}: {error.strerror}") from None
    return result


HEAD = """
# Training steps as they were measured, and as the row above predicts them: step_seconds, and operations by
# operations_per_second. The row was fitted to reference networks; shipped models show how far it holds.
"""


def device_text(name: str, row: CalibratedRow, steps: Iterable[MeasuredStep]) -> str:
    """The file of a device: its row, and the steps that were measured as an array of tables."""
    tables = [{key: value for key, value in vars(step).items() if value is not None} for step in steps]
    return (
        toml_text({name: to_builtins(row)})
        + HEAD
        + "".join(f"\n[[{name}.measurements]]\n{toml_text(table)}" for table in tables)
    )


def step(one: Prediction) -> MeasuredStep:
    """A prediction as the file of a device has it."""
    times = one.seconds, one.predicted_seconds
    return MeasuredStep(one.model, one.fitted, one.batch, one.flops, *times, one.width)


def predicted(device: Device, measurements: Sequence[MeasuredSteps]) -> list[Prediction]:
    """Each measurement beside a step on this device."""
    rows = []
    for one in measurements:
        per_example, per_step = ({kind: pair[of] for kind, pair in one.operations.items()} for of in (0, 1))
        operations = Operations(one.flops, per_example, per_step)
        throughput, overhead = speed(device, (one.model, one.family), operations)
        seconds = overhead + one.batch * one.flops / throughput
        rows.append(Prediction(**asdict(one), predicted_seconds=seconds, relative_error=seconds / one.seconds - 1))
    return rows


def errors(predictions: Sequence[Prediction]) -> PredictionErrors:
    """The errors of these predictions."""
    off = sorted(abs(one.relative_error) for one in predictions)
    spread = [one.spread for one in predictions]
    return PredictionErrors(
        count=len(off),
        within_bar=sum(error <= BAR for error in off),
        median=median(off) if off else None,
        worst=max(off, default=None),
        spread=median(spread) if spread else None,
    )


def _measure(quick: bool, passes: int | None = None) -> bytes:
    """The output of `edge.profile.calibrate` under the workers' settings; that process ends with this one."""
    options = [*(["--quick"] if quick else []), *(["--passes", str(passes)] if passes is not None else [])]
    options += ["--codec-sizes", *(f"{size:.0f}" for size in (SIZES[:1] if quick else SIZES))]
    with subprocess.Popen(
        interpreter.command("edge.profile.calibrate", *options),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            answer, complaints = process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        raise PoolError(f"the process that measures {how_ended(process.returncode)}{quote(complaints)}")
    return answer


def profile(measured: Measured, like: Device) -> CalibratedRow:
    """The row of this machine; unmeasured figures are those of the device ``like``."""
    by_family = measured.flops_per_second
    others = in_ratio(by_family, like, like.flops_per_second)
    clock_hz = None  # the processor's highest clock, or its present one if that is unknown
    if clock := psutil.cpu_freq():
        clock_hz = _rounded((clock.max or clock.current) * 1e6) or None
    processor = numerics.processor_fields().get("model name") or platform.machine()
    # A quick trial has no larger sizes: the rates of its last one stand for them.
    codecs: Codecs = {
        kind: {
            way: [_rounded(rates[min(place, len(rates) - 1)]) for place in range(len(SIZES))]
            for way, rates in both.items()
        }
        for kind, both in measured.codecs.items()
    }
    taken = [f"throughput of {' and '.join(others)} (conv times its ratio)"] if others else []
    networks = len({row.model for row in measured.measurements if row.fitted})
    return CalibratedRow(
        flops_per_second={family: _rounded(figure) for family, figure in (by_family | others).items()},
        operations_per_second={kind: _rounded(rate) for kind, rate in measured.operations_per_second.items()},
        step_seconds=_rounded(measured.step_seconds),
        modes=[1.0],
        memory_bytes=psutil.virtual_memory().total,
        train_watts=like.train_watts,
        idle_watts=like.idle_watts,
        clock_hz=clock_hz or ASSUMED_CLOCK_HZ,
        codec_slowdown=_rounded(mean_slowdown(codecs)),
        codecs=codecs,
        memory_bytes_per_second=_rounded(measured.memory_bytes_per_second),
        source="rates by kind of operation, throughputs and step overhead: CPU time of one core "
        f"({processor}) in training {networks} reference networks with torch {measured.torch}, "
        "by fedbr check --calibrate; codecs: likewise, in coding random numbers; "
        "rate of memory: likewise, in a step of AdamW; "
        f"memory{' and clock' if clock_hz else ''}: as the system tells; of {like.name}: "
        f"{', '.join([*taken, 'both powers'])}",
        year=datetime.now(UTC).year,
        assumed=[
            *(f"flops_per_second.{family}" for family in others),
            "train_watts",
            "idle_watts",
            *([] if clock_hz else ["clock_hz"]),
        ],
    )


def mean_slowdown(codecs: Mapping[str, Mapping[str, Sequence[float]]]) -> float:
    """How much longer these rates take than those of the reference host: the geometric mean over all of them."""
    ratios = [
        math.log(reference / rate)
        for kind, rates in codecs.items()
        for way, figures in rates.items()
        for reference, rate in zip(getattr(reference_rates()[kind], way), figures, strict=True)
    ]
    return math.exp(fmean(ratios))


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


def show_calibration(result: Calibration, stream: IO[str] | None = None) -> None:
    """`calibrate` for people: the models that were not fitted, and how far the predictions are off."""
    rows = calibration.rows([step(one) for one in result.measurements if not one.fitted])
    console = Console(file=stream or sys.stdout, highlight=False, markup=False, soft_wrap=True)
    console.print(terminal.aligned(calibration.COLUMNS, rows, pad_edge=False, padding=(0, 2, 0, 0)))
    errors, fitted = result.not_fitted, result.fitted
    if errors.median is not None and errors.worst is not None and errors.spread is not None:
        console.print(
            f"\nnot fitted: {errors.within_bar} of {errors.count} within {BAR:.0%}; median error "
            f"{errors.median:.1%}, at most {errors.worst:.0%}; the measurements differ by {errors.spread:.0%} "
            "from pass to pass"
        )
        if errors.spread > BAR:
            console.print("the machine is busy: repeat it when it is idle, or with more --passes")
    console.print(f"reference networks: median error {fitted.median:.1%}, at most {fitted.worst:.0%}")
    rates = ", ".join(f"{kind} {both['encode'][1] / 1e6:.3g}" for kind, both in result.codecs.items())
    console.print(
        f"codecs: {result.codec_slowdown:.2f} times as long as the reference host; encoding of 250 kB, MB/s: {rates}"
    )
    console.print(f"memory: {result.memory_bytes_per_second / 1e9:.3g} GB/s read and written in a step of AdamW")
    console.print(f"written to {result.file}")
    console.print(f"a scenario names it so: fleet.devices = {{ {result.device} = 1.0 }}")
