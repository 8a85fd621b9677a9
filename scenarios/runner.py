"""One run, from a loaded scenario to a run folder: clock + pool + server, put together and taken down again."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.records.chain import initial_hash
from coordinator.records.resume import resume_checkpoint
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger, has_rounds, read
from coordinator.rounds.budget import USER
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolError, Stopped
from costmodel.clock import Clock
from costmodel.fleet.fleet import Fleet
from edge.protocol.config import Job
from edge.protocol.files import write_text
from edge.runtime.numerics import fingerprint
from scenarios import builder, plugin_sources, run_folder
from scenarios.cache import cache_folder
from scenarios.config.error_messages import known_keys
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.schema import Scenario
from scenarios.host import Host, create_run_folder, logging_to, reset_run_folder, run_lock
from scenarios.report.metadata import (
    data_sha256,
    device_of,
    environment,
    machine_change,
    source_change,
    stops_at_target,
    summary,
)

USERS_ERRORS = ("DataError", "PartitionError", "CacheError")


def check_remote_workers(loaded: Loaded, asked: Job) -> None:
    """ScenarioError for a run that workers on other machines could take no part in: they do not share its files."""
    if asked.data.partition.file is not None:
        raise ScenarioError(f"{loaded.name}: --listen: data.partition.file: workers on other machines do not have it")


@contextlib.contextmanager
def probe_worker(
    loaded: Loaded, device: str, launcher: WorkerLauncher, logs: Path, stopped: Callable[[], bool]
) -> Iterator[Pool]:
    """One worker that can be asked to describe, before or instead of a run. Errors as of `run`."""
    asked = builder.job(loaded, None, device, cache_folder())
    refuse = user_error_hook(loaded)
    with Pool(asked, 1, launcher, logs, refuse, stopped) as pool:
        yield pool


def run(
    loaded: Loaded, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], stop_at_target: bool
) -> dict[str, Any]:
    """The whole run; returns its summary (the keys of ``run --json``).

    ScenarioError for what the user can mend and Stopped before the first round, both without leaving a run folder;
    RunFailed with the run folder for what went wrong.
    """
    loaded = builder.on_device(loaded, host.device)
    drawn = builder.fleet(loaded)
    folder = create_run_folder(loaded, host)
    with run_lock(folder), _log_and_wrap(folder):
        host.on_start(folder, loaded)
        try:
            return _run(loaded, drawn, host, folder, launcher, stopped, stop_at_target)
        except (ScenarioError, Stopped):
            run_folder.discard(folder)  # both come before the first round: there is nothing to keep
            raise


def resume(
    loaded: Loaded, host: Host, folder: Path, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Go on with the run of a folder, from its last committed round, as if it had never been broken off.

    ``loaded``: its scenario. The summary as of `run`; of a run that has ended, the one that it left. ScenarioError for
    a run that is at work, and one whose data or scenario are not what they were; RunFailed for what goes wrong, or if
    no checkpoint can be used. Modules of the user's own must be those that it began with.
    """
    run_folder.check(folder)
    _check_device(folder, host.device)
    drawn = builder.fleet(loaded)
    with run_lock(folder), _log_and_wrap(folder):
        if (result := _outcome(loaded, folder)) is not None:
            return result
        begun = has_rounds(folder / "ledger.sqlite")
        if not begun:
            reset_run_folder(folder)
        host.on_start(folder, loaded)
        return _run(loaded, drawn, host, folder, launcher, stopped, stops_at_target(folder), again=begun)


