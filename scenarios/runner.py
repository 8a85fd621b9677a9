"""One run, from a loaded scenario to a run folder: clock + pool + server, put together and taken down again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from coordinator.budget import USER, Budget, Limits
from coordinator.federation import Federation, Progress, RunFailed, file_sha256
from coordinator.files import write_text
from coordinator.ledger import HostEvent, Ledger, genesis, read
from coordinator.methods.row import Correction
from coordinator.nursery import Nursery
from coordinator.optimisers import OPTIMISERS
from coordinator.pool import Pool
from coordinator.rounds import POLICIES
from coordinator.server import Server, Setup
from coordinator.tasks import PoolError, Stopped
from costmodel.clock import Clock
from costmodel.fleet import Fleet
from edge.config import Description, HalfConfig, Job, ModelConfig, TrainConfig
from edge.payload import INPUT_GRADIENT, Layout, Payload
from edge.streams import generator
from scenarios.load import Loaded, ScenarioError, data_config, known_keys
from scenarios.resolved import toml_text
from scenarios.schema import Scenario

PACKAGES = ("torch", "torchvision", "numpy", "simpy", "pyzmq", "msgpack", "pydantic", "safetensors", "scikit-learn")
RUN_ID_BYTES = 8
KILLED = 128 + signal.SIGINT
USERS_ERRORS = ("DataError", "PartitionError")
"""Errors of a worker that the user can mend, by type."""


@dataclass(frozen=True)
class Host:
    """What the user says about this machine; never part of the result."""

    out: Path
    workers: int
    device: str
    run_id: str | None = None
    on_start: Callable[[Path, Loaded], None] = lambda folder, loaded: None
    on_round: Callable[[Progress], None] = lambda progress: None


def default_workers() -> int:
    """One worker per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def choose_device(asked: str) -> str:
    """``auto`` is a GPU where there is one. ScenarioError for a device that this machine lacks."""
    # Whether there is a driver is asked of the system: torch stays out of this process.
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    if asked == "auto":
        return "cuda" if has_gpu else "cpu"
    if asked != "cpu" and not (asked == "cuda" or re.fullmatch(r"cuda:[0-9]{1,4}", asked)):
        raise ScenarioError(f"--device {asked}: must be cpu, cuda, cuda:N or auto")
    if asked != "cpu" and not has_gpu:
        raise ScenarioError(f"--device {asked}: this machine has no NVIDIA GPU; leave it at auto or cpu")
    return asked


def cache_folder() -> Path:
    """Where decoded data and partitions are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbr-edge"


class Interrupt:
    """Ctrl-C and SIGTERM ask for an end; a second one ends at once with exit code 130."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether the user asked to stop."""
        return self.asked

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen to signals, and put back what listened before."""
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            sys.exit(KILLED)
        self.asked = True


def on_device(loaded: Loaded, device: str) -> Loaded:
    """The scenario with the defaults that depend on the type of device written out."""
    train = loaded.scenario.train
    if train.memory_format is not None:
        return loaded
    default = loaded.model.memory_format.get(device.partition(":")[0], "contiguous")
    settled = train.model_copy(update={"memory_format": default})
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"train": settled}))


def identity(loaded: Loaded) -> dict[str, Any]:
    """What the hash chain starts from: the resolved scenario, with hashes in place of where files lie."""
    scenario = loaded.scenario.model_dump()
    data = {key: value for key, value in scenario["data"].items() if key not in ("root", "download")}
    file = data["partition"]["file"]
    if file is not None and Path(file).is_file():
        data["partition"] = {**data["partition"], "file": file_sha256(Path(file))}
    return {**scenario, "data": data}


def job(loaded: Loaded, known: Description | None, device: str, cache: Path) -> Job:
    """What every worker is told; before describe, when nothing is known, not what travels."""
    loaded = on_device(loaded, device)
    scenario, method = loaded.scenario, loaded.method
    down: tuple[str, ...] = ()
    up: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    flops: tuple[tuple[float, float, float, float], ...] = ()
    if known is not None:
        down, up = travels(loaded, known.layout)
        keep = method.objective.keep(known.layout, down)
        flops = tuple((float(f), float(w), float(n), float(i)) for f, w, n, i in known.flops)
    train = scenario.train.model_dump()
    return Job(
        run_id=genesis(identity(loaded), "")[: 2 * RUN_ID_BYTES],
        seed=scenario.seed,
        device=device,
        cache=str(cache),
        model=ModelConfig(**scenario.model.model_dump()),
        data=data_config(scenario),
        train=TrainConfig(**train),
        objective=HalfConfig(method.objective.client, method.share(loaded.options, method.objective)),
        corrections=tuple(HalfConfig(c.client, method.share(loaded.options, c)) for c in method.corrections),
        up=up,
        keep=keep,
        reports=method.reports,
        eval_batch=scenario.eval.batch,
        flops=flops,
    )


def travels(loaded: Loaded, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(keys down, keys up). ScenarioError names the key."""
    try:
        return loaded.method.travels(layout, loaded.scenario.travels.down, loaded.scenario.travels.up)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def fleet(loaded: Loaded) -> Fleet:
    """The clients' devices and links, drawn by (seed, fleet)."""
    chosen = loaded.scenario.fleet
    return Fleet.build(
        loaded.scenario.data.clients,
        chosen.devices,
        chosen.networks,
        server_down=chosen.server.down,
        server_up=chosen.server.up,
        compute_spread=chosen.compute_spread,
        bandwidth_spread=chosen.bandwidth_spread,
        redraw=chosen.redraw,
        rng=generator(loaded.scenario.seed, "fleet"),
    )


