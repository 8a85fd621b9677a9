"""Starts and resumes runs: creates or opens the run folder, and assembles clock, worker pool and server side."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from coordinator.records.resume import resume_checkpoint
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from coordinator.rounds.budget import EARLY
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolError, Stopped, Workers
from costmodel.clock import Clock
from edge.data.content import keep_content
from edge.data.decoded_cache import decoded_files
from edge.data.json_partition import content
from edge.data.registry import DataError
from edge.protocol import app_records
from edge.protocol.config import BOARDS, MAX_FILE_NAME, Job, ShippedFile
from edge.protocol.files import opened, write_bytes, write_text
from edge.protocol.home import abbreviated, expanded, shared
from edge.protocol.serialization import pack_description
from edge.runtime.numerics import fingerprint
from scenarios.config import fleet_files, plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import scenario_text
from scenarios.run import (
    app_run,
    evaluated_clients,
    folder_files,
    input_files,
    plugin_sources,
    run_problems,
    run_records,
)
from scenarios.run.app_folder import FlowerApp, flower_app, runnable_app
from scenarios.run.environment import DataSetRecord, Environment
from scenarios.run.federation import HEADERS_NBYTES, federated_run, largest_message
from scenarios.run.folder_files import HeldFolder, run_lock
from scenarios.run.host import Host, interruptible, logging_to
from scenarios.run.metadata import environment, summary
from scenarios.run.observer import Observers
from scenarios.run.run_folder import LEDGER, SCENARIO, RunFolder
from scenarios.run.run_summary import RunSummary
from scenarios.run.score import score_of
from scenarios.run.setup import RunInputs, Setup, on_device

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("fedbr.runner")


@contextlib.contextmanager
def probe_worker(
    inputs: RunInputs,
    launcher: WorkerLauncher,
    logs: Path,
    stopped: Callable[[], bool],
    is_on_devices: bool = False,
) -> Iterator[Pool]:
    """One worker, which describes model and data before a run or without one. Errors as of `run`.

    ``is_on_devices``: whether real devices train, which may be the only ones that have examples.
    """
    loaded = inputs.loaded
    run_problems.check_machine(loaded)
    if loaded.scenario.data.partition.kind == BOARDS and not is_on_devices:
        raise ScenarioError(
            f"{loaded.name}: data.partition.kind = {BOARDS!r}: each client's examples lie on its own board, and none "
            "here; choose another kind to simulate, and write the app of these boards with fedbr flower export"
        )
    with Pool(inputs.job, 1, launcher, logs, run_problems.user_error_hook(loaded), stopped) as pool:
        yield pool


def run(
    loaded: Loaded, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool], stop_at_target: bool
) -> RunSummary:
    """Run a scenario in a new run folder; returns its summary.

    ScenarioError for an error of the user's, and Stopped before the first round; both remove the run folder. RunFailed,
    naming the run folder, for any other failure.
    """
    inputs = RunInputs(on_device(loaded, host.device), host.device)
    loaded = inputs.loaded
    run_problems.check_machine(loaded, host.device)
    if loaded.method.app is not None:
        flower_app(loaded)
    _ = inputs.drawn_fleet  # so that a fleet that cannot be is refused before there is a folder
    place = host.out / loaded.name
    among = (place / (host.run_id or "new")).parent
    tables = fleet_files.absolute(loaded.scenario, among)
    text = scenario_text(tables)
    try:
        run_records.scenario_tables(text)
    except ValueError as error:
        raise ScenarioError(f"{loaded.name}: as {SCENARIO} no reader would take it: {error}") from None

    def fill(new: Path) -> None:
        for name in folder_files.MADE:
            (new / name).mkdir()
        input_files.keep(inputs.named_files, tables, new, among)
        write_text(new / SCENARIO, text)

    folder = folder_files.make_folder(place, host.run_id, fill)
    with run_lock(folder) as held, _log_and_wrap(held):
        try:
            watch = Observers(host.observers, held.watched(stopped))
            return _Maker(inputs, host, held, launcher, watch).make(stop_at_target)
        except (ScenarioError, Stopped) as error:
            held.check()
            if isinstance(error, run_problems.TooSmallError) or not RunFolder(folder).is_begun:
                folder_files.discard(folder)
            raise


def _finish(ledger: Ledger, result: RunSummary) -> None:
    """Record a run's summary, if it is one that can be read again."""
    summary = shared(result)
    try:
        run_records.parsed(json.dumps(summary), run_records.SummaryRecord)
    except ValueError as error:
        raise RunFailed(f"the summary is one that no reader takes: {error}") from None
    ledger.finish(summary)


