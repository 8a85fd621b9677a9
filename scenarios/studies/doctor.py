"""This machine as runs see it: cores, memory, GPUs, versions and data sets; and, by calibration, its training speed.

`examine` changes nothing. `calibrate` measures training in another process, since torch stays out of this one, and
writes one file: this machine as a device that a scenario's fleet can name.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import psutil
from rich.console import Console

from coordinator.workers.launcher import environment, how_ended, quote
from coordinator.workers.sockets import MAX_SOCKET_PATH_NBYTES
from coordinator.workers.task import PoolError
from costmodel.fleet.devices import Device, devices
from costmodel.units import format_bytes, format_flops, format_seconds
from edge.data.locate import ENVIRONMENT, find_data
from edge.data.registry import DATASETS
from edge.protocol.files import write_text
from edge.runtime import numerics
from scenarios.cache import cache_folder
from scenarios.config.load import ScenarioError
from scenarios.config.toml_writer import toml_text
from scenarios.host import PACKAGES, default_workers
from scenarios.report import calibration, terminal

SOCKET_NAME_NBYTES = len("/fedbr-abcdefgh.scratch/pool")
THIS_HOST = "this-host"
LIKE = "laptop-cpu"
"""The shipped device whose figures are taken where nothing can be measured."""
ASSUMED_CLOCK_HZ = 2.5e9
NOTICE = "measuring the training steps of every shipped model on one core; about half a minute"
QUICK_NOTICE = "measuring a few training steps of one model on one core"


def examine() -> dict[str, Any]:
    """What ``doctor --json`` prints."""
    memory, cache = psutil.virtual_memory(), cache_folder()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "cores": default_workers(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "gpus": gpus(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("fedbr-edge", *PACKAGES)},
        "data": {name: find_data(name, None, cache) for name in DATASETS},
        "data_folder": os.environ.get(ENVIRONMENT),
        "cache": {"folder": str(cache), "bytes": folder_nbytes(cache)},
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
        "open_files": {"soft": soft, "hard": hard},
        "sockets": {"folder": tempfile.gettempdir(), "problem": socket_problem(Path(tempfile.gettempdir()))},
    }


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs, from the driver; their device files if it gives none."""
    return numerics.gpus() or sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(found: Mapping[str, Any], stream: IO[str] | None = None) -> None:
    """`examine` for people."""
    terminal.print_facts(rows(found), stream)


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, text)"""
    yield "cores", str(found["cores"])
    yield "memory", f"{format_bytes(found['memory_bytes'])}, {format_bytes(found['memory_available_bytes'])} available"
    yield "GPUs", ", ".join(found["gpus"]) or "none"
    yield "platform", found["platform"]
    for name, number in found["versions"].items():
        yield f"  {name}", number or "not installed"
    yield "data folder", found["data_folder"] or f"${ENVIRONMENT} is not set"
    for name, place in found["data"].items():
        yield f"  {name}", place or "not found"
    yield "cache", f"{found['cache']['folder']}, {format_bytes(found['cache']['bytes'])}"
    yield "free disk here", format_bytes(found["free_disk_bytes"])
    yield "open files", f"{found['open_files']['soft']} (at most {found['open_files']['hard']})"
    yield "sockets", f"{found['sockets']['folder']}: {found['sockets']['problem'] or 'writable'}"


# --- calibration ------------------------------------------------------------------------------------------------------


def calibrate(name: str = THIS_HOST, quick: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Measure a training step of every shipped model on this machine, and write the device that results.

    It takes about half a minute of a fast core, which is announced on stderr unless ``quiet``; ``quick`` measures
    little. Signals require the main thread. Returns what ``doctor --calibrate --json`` prints. ScenarioError for a name
    that no device can have, or if the file cannot be written; PoolError if the measuring process fails.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise ScenarioError(f"--name {name!r}: must be at most 64 letters, digits, - and _")
    if name in devices():
        raise ScenarioError(f"--name {name}: a shipped device has that name; choose another")
    path = cache_folder() / "devices" / f"{name}.toml"
    if not quiet:
        print(f"fedbr: {QUICK_NOTICE if quick else NOTICE}", file=sys.stderr, flush=True)
    with _terminated_as_interrupted():
        measured = _measure(quick)
    device = profile(measured, devices()[LIKE])
    result = {
        "device": name,
        "file": str(path),
        "step_seconds": device["step_seconds"],
        "flops_per_second": device["flops_per_second"],
        "measurements": measured["measurements"],
        "worst_error": _worst_error(measured, own_width=True),
        "worst_error_other_widths": _worst_error(measured, own_width=False),
    }
    try:
        write_text(path, calibration.comments(result["measurements"]) + toml_text({name: device}))
    except OSError as error:
        raise ScenarioError(f"cannot write {path}: {error.strerror}") from None
    return result


def _worst_error(measured: Mapping[str, Any], *, own_width: bool) -> float | None:
    """The largest relative error of the models at their own widths, or at others; None if none was measured."""
    rows = (row for row in measured["measurements"] if row["own_width"] == own_width)
    return max((abs(row["relative_error"]) for row in rows), default=None)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the measuring process is ended too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(quick: bool) -> dict[str, Any]:
    """The output of `edge.profile.calibrate` under the workers' settings; that process ends with this one."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "edge.profile.calibrate", *(["--quick"] if quick else [])],
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
    found: dict[str, Any] = json.loads(answer)
    return found


