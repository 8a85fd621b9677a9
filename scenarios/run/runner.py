"""Starts and resumes runs: creates or opens the run folder, and assembles clock, worker pool and server side."""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from coordinator.records.chain import initial_hash
from coordinator.records.resume import resume_checkpoint
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from coordinator.rounds.budget import EARLY
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import Stopped
from costmodel.clock import Clock
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work, Works
from edge.data.content import keep_content
from edge.protocol.config import Job, ModelProfile
from edge.protocol.home import shared
from edge.runtime.numerics import fingerprint
from scenarios.config import plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import scenario_text
from scenarios.run import (
    builder,
    evaluated_clients,
    folder_files,
    plugin_sources,
    run_errors,
    run_records,
    run_warnings,
    shipped_files,
)
from scenarios.run.environment import Environment
from scenarios.run.folder_files import ARRAYS, HeldFolder, run_lock
from scenarios.run.host import Host, interruptible, logging_to
from scenarios.run.metadata import environment, summary
from scenarios.run.observer import Observers
from scenarios.run.run_folder import LEDGER, RunFolder

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
    place, text = host.out / loaded.name, scenario_text(loaded.scenario.model_dump())
    folder = folder_files.make_run_folder(place, host.run_id, text)
    with run_lock(folder) as held, _log_and_wrap(held):
        try:
            watch = Observers(host.observers, held.watched(stopped))
            return _Maker(loaded, fleet, host, held, launcher, watch).make(stop_at_target)
        except (ScenarioError, Stopped):
            held.check()
            if not RunFolder(folder).is_begun:
                folder_files.discard(folder)
            raise