def resume(
    loaded: Loaded, host: Host, folder: Path, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> RunSummary:
    """Resume the run of a folder after its last committed round; its results are those of an uninterrupted run.

    ``loaded``: its scenario. Returns the summary as of `run`, or the recorded one of a run that has ended.
    ScenarioError for a run that another process works on, and for data, files or modules of the user's that have
    changed; RunFailed for any other failure, and if no checkpoint is usable.
    """
    folder_files.check(folder)
    RunFolder(folder).check_device(host.device)
    inputs = RunInputs(loaded, host.device)
    _ = inputs.drawn_fleet  # so that a fleet that cannot be is refused before anything is written
    with run_lock(folder) as held, _log_and_wrap(held):
        recorded = RunFolder(folder)
        if (result := _outcome(inputs, recorded)) is not None:
            return result
        resumed = recorded.is_begun
        if not resumed:
            folder_files.empty(folder)
        before, watch = recorded.environment, Observers(host.observers, held.watched(stopped))
        made = _Maker(inputs, host, held, launcher, watch)
        return made.make(before.stops_at_target, before if resumed else None)


def ended(loaded: Loaded, folder: Path) -> RunSummary | None:
    """The summary of a run that has ended; None for a run that `resume` can resume. Starts no process.

    ScenarioError and RunFailed as of `resume`.
    """
    with run_lock(folder), run_problems.named(folder):
        return _outcome(RunInputs(loaded), RunFolder(folder))


def _outcome(inputs: RunInputs, recorded: RunFolder) -> RunSummary | None:
    """The summary of a run that has ended; None for a run that was stopped early, or that is unfinished."""
    result, folder = recorded.summary, recorded.folder
    if result is None or result["stopped_by"] in EARLY:
        if recorded.is_begun and (change := recorded.source_change()):
            raise ScenarioError(f"{folder}: {change}; to resume this run, restore the files, or start a new run")
        return None
    app = None if inputs.loaded.method.app is None else flower_app(inputs.loaded)
    is_other_app = app is not None and app.sha256 != recorded.app_sha256()
    if is_other_app or recorded.meta["genesis"] != inputs.genesis(recorded.environment.data.sha256):
        raise is_another(inputs, recorded, None if app is None else app.sha256)
    if lacking := run_records.PRINTED - result.keys():
        raise ScenarioError(f"{recorded.ledger} is damaged: its summary has no {min(lacking)}")
    if (folder / folder_files.WAL).exists():  # killed before the ledger was closed
        with contextlib.suppress(sqlite3.Error):
            Ledger(recorded.ledger, None).close()
    return cast(RunSummary, result | {"run_dir": str(folder)})  # it has the keys, and their types were checked


def is_another(inputs: RunInputs, recorded: RunFolder, data_sha256: str | None = None) -> ScenarioError:
    """The error for a run that names other content by now; ``data_sha256``: of its data or app, if that is known."""
    change = input_files.change(recorded.environment.files, inputs.named_files)
    if not change:
        what = f"{SCENARIO}, or something that it names,"
        if data_sha256 not in (None, recorded.app_sha256()):
            kind = "data set" if inputs.loaded.method.app is None else "Flower app"
            what = f"the {kind} {recorded.environment.data.name}"
        change = f"{what} has changed since the run began"
    return ScenarioError(f"{recorded.folder}: {change}; restore it, or start a new run")


@contextlib.contextmanager
def _log_and_wrap(held: HeldFolder) -> Iterator[None]:
    """Write the coordinator's log into a run folder; errors as of `run_problems.named`."""
    folder = held.path
    with run_problems.named(folder, held):
        for name in folder_files.MADE:  # a copy of the folder may lack those that were empty
            (folder / name).mkdir(exist_ok=True)
        with logging_to(folder / "logs" / "coordinator.log"):
            yield


@dataclass(frozen=True)
class _Maker:
    inputs: RunInputs
    host: Host
    held: HeldFolder
    launcher: WorkerLauncher
    watch: Observers

    @property
    def loaded(self) -> Loaded:
        return self.inputs.loaded

    def make(self, stop_at_target: bool, before: Environment | None = None) -> RunSummary:
        """Make the run, or with the environment that it had ``before`` go on with it, and tell whoever watches it."""
        folder, host, result = self.held.path, self.host, None
        _log.info("run folder %s, %d workers on %s, data cache %s", folder, host.workers, host.device, cache_folder())
        try:
            self.watch.on_start(folder, self.loaded)
            for note in self._notes_on_files(before):
                self.watch.on_note(note)
            with plugin_errors.named(self.loaded.scenario.model_dump(), ScenarioError, self.loaded.name):
                app = None if self.loaded.method.app is None else runnable_app(self.loaded)
                run = self._run if app is None else functools.partial(self._run_app, app)
                result = run(stop_at_target, before)
            return result
        finally:
            self.watch.on_end(result)

    def _notes_on_files(self, before: Environment | None) -> Iterator[str]:
        if before is None:
            return input_files.notes(self.inputs.named_files)
        return input_files.outdated(RunFolder(self.held.path).scenario, before.files, self.held.path)

    def _run_app(self, app: FlowerApp, stop_at_target: bool, before: Environment | None) -> RunSummary:
        """As `_run`, of a Flower app, which brings its own model and data, and decides the rounds.

        An app that has failed may be another one when the run is resumed: the committed rounds are played again with
        it, and must be the same.
        """
        wall_started, loaded, folder, scenario = time.monotonic(), self.loaded, self.held.path, self.loaded.scenario
        if self.host.remote_access is not None:
            raise ScenarioError(f"{loaded.name}: remote workers and clusters do not run Flower apps; use local workers")
        setup = Setup(self.inputs, app_run.described(app, scenario.data.clients))
        chain = self.inputs.genesis(app.sha256 if before is None else before.data.sha256)
        (folder / app_records.FOLDER).mkdir(exist_ok=True)
        if before is None:
            here = environment(setup, self.host, {}, stop_at_target, {})
            data = DataSetRecord(name=app.name, sha256=app.sha256, source=abbreviated(str(app.folder)))
            here = here.model_copy(update={"data": data, "asynchronous": True})
            here.write(folder)
        path, genesis = folder / LEDGER, chain if before is None else None
        with contextlib.closing(
            Ledger(path, genesis, None, scenario.checkpoints, check_place=self.held.check)
        ) as ledger:
            self.held.keep(path)
            recorded = RunFolder(folder)
            has_changed = before is not None and app.sha256 != recorded.app_sha256()
            if ledger.genesis != chain or (has_changed and not recorded.has_app_failed):
                raise is_another(self.inputs, recorded, app.sha256)
            if has_changed:
                ledger.event(HostEvent("app_changed", "", app.sha256, time.time()))

            def check_stop() -> None:
                if self.watch():
                    raise Stopped

            def on_event(kind: str, text: str) -> None:
                _log.warning("%s: %s", kind, text)
                ledger.event(HostEvent(kind, "", text, time.time()))

            job = app_run.worker_job(self.inputs.job, app, folder)
            target = scenario.stop.goal if stop_at_target else None
            wall_before, messages = ledger.wall_seconds(), folder / app_records.FOLDER
            server_app = app_run.ServerAppProcess(
                app, scenario.seed, messages, folder / folder_files.LOGS / app_run.LOG, check_stop
            )
            recorder, clock = app_run.LedgerRecorder(ledger), StoppableClock(self.inputs.drawn_fleet)
            with server_app, self._pool(job, ledger, HEADERS_NBYTES, app_run.EXECUTOR) as pool:
                parts = (loaded, clock, server_app, messages, recorder, target, pool, self.watch.on_round, check_stop)
                rounds = app_run.rounds_of(*parts, functools.partial(on_event, "app_raised"))
                ended_by = None
                try:
                    ended_by = rounds.run()
                except Stopped:
                    pass
                except (RunFailed, PoolError) as error:
                    on_event("app_failed", str(error))
                    raise
                stopped_by = ended_by or self.host.stopped_by()
            wall_seconds = wall_before + time.monotonic() - wall_started
            began = before or here
            result = summary(RunFolder(folder), began, setup, rounds.committed, stopped_by, wall_seconds)
            run_problems.check_budget(loaded, result, rounds.budget.lacking)
            result["warnings"] = [*app_run.warnings(rounds), *run_problems.found(loaded, result)]
            _finish(ledger, result)
            return result

    def _run(self, stop_at_target: bool, before: Environment | None) -> RunSummary:
        wall_started, inputs, folder, device = time.monotonic(), self.inputs, self.held.path, self.host.device
        loaded, access = inputs.loaded, self.host.remote_access
        sources = plugin_sources.find(plugin_sources.named(loaded)) if before is None else {}
        devices = self.host.devices
        with probe_worker(inputs, self.launcher, folder / "logs", self.watch, devices is not None) as probe:
            profile, initial = probe.describe(True)
        setup = Setup(inputs, profile)
        if devices is not None:
            setup = Setup(inputs, devices.counted(setup.job, profile, self.watch))
        _ = setup.fleet  # so that one that cannot be is refused before anything is written
        refused = {} if devices is not None else setup.refused
        evaluated_clients.check_validation(setup)
        warnings = run_problems.foreseen(setup, device)
        for note in (*run_problems.notes(setup), *warnings):
            self.watch.on_note(note)
        chain = inputs.genesis(setup.description.data_sha256)
        self.held.check()
        if before is None:
            kept = plugin_sources.keep(sources, folder)
            if loaded.dataset.content:
                keep_content(loaded.dataset.content, cache_folder(), folder / fleet_files.ARRAYS)
            here = environment(setup, self.host, refused, stop_at_target, kept)
            here.write(folder)
        path, genesis, table = folder / LEDGER, chain if before is None else None, loaded.method.objective.records.table
        rules, better = loaded.scenario.checkpoints, score_of(loaded.scenario.train).better
        opened = Ledger(path, genesis, table, rules, better, self.held.check)
        with contextlib.closing(opened) as ledger:
            self.held.keep(path)
            if ledger.genesis != chain:
                raise is_another(inputs, RunFolder(folder), setup.description.data_sha256)
            _keep_description(setup, folder)
            job = _with_own_partition(setup.job, folder)
            if access is not None:
                numerics = {} if access.any_machine else fingerprint(device, loaded.scenario.train.instructions)
                job = replace(job, fingerprint=numerics, visit_nbytes=setup.training_nbytes())
            if before is not None and (change := before.machine_change(device)):
                ledger.event(HostEvent("machine_changed", "", change, time.time()))
            server = setup.server(initial, folder)
            with self._pool(job, ledger, largest_message(setup, server)) as pool:
                times: tuple[Clock, Workers] = StoppableClock(setup.fleet), pool
                if devices is not None:
                    times = devices.join(job, setup.description, setup.fleet, pool, self.watch)
                parts = (setup, server, *times, ledger, self.watch)
                run, store = federated_run(*parts, refused=refused, stop_at_target=stop_at_target)
                wall_before = ledger.wall_seconds()
                with plugin_errors.named(loaded.scenario.model_dump(), RunFailed):
                    ended_by = None if before is None else resume_checkpoint(run, store)
                    with contextlib.suppress(Stopped):
                        ended_by = ended_by or run_rounds(run)
                stopped_by = ended_by or self.host.stopped_by()
            store.remove_orphans()
            wall_seconds = wall_before + time.monotonic() - wall_started
            result = summary(RunFolder(folder), before or here, setup, run.committed, stopped_by, wall_seconds)
            run_problems.check_budget(loaded, result, run.budget.lacking)
            result["warnings"] = [*warnings, *run_problems.found(loaded, result)]
            _finish(ledger, result)
            return result

    def _pool(self, job: Job, ledger: Ledger, most_nbytes: int, executor: str = Pool.site) -> Pool:
        """The workers of the run, and the port of remote ones, which can fetch the files that the run has.

        Their events are recorded and told; one that has joined is named as the owner of its key is.
        """
        access = self.host.remote_access
        names = {} if access is None else access.names

        def on_event(event: HostEvent) -> None:
            key = event.detail.rpartition(" ")[2]
            if event.kind == "worker_joined" and key in names:
                event = event._replace(detail=f"{event.detail}, {names[key]}")
            ledger.event(event)
            self.watch.on_event(event)

        return Pool(
            job,
            self.host.workers,
            self.launcher,
            self.held.path / "logs",
            on_event,
            self.watch,
            executor,
            remote_access=access,
            most_nbytes=most_nbytes,
            files={} if access is None else shipped_files(job, self.held.path),
        )


def _with_own_partition(job: Job, folder: Path) -> Job:
    """The job with the run's copy of the partition, since workers that join later read it, too."""
    partition = job.data.partition
    if partition.file is None:
        return job
    copy = fleet_files.copy_of(folder, fleet_files.PARTITION, partition.file).absolute()
    own = replace(partition, file=str(copy)) if copy.is_file() else partition
    return replace(job, data=replace(job.data, partition=own))


def _keep_description(setup: Setup, folder: Path) -> None:
    """Write the description into the run folder; into that of a resumed run, which may have lost it, once more."""
    source = abbreviated(setup.description.data_source)
    write_bytes(folder / folder_files.DESCRIPTION, pack_description(replace(setup.description, data_source=source)))


def _stoppable(method: Callable[P, R]) -> Callable[P, R]:
    """A method of `Clock` as an `interruptible` one."""

    @functools.wraps(method)
    def compute(*args: P.args, **kwargs: P.kwargs) -> R:
        with interruptible():
            result: R = getattr(Clock, method.__name__)(*args, **kwargs)
            return result

    return compute


class StoppableClock(Clock):
    """A clock whose computations raise Stopped as soon as the user stops the run; it is of no use after that.

    A round of a fleet that is large enough, or whose clients come, go and slow down often enough, takes hours to
    compute, and no worker is waited for meanwhile. Virtual times are those of `costmodel.clock.Clock`.
    """

    first_available = _stoppable(Clock.first_available)
    solve = _stoppable(Clock.solve)
    solve_beside = _stoppable(Clock.solve_beside)
    begin = _stoppable(Clock.begin)
    next = _stoppable(Clock.next)


# --- files for remote workers -----------------------------------------------------------------------------------------

MOST_FILES = 2000
"""Limit of what a job can list: its message has at most 1 MiB."""


def shipped_files(job: Job, folder: Path) -> dict[ShippedFile, Path]:
    """The files that remote workers can request if they lack them, and where these are on this machine.

    These are the decoded data set of the cache, the file of a partition, and `source_files`. The run of ``folder`` has
    described its data. ScenarioError for files that cannot be read, or are too many.
    """
    files: dict[ShippedFile, Path] = {}
    try:
        for name, (path, sha256) in decoded_files(job.data, Path(job.cache), job.data_sha256).items():
            files[ShippedFile("data", name, sha256, path.stat().st_size)] = path
        if job.data.partition.file is not None:
            path = expanded(job.data.partition.file).resolve()
            raw = content(path)
            files[ShippedFile("partition", "partition.json", hashlib.sha256(raw).hexdigest(), len(raw))] = path
        files |= source_files(folder)
    except OSError as error:
        raise ScenarioError(f"--listen: {error.filename}: cannot be read: {error.strerror}") from None
    except DataError as error:
        raise ScenarioError(f"--listen: {error}") from None
    if len(files) > MOST_FILES:
        raise ScenarioError(
            f"--listen: the scenario names modules of {len(files)} files; remote workers can get at most {MOST_FILES}"
        )
    if too_long := [file.name for file in files if len(file.name) > MAX_FILE_NAME]:
        raise ScenarioError(f"--listen: {too_long[0]}: longer than {MAX_FILE_NAME} characters; choose a shorter name")
    nbytes = sum(file.nbytes for file in files)
    _log.info("remote workers can get %d files, %.1f MB in all", len(files), nbytes / 1e6)
    return files


def source_files(folder: Path) -> dict[ShippedFile, Path]:
    """The copies of the user's modules in a run folder (`plugin_sources.keep`); ScenarioError for one that differs."""
    files = {}
    for path, recorded in plugin_sources.copies(folder).items():
        with opened(path) as file:
            raw = file.read()
        digest = hashlib.sha256(raw).hexdigest()
        if digest != recorded:  # others have code here that this machine does not run
            raise ScenarioError(f"--listen: {path} is not the module that the run began with; restore it")
        name = str(path.relative_to(folder / plugin_sources.FOLDER))
        files[ShippedFile("source", name, digest, len(raw))] = path
    return files