def limits(loaded: Loaded, stop_at_target: bool) -> Limits:
    """The stop rules of a scenario."""
    budget, rounds = loaded.scenario.budget, loaded.scenario.rounds.max
    given = {name: value for name, value in budget.model_dump().items() if value is not None}
    return Limits(rounds, **given, target_accuracy=loaded.scenario.stop.target_accuracy if stop_at_target else None)


@contextlib.contextmanager
def scouting(loaded: Loaded, device: str, nursery: Nursery, logs: Path, stopped: Callable[[], bool]) -> Iterator[Pool]:
    """One worker that can be asked to describe, before or instead of a run. Errors as of `run`."""
    asked = job(loaded, None, device, cache_folder())
    refuse = users_errors(loaded)
    with _logging(logs / "coordinator.log"), Pool(asked, 1, nursery, logs, refuse, stopped) as pool:
        yield pool


def run(
    loaded: Loaded, host: Host, nursery: Nursery, stopped: Callable[[], bool], stop_at_target: bool
) -> dict[str, Any]:
    """The whole run; returns its summary (the keys of ``run --json``).

    ScenarioError for what the user can mend and Stopped before the first round, both without leaving a run folder;
    RunFailed with the run folder for what went wrong.
    """
    wall_started = time.monotonic()
    loaded = on_device(loaded, host.device)
    folder = _fresh_folder(loaded, host)
    host.on_start(folder, loaded)
    with _logging(folder / "logs" / "coordinator.log"):
        try:
            return _run(loaded, host, folder, nursery, stopped, stop_at_target, wall_started)
        except (ScenarioError, Stopped):
            shutil.rmtree(folder, ignore_errors=True)  # both come before the first round: there is nothing to keep
            raise
        except (PoolError, RunFailed, OSError, sqlite3.OperationalError) as error:
            raise RunFailed(f"{error}\nrun folder: {folder}") from error


def users_errors(loaded: Loaded) -> Callable[[HostEvent], None]:
    """What to do with a pool's events: ScenarioError for an error that the user can mend, at its first occurrence.

    It is one of the data, or one whose text begins with a key of the scenario; another worker would meet it again.
    """
    keys = known_keys(Scenario)

    def hear(event: HostEvent) -> None:
        if event.kind not in ("task_failed", "worker_died"):
            return
        error = re.search(r"(?:^|: )(\w+Error): (\S*)(.*)", event.detail, re.DOTALL)
        if error and (error[1] in USERS_ERRORS or error[2].rstrip(":") in keys):
            raise ScenarioError(f"{loaded.name}: {error[2]}{error[3]}")

    return hear


def _run(
    loaded: Loaded,
    host: Host,
    folder: Path,
    nursery: Nursery,
    stopped: Callable[[], bool],
    stop_at_target: bool,
    wall_started: float,
) -> dict[str, Any]:
    cache, logs = cache_folder(), folder / "logs"
    refuse = users_errors(loaded)
    with Pool(job(loaded, None, host.device, cache), 1, nursery, logs, refuse, stopped) as scout:
        description, initial = scout.describe(True)
    write_text(folder / "environment.json", json.dumps(environment(loaded, description, host), indent=1))
    ledger = Ledger(folder / "ledger.sqlite", genesis(identity(loaded), description.data_sha256))
    try:
        asked = job(loaded, description, host.device, cache)
        with Pool(asked, host.workers, nursery, logs, ledger.event, stopped) as pool:
            federation = _federation(loaded, asked, description, initial, pool, ledger, folder, host, stop_at_target)
            try:
                stopped_by = POLICIES[loaded.scenario.rounds.policy](federation)
            except Stopped:
                stopped_by = USER
        federation.tidy()
        result = summary(folder, loaded, federation, stopped_by, time.monotonic() - wall_started)
        ledger.finish(result)
        return result
    finally:
        ledger.close()


def _federation(
    loaded: Loaded,
    asked: Job,
    description: Description,
    initial: Payload,
    pool: Pool,
    ledger: Ledger,
    folder: Path,
    host: Host,
    stop_at_target: bool,
) -> Federation:
    return Federation(
        job=asked,
        method=loaded.method,
        options=loaded.options,
        description=description,
        server=server(loaded, description, initial),
        workers=pool,
        clock=Clock(fleet(loaded)),
        budget=Budget(limits(loaded, stop_at_target)),
        ledger=ledger,
        folder=folder,
        participants=loaded.scenario.rounds.participants,
        eval_every=loaded.scenario.eval.every,
        on_round=host.on_round,
    )


