"""One run, from a loaded scenario to a run folder: clock + pool + server, put together and taken down again."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coordinator.archive import file_sha256
from coordinator.asynchronous import POLICIES as ASYNCHRONOUS
from coordinator.budget import USER, Budget, ClientLimits, Limits
from coordinator.faults import Faults
from coordinator.federation import Federation, RunFailed
from coordinator.files import write_text
from coordinator.ledger import HostEvent, Ledger, genesis, has_rounds, read
from coordinator.methods.row import Correction
from coordinator.nursery import Nursery
from coordinator.optimisers import OPTIMISERS
from coordinator.pool import Pool
from coordinator.resume import take_up
from coordinator.rounds import POLICIES
from coordinator.rules import Rules
from coordinator.server import Server, Setup
from coordinator.tasks import PoolError, Stopped
from costmodel.clock import Clock
from costmodel.fleet import Fleet
from edge.config import Description, HalfConfig, Job, ModelConfig, TrainConfig
from edge.machine import computes
from edge.payload import INNER_GRADIENT, Layout, Payload
from scenarios import fleets
from scenarios.explain import known_keys
from scenarios.host import Host, cache_folder, empty, fresh_folder, logging_to, the_only_one
from scenarios.load import Loaded, ScenarioError, data_config, load
from scenarios.record import device_of, environment, machine_change, stops_at_target, summary
from scenarios.schema import Scenario

RUN_ID_BYTES = 8
USERS_ERRORS = ("DataError", "PartitionError", "CacheError")


def on_device(loaded: Loaded, device: str) -> Loaded:
    """The scenario as it runs on a device, with the defaults that depend on the type of device written out.

    ScenarioError for a precision that the device does not have.
    """
    loaded = _settled(loaded, device)
    kind = device.partition(":")[0]
    train = loaded.scenario.train
    for key, asked in (("precision = tf32", train.precision == "tf32"), ("graphs = true", train.graphs)):
        if asked and kind != "cuda":
            raise ScenarioError(f"{loaded.name}: train.{key}: needs a CUDA device; this run is on {kind}")
    return loaded


def _settled(loaded: Loaded, device: str) -> Loaded:
    train = loaded.scenario.train
    defaults = loaded.model.on(device.partition(":")[0], loaded.scenario.model.width, train.precision)
    keys = ("precision", "memory_format", "pathways")
    missing = {key: getattr(defaults, key) for key in keys if getattr(train, key) is None}
    settled = {"train": train.model_copy(update=missing)}
    return replace(loaded, scenario=loaded.scenario.model_copy(update=settled))


def identity(loaded: Loaded) -> dict[str, Any]:
    """What the hash chain starts from: the resolved scenario, with hashes in place of where files lie."""
    scenario = loaded.scenario.model_dump()
    data = {key: value for key, value in scenario["data"].items() if key not in ("root", "download")}
    file = data["partition"]["file"]
    if file is not None and Path(file).is_file():
        data["partition"] = {**data["partition"], "file": file_sha256(Path(file))}
    files = {key: file_sha256(path) for key, path in fleets.named_files(loaded.scenario).items()}
    own = [asdict(row) for rows in fleets.own_rows(loaded.scenario) for row in rows.values()]
    return {**scenario, "data": data, "files": files, "own": own}


def job(loaded: Loaded, known: Description | None, device: str, cache: Path) -> Job:
    """What every worker is told; before describe, when nothing is known, not what travels."""
    loaded = _settled(loaded, device)
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
        eval_subset=scenario.eval.subset,
        flops=flops,
        data_sha256=known.data_sha256 if known is not None else "",
    )


def travels(loaded: Loaded, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(keys down, keys up). ScenarioError names the key."""
    try:
        return loaded.method.travels(layout, loaded.scenario.travels.down, loaded.scenario.travels.up)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def fleet(loaded: Loaded) -> Fleet:
    """The clients' devices and links, drawn by the scenario's seed."""
    try:
        return fleets.fleet(loaded.scenario, (loaded.model.name, loaded.model.family))
    except ScenarioError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def refused(loaded: Loaded, drawn: Fleet, description: Description) -> dict[int, str]:
    """client -> why the model does not fit its device; with as many pathways as the method ever trains."""
    row, blocks = loaded.method.objective, len(description.layout)
    most = dict.fromkeys(row.choices, blocks - 1)
    # What is kept for the way back is kept by passes that have one.
    kept = row.passes(blocks, loaded.options, most)[:, INNER_GRADIENT]
    try:
        return fleets.refused(loaded.scenario, drawn, description, kept)
    except ScenarioError as error:
        raise ScenarioError(f"{loaded.name}: {error}") from None