def profile(measured: Mapping[str, Any], like: Device) -> dict[str, Any]:
    """The fields of `costmodel.fleet.devices.Device` but its name; unmeasured ones are those of the device ``like``."""
    found: dict[str, float] = measured["flops_per_second"]
    ratios = {family: figure / like.flops_per_second["conv"] for family, figure in like.flops_per_second.items()}
    others = {family: found["conv"] * ratio for family, ratio in ratios.items() if family not in found}
    clock_hz = _clock_hz()
    taken = [f"throughput of {' and '.join(others)} (conv times its ratio)"] if others else []
    models = ", ".join(dict.fromkeys(row["model"] for row in measured["measurements"]))
    return {
        "flops_per_second": {family: _rounded(figure) for family, figure in (found | others).items()},
        "step_seconds": _rounded(measured["step_seconds"]),
        "modes": [1.0],
        "memory_bytes": psutil.virtual_memory().total,
        "train_watts": like.train_watts,
        "idle_watts": like.idle_watts,
        "clock_hz": clock_hz or ASSUMED_CLOCK_HZ,
        "source": "throughput of each model, geometric mean of a family's, and step overhead: CPU time of one core "
        f"({_processor()}) in training {models} with torch {measured['torch']}, by fedbr doctor --calibrate; "
        f"memory{' and clock' if clock_hz else ''}: as the system tells; of {like.name}: "
        f"{', '.join([*taken, 'both powers'])}",
        "year": datetime.now(UTC).year,
        "assumed": [
            *(f"flops_per_second.{family}" for family in others),
            "train_watts",
            "idle_watts",
            *([] if clock_hz else ["clock_hz"]),
        ],
    }


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


def _clock_hz() -> float | None:
    """The processor's highest clock, or its present one if that is unknown; None if both are."""
    clock = psutil.cpu_freq()
    return _rounded((clock.max or clock.current) * 1e6) or None if clock else None


def _processor() -> str:
    return numerics.processor_fields().get("model name") or platform.machine()


def show_calibration(result: Mapping[str, Any], stream: IO[str] | None = None) -> None:
    """`calibrate` for people."""
    cells = map(calibration.cells, result["measurements"])
    console = Console(file=stream or sys.stdout, highlight=False, markup=False, soft_wrap=True)
    console.print(terminal.aligned(calibration.COLUMNS, cells, pad_edge=False, padding=(0, 2, 0, 0)))
    rates = ", ".join(f"{family} {format_flops(rate)}/s" for family, rate in result["flops_per_second"].items())
    console.print(f"\n{rates}; {format_seconds(result['step_seconds'])} overhead per step")
    other = result["worst_error_other_widths"]
    elsewhere = "" if other is None else f", {other:.0%} at other widths"
    console.print(f"off by at most {result['worst_error']:.0%}{elsewhere}; written to {result['file']}")
    console.print(f"a scenario names it so: fleet.devices = {{ {result['device']} = 1.0 }}")