def server(loaded: Loaded, description: Description, initial: Payload) -> Server:
    """The method's server half, with those of its corrections, before the first round."""
    scenario, method = loaded.scenario, loaded.method
    down, up = travels(loaded, description.layout)
    assert scenario.aggregate.weights is not None
    setup = Setup(
        layout=description.layout,
        initial=initial,
        options=method.share(loaded.options, method.objective),
        weights=scenario.aggregate.weights,
        down=down,
        up=up,
        seed=scenario.seed,
        samples=description.samples,
        histogram=description.histogram,
        optimiser=OPTIMISERS[scenario.server](),
    )
    parts = [
        correction.server(_with_options(setup, loaded, correction))
        for correction in method.corrections
        if correction.server
    ]
    return method.objective.server(setup, parts)


def _with_options(setup: Setup, loaded: Loaded, correction: Correction) -> Setup:
    return replace(setup, options=loaded.method.share(loaded.options, correction))


def check_folder(name: str, host: Host) -> None:
    """Refuse a place that cannot take the run folder, before anything is started."""
    if host.run_id is not None and Path(host.run_id).name != host.run_id:
        raise ScenarioError(f"--run-id {host.run_id!r}: must be the name of a folder, without slashes")
    place = host.out / name
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
        probe = place / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    if host.run_id is not None:
        with _writing(place / host.run_id):  # the system may refuse even to look it up
            _refuse_existing(place / host.run_id)


def make_folder(name: str, host: Host) -> Path:
    """A new folder for one run or comparison: ``<out>/<scenario>/<run id>``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = host.out / name / (host.run_id or f"{stamp}-{secrets.token_hex(2)}")
    _refuse_existing(folder)
    with _writing(folder):
        folder.mkdir(parents=True)
    return folder


def _fresh_folder(loaded: Loaded, host: Host) -> Path:
    folder = make_folder(loaded.name, host)
    with _writing(folder):
        for name in ("checkpoints", "state", "logs"):
            (folder / name).mkdir()
        write_text(folder / "scenario.toml", toml_text(loaded.scenario.model_dump()))
    return folder


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise ScenarioError(f"run folder {folder} exists already; choose another --run-id")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"--out: cannot write to {folder}: {error.strerror}") from None


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    logger = logging.getLogger("fedbr")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def environment(loaded: Loaded, description: Description, host: Host) -> dict[str, Any]:
    """What the run was made on and of, for whoever reads the folder."""
    layout = description.layout
    return {
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in ("fedbr-edge", *PACKAGES)},
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "cores": default_workers(),
        "memory_bytes": psutil.virtual_memory().total,
        "workers": host.workers,
        "device": host.device,
        "data": {
            "name": loaded.dataset.name,
            "sha256": description.data_sha256,
            "source": description.data_source,
            "test_examples": description.test_count,
        },
        "partition": {
            "clients": len(description.samples),
            "classes": description.classes,
            "histogram": description.histogram.tolist(),
        },
        "blocks": [
            {
                **asdict(block),
                "nbytes": layout.nbytes(layout.keys([block.name])),
                "flops_forward": float(forward),
                "flops_weight_gradient": float(weight),
                "flops_input_gradient": float(inner + inputs),
            }
            for block, (forward, weight, inner, inputs) in zip(layout.blocks, description.flops, strict=True)
        ],
        "flops_plain_per_sample": float(description.flops.sum() - description.flops[0, INPUT_GRADIENT]),
    }


def summary(
    folder: Path, loaded: Loaded, federation: Federation, stopped_by: str, wall_seconds: float
) -> dict[str, Any]:
    """What ``run --json`` prints."""
    rows = read(folder / "ledger.sqlite", "SELECT * FROM rounds ORDER BY round")
    scored = [row for row in rows if row["accuracy"] is not None]
    target = loaded.scenario.stop.target_accuracy
    total = {name: sum(row[name] for row in rows) for name in SUMMED}
    return {
        "run_dir": str(folder),
        "method": loaded.scenario.method,
        "seed": loaded.scenario.seed,
        "rounds": federation.rounds,
        "accuracy": scored[-1]["accuracy"] if scored else None,
        "best_accuracy": max((row["accuracy"] for row in scored), default=None),
        "virtual_seconds": federation.clock.now,
        **total,
        "target_accuracy": target,
        **to_target(rows, target),
        "stopped_by": stopped_by,
        "wall_seconds": wall_seconds,
        "model_sha256": federation.model_sha256(),
    }


SUMMED = ("bytes_down", "bytes_up", "nominal_bytes", "flops", "nominal_flops", "joules")


def to_target(rows: list[sqlite3.Row], target: float | None) -> dict[str, float | int | None]:
    """Virtual seconds, bytes and rounds until the accuracy first reached the target; all None if it did not."""
    nbytes = count = 0
    for row in rows:
        count += row["participants"] > 0
        nbytes += row["bytes_down"] + row["bytes_up"]
        if target is not None and row["accuracy"] is not None and row["accuracy"] >= target:
            return {"time_to_target_s": row["end_s"], "bytes_to_target": nbytes, "rounds_to_target": count}
    return {"time_to_target_s": None, "bytes_to_target": None, "rounds_to_target": None}