def limits(loaded: Loaded, stop_at_target: bool) -> Limits:
    """The stop rules of a scenario."""
    budget, rounds = loaded.scenario.budget.model_dump(exclude_none=True), loaded.scenario.rounds.max
    client = ClientLimits(**budget.pop("client"))
    target = loaded.scenario.stop.target_accuracy if stop_at_target else None
    return Limits(rounds, **budget, client=client, target_accuracy=target)


def rules(loaded: Loaded) -> Rules:
    """The round policy of a scenario."""
    return Rules(**loaded.scenario.rounds.model_dump(exclude={"max"}))


def check_guests(loaded: Loaded, asked: Job) -> None:
    """ScenarioError for a run that workers on other machines could take no part in: they do not share its files."""
    if asked.keep or any(part.keeps for part in loaded.method.parts):
        raise ScenarioError(
            f"{loaded.name}: --listen: clients of {loaded.scenario.method} keep vectors between their visits, in files "
            "that workers on other machines cannot reach; leave --listen out"
        )
    if asked.data.partition.file is not None:
        raise ScenarioError(f"{loaded.name}: --listen: data.partition.file: workers on other machines do not have it")


@contextlib.contextmanager
def scouting(loaded: Loaded, device: str, nursery: Nursery, logs: Path, stopped: Callable[[], bool]) -> Iterator[Pool]:
    """One worker that can be asked to describe, before or instead of a run. Errors as of `run`."""
    asked = job(loaded, None, device, cache_folder())
    refuse = users_errors(loaded)
    with Pool(asked, 1, nursery, logs, refuse, stopped) as pool:
        yield pool


def run(
    loaded: Loaded, host: Host, nursery: Nursery, stopped: Callable[[], bool], stop_at_target: bool
) -> dict[str, Any]:
    """The whole run; returns its summary (the keys of ``run --json``).

    ScenarioError for what the user can mend and Stopped before the first round, both without leaving a run folder;
    RunFailed with the run folder for what went wrong.
    """
    loaded = on_device(loaded, host.device)
    drawn = fleet(loaded)
    folder = fresh_folder(loaded, host)
    with the_only_one(folder), _told(folder):
        host.on_start(folder, loaded)
        try:
            return _run(loaded, drawn, host, folder, nursery, stopped, stop_at_target)
        except (ScenarioError, Stopped):
            shutil.rmtree(folder, ignore_errors=True)  # both come before the first round: there is nothing to keep
            raise