def ended(loaded: Loaded, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None for one that `resume` has to go on with. Nothing is started for it.

    ScenarioError and RunFailed as of `resume`.
    """
    with run_lock(folder), _named(folder):
        return _outcome(loaded, folder)


def open_existing(folder: Path, device: str) -> tuple[Loaded, str]:
    """The scenario of a run folder, and the device to go on with: by default (``auto``) the one that it began on.

    ScenarioError for a folder without a run, and for a device of another type, whose results have other last bits.
    """
    file = folder / "scenario.toml"
    if not file.is_file():
        raise ScenarioError(f"{folder}: not a run folder: there is no scenario.toml in it")
    run_folder.check(folder)
    if device == "auto":
        device = device_of(folder) or device
    _check_device(folder, device)
    try:
        loaded = load(str(file))
    except ScenarioError as error:
        change = source_change(folder)  # which may be why
        raise ScenarioError(f"{error}; {change}" if change else str(error)) from None
    return replace(loaded, name=folder.resolve().parent.name), device


def _check_device(folder: Path, device: str) -> None:
    before = device_of(folder) or device
    if device.partition(":")[0] != before.partition(":")[0]:
        raise ScenarioError(f"--device {device}: the run began on {before}, and would not be the same on {device}")


def _outcome(loaded: Loaded, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended, and not because its user stopped it."""
    path = folder / "ledger.sqlite"
    meta = _meta(path)
    result: dict[str, Any] = json.loads(meta.get("summary", "{}"))
    if result.get("stopped_by", USER) == USER:
        if has_rounds(path) and (change := source_change(folder)):
            raise ScenarioError(f"{folder}: {change}; to go on with this run, put back what it was, or begin a new one")
        return None
    if meta["genesis"] != initial_hash(builder.identity(loaded), data_sha256(folder)):
        raise _is_another(folder)
    if path.with_name(f"{path.name}-wal").exists():  # killed before the ledger was closed
        with contextlib.suppress(sqlite3.Error):
            Ledger(path, None).close()
    return result | {"run_dir": str(folder)}


def _meta(ledger: Path) -> dict[str, str]:
    """The ledger's own notes; none where it was broken off while it was made."""
    try:
        return {row["key"]: row["value"] for row in read(ledger, "SELECT key, value FROM meta")}
    except sqlite3.OperationalError:
        if has_rounds(ledger):  # or raises what is wrong with the file
            raise
        return {}


def _is_another(folder: Path) -> ScenarioError:
    return ScenarioError(f"{folder}: the data or the files that the scenario names are not what they were")


@contextlib.contextmanager
def _log_and_wrap(folder: Path) -> Iterator[None]:
    """Keep the log of what happens in a run folder, and do as `_named` does."""
    with _named(folder):
        (folder / "logs").mkdir(exist_ok=True)
        with logging_to(folder / "logs" / "coordinator.log"):
            yield


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Name the folder, and a file, in what ends the run."""
    try:
        yield
    except (PoolError, RunFailed, OSError, sqlite3.Error) as error:
        raise RunFailed(f"{_in_words(error, folder)}\nrun folder: {folder}") from error


def _in_words(error: Exception, folder: Path) -> str:
    if isinstance(error, sqlite3.Error):  # a run opens no other database
        return f"{folder / 'ledger.sqlite'}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def user_error_hook(loaded: Loaded) -> Callable[[HostEvent], None]:
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
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    stop_at_target: bool,
    again: bool = False,
) -> dict[str, Any]:
    wall_started, cache, logs = time.monotonic(), cache_folder(), folder / "logs"
    own = {} if again else plugin_sources.find(plugin_sources.named(loaded))
    with probe_worker(loaded, host.device, launcher, logs, stopped) as scout:
        description, initial = scout.describe(True)
    out = builder.refused(loaded, drawn, description)
    chain = initial_hash(builder.identity(loaded), description.data_sha256)
    if not again:
        known = environment(loaded, description, host, out, stop_at_target, plugin_sources.keep(own, folder))
        write_text(folder / "environment.json", json.dumps(known, indent=1))
    ledger = Ledger(folder / "ledger.sqlite", None if again else chain, loaded.method.objective.table)
    try:
        if ledger.genesis != chain:
            raise _is_another(folder)
        asked = builder.job(loaded, description, host.device, cache)
        if host.remote_access is not None:
            check_remote_workers(loaded, asked)
            asked = replace(asked, fingerprint={} if host.remote_access.any_machine else fingerprint(host.device))
        if again and (change := machine_change(folder, host.device)):
            ledger.event(HostEvent("machine_changed", "", change, time.time()))
        server_side = builder.server(loaded, description, initial)
        most = builder.largest_message(loaded, asked, description, server_side)
        with Pool(
            asked,
            host.workers,
            launcher,
            logs,
            ledger.event,
            stopped,
            remote_access=host.remote_access,
            most_nbytes=most,
        ) as pool:
            run, store = builder.federated_run(
                loaded,
                asked,
                description,
                server_side,
                Clock(drawn),
                pool,
                ledger,
                folder,
                refused=out,
                on_round=host.on_round,
                is_stopped=stopped,
                stop_at_target=stop_at_target,
            )
            before = ledger.wall_seconds()
            stopped_by = resume_checkpoint(run, store) if again else None
            try:
                stopped_by = stopped_by or run_rounds(run)
            except Stopped:
                stopped_by = USER
        store.remove_orphans()
        result = summary(folder, loaded, run, stopped_by, before + time.monotonic() - wall_started)
        ledger.finish(result)
        return result
    finally:
        ledger.close()
