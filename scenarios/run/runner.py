"""Starts and resumes runs: creates or opens the run folder, and assembles clock, worker pool and server side."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.records.chain import initial_hash
from coordinator.records.checkpoints import CheckpointStore
from coordinator.records.resume import resume_checkpoint
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger, has_rounds, read
from coordinator.rounds.budget import EARLY
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import Stopped
from costmodel.fleet.fleet import Fleet
from edge.data.content import keep_content, restore_content
from edge.data.registry import DataError
from edge.protocol.config import Job, ModelProfile
from edge.protocol.files import write_text
from edge.protocol.home import shared
from edge.protocol.payload import Payload
from edge.runtime.numerics import fingerprint
from scenarios.config import plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.report import run_reader
from scenarios.report.metadata import (
    began_with,
    data_sha256,
    device_of,
    environment,
    machine_change,
    modules_of,
    source_change,
    stops_at_target,
    summary,
)
from scenarios.run import (
    builder,
    evaluated_clients,
    plugin_sources,
    run_errors,
    run_folder,
    run_records,
    run_warnings,
    shipped_files,
)
from scenarios.run.host import Host, create_run_folder, logging_to, reset_run_folder, run_lock
from scenarios.run.run_folder import HeldFolder
from scenarios.run.stoppable_clock import StoppableClock

_log = logging.getLogger("fedbr.runner")


@contextlib.contextmanager
def probe_worker(
    loaded: Loaded, device: str, launcher: WorkerLauncher, logs: Path, stopped: Callable[[], bool]
) -> Iterator[Pool]:
    """One worker, which describes model and data before a run or without one. Errors as of `run`."""
    run_warnings.check_instructions(loaded)
    job = builder.job(loaded, None, device, cache_folder())
    with Pool(job, 1, launcher, logs, run_errors.user_error_hook(loaded), stopped) as pool:
        yield pool


def run(
    loaded: Loaded, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], stop_at_target: bool
) -> dict[str, Any]:
    """Run a scenario in a new run folder; returns its summary (the keys of ``run --json``).

    ScenarioError for an error of the user's, and Stopped before the first round; both remove the run folder. RunFailed,
    naming the run folder, for any other failure.
    """
    loaded = builder.on_device(loaded, host.device)
    run_warnings.check_threads(loaded, host.device)
    run_warnings.check_instructions(loaded)
    fleet = builder.fleet(loaded)
    folder = create_run_folder(loaded, host)
    with run_lock(folder) as held, _log_and_wrap(held):
        _log_start(folder, host)
        host.on_start(folder, loaded)
        try:
            with plugin_errors.named(loaded.scenario.model_dump(), ScenarioError, loaded.name):
                return _run(loaded, fleet, host, held, launcher, held.watched(stopped), stop_at_target)
        except (ScenarioError, Stopped):
            held.check()
            run_folder.discard(folder)  # no round has been committed yet, so nothing is lost
            raise


def resume(
    loaded: Loaded, host: Host, folder: Path, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Resume the run of a folder after its last committed round; its results are those of an uninterrupted run.

    ``loaded``: its scenario. Returns the summary as of `run`, or the recorded one of a run that has ended.
    ScenarioError for a run that another process works on, and for data, files or modules of the user's that have
    changed; RunFailed for any other failure, and if no checkpoint is usable.
    """
    run_folder.check(folder)
    _check_device(folder, host.device)
    fleet = builder.fleet(loaded)
    with run_lock(folder) as held, _log_and_wrap(held):
        if (result := _outcome(loaded, folder)) is not None:
            return result
        resumed = has_rounds(folder / "ledger.sqlite")
        if not resumed:
            reset_run_folder(folder)
        _log_start(folder, host)
        host.on_start(folder, loaded)
        with plugin_errors.named(loaded.scenario.model_dump(), ScenarioError, loaded.name):
            until = held.watched(stopped)
            return _run(loaded, fleet, host, held, launcher, until, stops_at_target(folder), resumed)


def _log_start(folder: Path, host: Host) -> None:
    _log.info("run folder %s, %d workers on %s, data cache %s", folder, host.workers, host.device, cache_folder())