def resume(
    loaded: Loaded, host: Host, folder: Path, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Resume the run of a folder after its last committed round; its results are those of an uninterrupted run.

    ``loaded``: its scenario. Returns the summary as of `run`, or the recorded one of a run that has ended.
    ScenarioError for a run that another process works on, and for data, files or modules of the user's that have
    changed; RunFailed for any other failure, and if no checkpoint is usable.
    """
    folder_files.check(folder)
    RunFolder(folder).check_device(host.device)
    fleet = builder.fleet(loaded)
    with run_lock(folder) as held, _log_and_wrap(held):
        recorded = RunFolder(folder)
        if (result := _outcome(loaded, recorded)) is not None:
            return result
        resumed = recorded.is_begun
        if not resumed:
            folder_files.empty(folder)
        before, watch = recorded.environment, Observers(host.observers, held.watched(stopped))
        made = _Maker(loaded, fleet, host, held, launcher, watch)
        return made.make(before.stops_at_target, before if resumed else None)


def ended(loaded: Loaded, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None for a run that `resume` can resume. Starts no process.

    ScenarioError and RunFailed as of `resume`.
    """
    with run_lock(folder), run_errors.named(folder):
        return _outcome(loaded, RunFolder(folder))


def _outcome(loaded: Loaded, recorded: RunFolder) -> dict[str, Any] | None:
    """The summary of a run that has ended; None for a run that was stopped early, or that is unfinished."""
    meta, result, folder = recorded.meta, recorded.summary, recorded.folder
    if result is None or result["stopped_by"] in EARLY:
        if recorded.is_begun and (change := recorded.source_change()):
            raise ScenarioError(f"{folder}: {change}; to resume this run, restore the files, or start a new run")
        return None
    if meta["genesis"] != initial_hash(builder.identity(loaded), recorded.environment.data.sha256):
        raise _is_another(folder)
    if lacking := run_records.PRINTED - result.keys():
        raise ScenarioError(f"{recorded.ledger} is damaged: its summary has no {min(lacking)}")
    if (folder / folder_files.WAL).exists():  # killed before the ledger was closed
        with contextlib.suppress(sqlite3.Error):
            Ledger(recorded.ledger, None).close()
    return result | {"run_dir": str(folder)}


def _is_another(folder: Path) -> ScenarioError:
    return ScenarioError(f"{folder}: the data or the files that the scenario names have changed")


@contextlib.contextmanager
def _log_and_wrap(held: HeldFolder) -> Iterator[None]:
    """Write the coordinator's log into a run folder; errors as of `run_errors.named`."""
    folder = held.path
    with run_errors.named(folder, held):
        for name in folder_files.MADE:  # a copy of the folder may lack those that were empty
            (folder / name).mkdir(exist_ok=True)
        with logging_to(folder / "logs" / "coordinator.log"):
            yield


@dataclass(frozen=True)
class _Maker:
    """Makes a run in its folder."""

    loaded: Loaded
    fleet: Fleet
    """As the scenario draws it"""
    host: Host
    held: HeldFolder
    launcher: WorkerLauncher
    watch: Observers

    def make(self, stop_at_target: bool, before: Environment | None = None) -> dict[str, Any]:
        """Make the run, or with the environment that it had ``before`` go on with it, and tell whoever watches it."""
        folder, host, result = self.held.path, self.host, None
        _log.info("run folder %s, %d workers on %s, data cache %s", folder, host.workers, host.device, cache_folder())
        try:
            self.watch.on_start(folder, self.loaded)
            with plugin_errors.named(self.loaded.scenario.model_dump(), ScenarioError, self.loaded.name):
                result = self._run(stop_at_target, before)
            return result
        finally:
            self.watch.on_end(result)

    def _run(self, stop_at_target: bool, before: Environment | None) -> dict[str, Any]:
        wall_started, loaded, folder, device = time.monotonic(), self.loaded, self.held.path, self.host.device
        sources = plugin_sources.find(plugin_sources.named(loaded)) if before is None else {}
        with probe_worker(loaded, device, self.launcher, folder / "logs", self.watch) as probe:
            profile, initial = probe.describe(True)
        fleet = builder.with_operations(loaded, self.fleet, profile)
        refused = builder.refused(loaded, fleet, profile)
        evaluated_clients.check_validation(loaded, profile)
        warnings = run_warnings.foreseen(loaded, profile, device)
        for note in (
            *run_warnings.partition_notes(profile),
            *evaluated_clients.left_out_notes(loaded, profile),
            *builder.method_notes(loaded, profile),
            *warnings,
        ):
            self.watch.on_note(note)
        chain = initial_hash(builder.identity(loaded), profile.data_sha256)
        self.held.check()
        if before is None:
            kept = plugin_sources.keep(sources, folder)
            if loaded.dataset.content:
                keep_content(loaded.dataset.content, cache_folder(), folder / ARRAYS)
            here = environment(loaded, profile, self.host, refused, stop_at_target, kept)
            here.write(folder)
        with self._ledger(chain, before is not None) as ledger:
            job = self._job(profile)
            if before is not None and (change := before.machine_change(device)):
                ledger.event(HostEvent("machine_changed", "", change, time.time()))
            server = builder.server(loaded, profile, initial, folder)
            with self._pool(job, ledger, builder.largest_message(loaded, job, profile, server)) as pool:
                parts = (job, profile, server, StoppableClock(fleet), pool, ledger, folder, self.watch)
                run, store = builder.federated_run(loaded, *parts, refused=refused, stop_at_target=stop_at_target)
                wall_before = ledger.wall_seconds()
                with plugin_errors.named(loaded.scenario.model_dump(), RunFailed):
                    ended_by = None if before is None else resume_checkpoint(run, store)
                    with contextlib.suppress(Stopped):
                        ended_by = ended_by or run_rounds(run)
                stopped_by = ended_by or self.host.stopped_by()
            store.remove_orphans()
            wall_seconds = wall_before + time.monotonic() - wall_started
            result = summary(RunFolder(folder), before or here, loaded, run, stopped_by, wall_seconds)
            warnings += run_warnings.found(loaded, run.committed.rounds, result["visits"], stopped_by)
            result["warnings"] = [*warnings, *run_warnings.of_cut_round(result["cut_round"])]
            ledger.finish(shared(result))
            return result

    @contextlib.contextmanager
    def _ledger(self, chain: str, resumed: bool) -> Iterator[Ledger]:
        """The ledger of the run, new or resumed; ScenarioError for one whose hash chain begins otherwise."""
        genesis, table = None if resumed else chain, self.loaded.method.objective.records.table
        path = self.held.path / LEDGER
        ledger = Ledger(path, genesis, table, self.loaded.scenario.checkpoints, self.held.check)
        with contextlib.closing(ledger):
            self.held.keep(path)
            if ledger.genesis != chain:
                raise _is_another(self.held.path)
            yield ledger

    def _job(self, profile: ModelProfile) -> Job:
        job = builder.job(self.loaded, profile, self.host.device, cache_folder())
        access = self.host.remote_access
        if access is None:
            return job
        numerics = {} if access.any_machine else fingerprint(self.host.device, self.loaded.scenario.train.instructions)
        return replace(job, fingerprint=numerics, visit_nbytes=builder.training_nbytes(self.loaded, profile))

    def _pool(self, job: Job, ledger: Ledger, most_nbytes: int) -> Pool:
        """The workers of the run, and the port of remote ones, which can fetch the files that the run has.

        Their events are recorded and told; one that has joined is named as the owner of its key is.
        """
        access = self.host.remote_access
        names = {} if access is None else access.names

        def on_event(event: HostEvent) -> None:
            key = event.detail.rpartition(" ")[2]
            is_named = event.kind == "worker_joined" and key in names
            event = event._replace(detail=f"{event.detail}, {names[key]}") if is_named else event
            ledger.event(event)
            self.watch.on_event(event)

        return Pool(
            job,
            self.host.workers,
            self.launcher,
            self.held.path / "logs",
            on_event,
            self.watch,
            remote_access=access,
            most_nbytes=most_nbytes,
            files={} if access is None else shipped_files.find(job, self.held.path),
        )


class StoppableClock(Clock):
    """A clock whose computations raise Stopped as soon as the user stops the run; it is of no use after that.

    A round of a fleet that is large enough, or whose clients come, go and slow down often enough, takes hours to
    compute, and no worker is waited for meanwhile. Virtual times are those of `costmodel.clock.Clock`.
    """

    def first_available(self, clients: Sequence[int]) -> float:
        with interruptible():
            return super().first_available(clients)

    def solve(
        self, starts: ArrayLike, works: Sequence[Work] | Works, conditions: Conditions, until: float = math.inf
    ) -> Timeline:
        with interruptible():
            return super().solve(starts, works, conditions, until)

    def solve_beside(
        self,
        leftovers: Leftovers | None,
        starts: ArrayLike,
        works: Sequence[Work],
        conditions: Conditions,
        until: float = math.inf,
    ) -> Solution:
        with interruptible():
            return super().solve_beside(leftovers, starts, works, conditions, until)

    def begin(self, work: Work, conditions: Conditions, order: int) -> None:
        with interruptible():
            super().begin(work, conditions, order)

    def next(self, until: float = math.inf) -> Any:
        with interruptible():
            return super().next(until)