def resume(loaded: Loaded, host: Host, folder: Path, nursery: Nursery, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Go on with the run of a folder, from its last committed round, as if it had never been broken off.

    ``loaded``: its scenario. The summary as of `run`. ScenarioError for a run that has ended, one that is at work, and
    one whose data or scenario are not what they were; RunFailed for what goes wrong, or if no checkpoint can be used.
    """
    _check_device(folder, host.device)
    drawn = fleet(loaded)
    with the_only_one(folder), _told(folder):
        begun = _is_begun(folder)
        if not begun:
            empty(folder)
        host.on_start(folder, loaded)
        return _run(loaded, drawn, host, folder, nursery, stopped, stops_at_target(folder), again=begun)


def begun(folder: Path, device: str) -> tuple[Loaded, str]:
    """The scenario of a run folder, and the device to go on with: by default (``auto``) the one that it began on.

    ScenarioError for a folder without a run, and for a device of another type, whose results have other last bits.
    """
    file = folder / "scenario.toml"
    if not file.is_file():
        raise ScenarioError(f"{folder}: not a run folder: there is no scenario.toml in it")
    if device == "auto":
        device = device_of(folder) or device
    _check_device(folder, device)
    return replace(load(str(file)), name=folder.resolve().parent.name), device


def _check_device(folder: Path, device: str) -> None:
    before = device_of(folder) or device
    if device.partition(":")[0] != before.partition(":")[0]:
        raise ScenarioError(f"--device {device}: the run began on {before}, and would not be the same on {device}")


def _is_begun(folder: Path) -> bool:
    """Whether a round has been committed; ScenarioError if the run has ended."""
    if not has_rounds(folder / "ledger.sqlite"):
        return False
    ended = read(folder / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")
    stopped_by = json.loads(ended[0]["value"])["stopped_by"] if ended else USER
    if stopped_by != USER:
        report = "" if (folder / "report.html").exists() else f"; to draw its report: fedbr report {folder}"
        raise ScenarioError(f"{folder}: there is nothing to resume, since the run has ended: {stopped_by}{report}")
    return True


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Keep the log of what happens in a run folder, and name the folder, and a file, in what ends the run."""
    try:
        (folder / "logs").mkdir(exist_ok=True)
        with logging_to(folder / "logs" / "coordinator.log"):
            yield
    except (PoolError, RunFailed, OSError, sqlite3.Error) as error:
        raise RunFailed(f"{_in_words(error, folder)}\nrun folder: {folder}") from error


def _in_words(error: Exception, folder: Path) -> str:
    if isinstance(error, sqlite3.Error):  # a run opens no other database
        return f"{folder / 'ledger.sqlite'}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


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
    drawn: Fleet,
    host: Host,
    folder: Path,
    nursery: Nursery,
    stopped: Callable[[], bool],
    stop_at_target: bool,
    again: bool = False,
) -> dict[str, Any]:
    wall_started, cache, logs = time.monotonic(), cache_folder(), folder / "logs"
    with scouting(loaded, host.device, nursery, logs, stopped) as scout:
        description, initial = scout.describe(True)
    out = refused(loaded, drawn, description)
    chain = genesis(identity(loaded), description.data_sha256)
    if not again:
        known = environment(loaded, description, host, out, stop_at_target)
        write_text(folder / "environment.json", json.dumps(known, indent=1))
    ledger = Ledger(folder / "ledger.sqlite", None if again else chain)
    try:
        if ledger.genesis != chain:
            raise ScenarioError(f"{folder}: the data or the files that the scenario names are not what they were")
        asked = job(loaded, description, host.device, cache)
        if host.gate is not None:
            check_guests(loaded, asked)
            asked = replace(asked, computes={} if host.gate.any_machine else computes(host.device))
        if again and (change := machine_change(folder, host.device)):
            ledger.event(HostEvent("machine_changed", "", change, time.time()))
        with Pool(asked, host.workers, nursery, logs, ledger.event, stopped, gate=host.gate) as pool:
            federation = Federation(
                job=asked,
                method=loaded.method,
                options=loaded.options,
                description=description,
                server=server(loaded, description, initial),
                workers=pool,
                clock=Clock(drawn),
                budget=Budget(limits(loaded, stop_at_target)),
                ledger=ledger,
                folder=folder,
                rules=rules(loaded),
                eval_every=loaded.scenario.eval.every,
                on_round=host.on_round,
                is_stopped=stopped,
                refused=out,
                faults=Faults(**loaded.scenario.faults.model_dump(exclude_none=True)),
            )
            before = ledger.wall_seconds()
            stopped_by = take_up(federation) if again else None
            try:
                stopped_by = stopped_by or POLICIES[loaded.scenario.rounds.policy](federation)
            except Stopped:
                stopped_by = USER
        federation.archive.tidy()
        result = summary(folder, loaded, federation, stopped_by, before + time.monotonic() - wall_started)
        ledger.finish(result)
        return result
    finally:
        ledger.close()


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
        optimiser=OPTIMISERS[scenario.server].make(loaded.server_options),
        asynchronous=scenario.rounds.policy in ASYNCHRONOUS,
        sum=scenario.aggregate.sum,
        train=TrainConfig(**scenario.train.model_dump()),
    )
    parts = [
        correction.server(_with_options(setup, loaded, correction))
        for correction in method.corrections
        if correction.server
    ]
    return method.objective.server(setup, parts)


def _with_options(setup: Setup, loaded: Loaded, correction: Correction) -> Setup:
    return replace(setup, options=loaded.method.share(loaded.options, correction))