def ended(loaded: Loaded, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None for a run that `resume` can resume. Starts no process.

    ScenarioError and RunFailed as of `resume`.
    """
    with run_lock(folder), run_errors.named(folder):
        return _outcome(loaded, folder)


@contextlib.contextmanager
def open_existing(folder: Path, device: str, allow_code: bool = False) -> Iterator[tuple[Loaded, str]]:
    """The scenario of a run folder, and the device to resume on: by default (``auto``) the device that it began on.

    Modules that the run names are imported in the body, too, so that workers are started there: from the user's own
    places, or with ``allow_code`` also from those of `metadata.modules_of`. ScenarioError for a folder without a run,
    for modules that are not allowed, and for a device of another type: results would not be bit-identical.
    """
    file = folder / "scenario.toml"
    if not file.exists():
        raise ScenarioError(f"{folder}: not a run folder: there is no scenario.toml in it")
    run_folder.check(folder)
    if device == "auto":
        device = device_of(folder) or device
    _check_device(folder, device)
    with modules_of(folder, allow_code):
        try:
            loaded = load(str(file))
        except ScenarioError as error:
            change = "" if plugin_sources.ALLOW in str(error) else source_change(folder)  # possibly the cause
            raise ScenarioError(f"{error}; {change}" if change else str(error)) from None
        if loaded.dataset.content and (arrays := folder / run_folder.ARRAYS).is_dir():
            try:
                restore_content(loaded.dataset.content, cache_folder(), arrays)
            except (DataError, OSError) as error:
                raise ScenarioError(str(error)) from None
        yield replace(loaded, name=folder.resolve().parent.name, began=began_with(folder)), device


def _check_device(folder: Path, device: str) -> None:
    before = device_of(folder) or device
    if device.partition(":")[0] != before.partition(":")[0]:
        raise ScenarioError(f"--device {device}: the run began on {before}, and would not be bit-identical on {device}")


def _outcome(loaded: Loaded, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None for a run that was stopped early, or that is unfinished."""
    path = folder / "ledger.sqlite"
    meta = _meta(path)
    result = run_reader.summary(folder) if "summary" in meta else None
    if result is None or result["stopped_by"] in EARLY:
        if has_rounds(path) and (change := source_change(folder)):
            raise ScenarioError(f"{folder}: {change}; to resume this run, restore the files, or start a new run")
        return None
    if meta["genesis"] != initial_hash(builder.identity(loaded), data_sha256(folder)):
        raise _is_another(folder)
    if lacking := run_records.PRINTED - result.keys():
        raise ScenarioError(f"{path} is damaged: its summary has no {min(lacking)}")
    if path.with_name(f"{path.name}-wal").exists():  # killed before the ledger was closed
        with contextlib.suppress(sqlite3.Error):
            Ledger(path, None).close()
    return result | {"run_dir": str(folder)}


def _meta(ledger: Path) -> dict[str, str]:
    """The ledger's metadata; empty if its creation was interrupted."""
    try:
        return {row["key"]: row["value"] for row in read(ledger, "SELECT key, value FROM meta")}
    except sqlite3.OperationalError:
        if has_rounds(ledger):  # raises for a damaged file
            raise
        return {}


def _is_another(folder: Path) -> ScenarioError:
    return ScenarioError(f"{folder}: the data or the files that the scenario names have changed")


@contextlib.contextmanager
def _log_and_wrap(held: HeldFolder) -> Iterator[None]:
    """Write the coordinator's log into a run folder; errors as of `run_errors.named`."""
    folder = held.path
    with run_errors.named(folder, held):
        for name in run_folder.MADE:  # a copy of the folder may lack those that were empty
            (folder / name).mkdir(exist_ok=True)
        with logging_to(folder / "logs" / "coordinator.log"):
            yield


def _run(
    loaded: Loaded,
    fleet: Fleet,
    host: Host,
    held: HeldFolder,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    stop_at_target: bool,
    resumed: bool = False,
) -> dict[str, Any]:
    wall_started, folder = time.monotonic(), held.path
    sources = {} if resumed else plugin_sources.find(plugin_sources.named(loaded))
    profile, initial = _described(loaded, host, folder, launcher, stopped)
    fleet = builder.with_operations(loaded, fleet, profile)
    refused = builder.refused(loaded, fleet, profile)
    foreseen = _tell_before_training(loaded, profile, host)
    chain = initial_hash(builder.identity(loaded), profile.data_sha256)
    held.check()
    if not resumed:
        kept = plugin_sources.keep(sources, folder)
        if loaded.dataset.content:
            keep_content(loaded.dataset.content, cache_folder(), folder / run_folder.ARRAYS)
        _write_environment(folder, environment(loaded, profile, host, refused, stop_at_target, kept))
    with _ledger(loaded, held, chain, resumed) as ledger:
        job = _job(loaded, profile, host)
        if resumed and (change := machine_change(folder, host.device)):
            ledger.event(HostEvent("machine_changed", "", change, time.time()))
        server = builder.server(loaded, profile, initial, folder)
        limit = builder.largest_message(loaded, job, profile, server)
        with _pool(job, host, folder, launcher, _recorder(ledger, host), stopped, limit) as pool:
            run, store = builder.federated_run(
                loaded,
                job,
                profile,
                server,
                StoppableClock(fleet),
                pool,
                ledger,
                folder,
                refused=refused,
                on_round=host.on_round,
                is_stopped=stopped,
                stop_at_target=stop_at_target,
            )
            wall_before = ledger.wall_seconds()
            with plugin_errors.named(loaded.scenario.model_dump(), RunFailed):
                stopped_by = _rounds(run, store, resumed) or host.stopped_by()
        store.remove_orphans()
        result = summary(folder, loaded, run, stopped_by, wall_before + time.monotonic() - wall_started)
        result["warnings"] = [
            *foreseen,
            *run_warnings.found(loaded, run.committed.rounds, result["visits"], stopped_by),
            *run_warnings.of_cut_round(result["cut_round"]),
        ]
        ledger.finish(shared(result))
        return result


def _described(
    loaded: Loaded, host: Host, folder: Path, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> tuple[ModelProfile, Payload]:
    """Model and data as a worker describes them, and the initial vectors."""
    with probe_worker(loaded, host.device, launcher, folder / "logs", stopped) as probe:
        return probe.describe(True)


def _tell_before_training(loaded: Loaded, profile: ModelProfile, host: Host) -> list[str]:
    """Give notes and warnings to whoever watches; returns the warnings, which are the summary's, too.

    ScenarioError if clients lack the validation examples that the run needs.
    """
    evaluated_clients.check_validation(loaded, profile)
    foreseen = run_warnings.foreseen(loaded, profile, host.device)
    for note in (*_notes(loaded, profile), *foreseen):
        host.on_note(note)
    return foreseen


def _pool(
    job: Job,
    host: Host,
    folder: Path,
    launcher: WorkerLauncher,
    tell: Callable[[HostEvent], None],
    stopped: Callable[[], bool],
    most_nbytes: int,
) -> Pool:
    """The workers of the run, and the port of remote ones, which can fetch the files that the run has."""
    remote = host.remote_access
    files = {} if remote is None else shipped_files.find(job, folder)
    return Pool(
        job,
        host.workers,
        launcher,
        folder / "logs",
        tell,
        stopped,
        remote_access=remote,
        most_nbytes=most_nbytes,
        files=files,
    )


def _write_environment(folder: Path, record: dict[str, Any]) -> None:
    text = io.StringIO()
    json.dump(record, text, indent=1)  # dumps would hold each number of each client as a text of its own
    write_text(folder / "environment.json", text.getvalue())


def _notes(loaded: Loaded, profile: ModelProfile) -> list[str]:
    """What the scenario's author should know of its data and method before training."""
    return [
        *run_warnings.partition_notes(profile),
        *evaluated_clients.left_out_notes(loaded, profile),
        *builder.method_notes(loaded, profile),
    ]


@contextlib.contextmanager
def _ledger(loaded: Loaded, held: HeldFolder, chain: str, resumed: bool) -> Iterator[Ledger]:
    """The ledger of a run, new or resumed; ScenarioError for one whose hash chain begins otherwise."""
    genesis, table = None if resumed else chain, loaded.method.objective.table
    path = held.path / "ledger.sqlite"
    ledger = Ledger(path, genesis, table, loaded.scenario.checkpoints, held.check)
    with contextlib.closing(ledger):
        held.keep(path)
        if ledger.genesis != chain:
            raise _is_another(held.path)
        yield ledger


def _recorder(ledger: Ledger, host: Host) -> Callable[[HostEvent], None]:
    """A handler of the pool's events, for the ledger and for whoever watches."""

    names = host.remote_access.names if host.remote_access is not None else {}

    def on_event(event: HostEvent) -> None:
        ledger.event(_with_name(event, names))
        host.on_event(event)

    return on_event


def _with_name(event: HostEvent, names: Mapping[str, str]) -> HostEvent:
    """The event of a remote worker that has joined, with what the owner of its key calls it."""
    key = event.detail.rpartition(" ")[2]
    if event.kind != "worker_joined" or key not in names:
        return event
    return event._replace(detail=f"{event.detail}, {names[key]}")


def _job(loaded: Loaded, profile: ModelProfile, host: Host) -> Job:
    job = builder.job(loaded, profile, host.device, cache_folder())
    if host.remote_access is None:
        return job
    instructions = loaded.scenario.train.instructions
    numerics = {} if host.remote_access.any_machine else fingerprint(host.device, instructions)
    return replace(job, fingerprint=numerics, visit_nbytes=builder.training_nbytes(loaded, profile))


def _rounds(run: FederatedRun, store: CheckpointStore, resumed: bool) -> str | None:
    """All rounds, or those after the last checkpoint; returns the rule that ended the run, None if it was stopped."""
    stopped_by = resume_checkpoint(run, store) if resumed else None
    try:
        return stopped_by or run_rounds(run)
    except Stopped:
        return None
