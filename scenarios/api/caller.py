"""Whoever calls for runs, on the command line or in Python: what is shown meanwhile, who is told, and what stops them.

Commands and functions of Python have their scenario and a request (`scenarios.api.requests`); a `Caller` makes the
runs, and gives what the command prints with ``--json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import IO, TYPE_CHECKING, Any

from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.monitor import FIRST_REMOTE_WORKER_SECONDS
from coordinator.workers.task import Stopped
from scenarios.api.callbacks import CallbackObserver
from scenarios.api.requests import (
    ExperimentRequest,
    MachineRequest,
    MeasureRequest,
    RecordedRequest,
    ResumeRequest,
    RunRequest,
    StressRequest,
)
from scenarios.config.load import Loaded, note_on_sums
from scenarios.config.overrides import KeyValues
from scenarios.experiment import run_set
from scenarios.experiment.executors import choose_executor, make_runs
from scenarios.experiment.experiment import Experiment
from scenarios.report.live import LiveTable, ParallelTable
from scenarios.run import extension, own_numpy, runner
from scenarios.run.folder_files import check_room
from scenarios.run.host import Host, Piece, check_workers, piece_seconds
from scenarios.run.observer import NotePrinter
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_summary import RunSummary
from scenarios.run.session import Outcome, Session, Work
from scenarios.run.setup import RunInputs

if TYPE_CHECKING:
    from scenarios.studies.conformance import Conformance
    from scenarios.studies.measure import MeasuredModels
    from scenarios.studies.stress import StressPlan, StressResult
    from scenarios.studies.verify import Verification


@dataclass
class Caller:
    """A command that is being executed, or a call of a Python function."""

    quiet: bool = False
    """Whether no progress is shown"""
    stream: IO[str] | None = None
    """The stream for progress; None: stderr"""
    signals: Sequence[Signals] = (Signals.SIGINT, Signals.SIGTERM)
    """Signals that ask the runs to stop"""
    watch: CallbackObserver = field(default_factory=lambda: CallbackObserver(()))
    note: NotePrinter = field(default_factory=NotePrinter)

    def call(
        self, session: Session, runs: Sequence[Loaded], work: Work[Outcome], show: LiveTable | None = None
    ) -> Outcome:
        """`Session.call` with this caller's observers and signals; ``show``: in place of a table of the methods.

        Stopped if the user stopped them, RunFailed if a callback did so by an error, before there is a result.
        """
        own_numpy.limit(runs)
        if text := own_numpy.note(runs):
            self.note(text)
        if show is None:
            access, engine = session.remote_access, session.engine
            names = access.names if access is not None else engine.names if engine is not None else {}
            wait = FIRST_REMOTE_WORKER_SECONDS if access is not None and session.workers == 0 else None
            methods = [loaded.scenario.method for loaded in runs]
            show = LiveTable(methods, self.stream, self.quiet, names, wait, shows_address=engine is None)
        observers = (show, self.note, self.watch)
        try:
            return replace(session, observers=observers, signals=self.signals).call(runs, work)
        except Stopped:
            self.watch.check(None)
            raise

    def notes(self, loaded: Loaded) -> None:
        """Print the notes for a scenario's author."""
        for note in RunInputs(loaded).fleet_notes:
            self.note(note)

    def run(self, loaded: Loaded, request: RunRequest) -> RunSummary:
        """Make a run in a new folder."""
        session = Session(
            request.workers,
            request.device,
            out=request.out,
            run_id=request.run_id,
            remote_access=request.remote_access(),
            engine=request.engine(),
            piece=request.time_limit,
        )
        own_numpy.limit([loaded])  # before any output
        if request.works_elsewhere:
            note_on_sums(loaded, self.note)
        self.notes(loaded)
        return self._kept(self.call(session, [loaded], partial(runner.run, loaded, stop_at_target=True)))

    def resume(self, folder: Path, limits: KeyValues, request: ResumeRequest) -> tuple[Loaded, RunSummary]:
        """Go on with a run, with other ``limits`` if there are any; (scenario, result). One that has ended stays."""
        access, engine = request.remote_access(), request.engine()
        with RunFolder(folder).open_scenario(request.device, request.allow_code) as (recorded, device):
            loaded, result = recorded, runner.ended(recorded, folder)
            if limits:
                loaded = extension.extend(recorded, folder, limits)
                result = runner.ended(loaded, folder)
            if result is not None:
                return loaded, result
            check_room(folder)

            def go_on(host: Host, launcher: WorkerLauncher, stopped: Piece) -> RunSummary:
                return runner.resume(loaded, host, folder, launcher, stopped)

            session = Session(request.workers, device, remote_access=access, engine=engine, piece=request.time_limit)
            return loaded, self._kept(self.call(session, [loaded], go_on))

    def _kept(self, result: RunSummary) -> RunSummary:
        """The result of a run whose folder is kept; RunFailed if a callback has ended it by an error."""
        folder = Path(result["run_dir"])
        self.watch.check(folder, f"to resume the run: fedbr.resume({str(folder)!r})")
        return result

    def verify(self, folder: Path, request: RecordedRequest) -> Verification:
        """Repeat a run, and compare it round by round."""
        from scenarios.studies import verify as study

        with RunFolder(folder).open_scenario(request.device, request.allow_code) as (loaded, device):
            repeat = partial(study.verify, loaded, folder)
            result = self.call(Session(request.workers, device), [loaded], repeat)
            self.watch.check(None)
            return result

    def measure(
        self,
        folder: Path,
        metrics: str,
        options: KeyValues,
        request: MeasureRequest,
        tell: Callable[[int, int], None] = lambda done, tasks: None,
    ) -> MeasuredModels:
        """Measure metrics of a stored checkpoint's models; ``options``: of metrics, by key."""
        from scenarios.studies import measure as study

        with RunFolder(folder).open_scenario(request.device, request.allow_code) as (loaded, device):
            planned = study.plan(loaded, folder, metrics, options, request.round, request.clients)
            work = partial(study.measure, planned, folder, tell=tell)
            return self.call(Session(request.workers, device), [loaded], work, LiveTable([], quiet=True))

    def stress(self, plan: StressPlan, request: StressRequest) -> StressResult:
        """Make a run at scale whose workers answer at once."""
        from scenarios.studies import stress as study

        def work(host: Host, launcher: WorkerLauncher, stopped: Piece) -> StressResult:
            return study.stress(plan, request.out, host, launcher, stopped)

        preload = (study.ANSWERING.partition(":")[0],)
        return self.call(Session(request.workers, request.device, preload=preload), [plan.loaded], work)

    def check_plugin(self, name: str, overrides: KeyValues, request: MachineRequest) -> Conformance:
        """Check a plug-in in short runs, whose progress nobody is shown."""
        from scenarios.config.load import load
        from scenarios.studies import conformance

        base = load(conformance.BASE, conformance.settings(name, overrides))
        work = partial(conformance.check_plugin, name, overrides)
        return self.call(Session(request.workers, request.device), [base], work, LiveTable([], quiet=True))

    def experiment(
        self, experiment: Experiment, request: ExperimentRequest
    ) -> tuple[Experiment, dict[str, Any], dict[str, Any]]:
        """Make the runs of an experiment that are missing, those that follow from them, and what it needs of them.

        Returns the experiment with all runs, what `make_runs` does, and the experiment's result.
        """
        piece_seconds(request.time_limit)
        check_workers(request.workers)
        planned, parallel = experiment.run_set, request.parallel or 1
        missing = run_set.pending(planned, request.out, planned.device(request.device))
        engine = request.cluster(lambda text: None if self.quiet else self.note(text))
        cluster = engine if missing else None
        if missing and not self.quiet:
            from scenarios.studies.forecast import duration

            text = duration.announced(missing, request.out, planned.device(request.device))
            print(f"fedbr: {text}", file=self.stream or sys.stderr)
        is_in_turn, names = parallel == 1 and cluster is None, [run.name for run in missing]
        show = LiveTable(names, self.stream, self.quiet)
        table = ParallelTable(names, self.stream, self.quiet)
        whole = experiment

        def about(name: str, has_ended: bool = False) -> None:
            table.about(name, has_ended)
            self.watch.about(name)

        def work(host: Host, launcher: WorkerLauncher, stopped: Piece) -> dict[str, Any]:
            nonlocal whole
            with cluster or nullcontext():
                while True:
                    planned, executor = whole.run_set, choose_executor(launcher, parallel, cluster)
                    made = make_runs(planned, host, executor, lambda: self.watch.is_stopped or stopped(), about)
                    if run_set.is_interrupted(made, planned):
                        return made
                    further = whole.further(made)
                    if further is None:
                        break
                    # In the same folder, whose name may have been made with it.
                    begun = replace(further.run_set, run_id=run_set.folder_of(made).name)
                    whole = replace(further, run_set=begun)
                    added = [run.name for run in run_set.pending(begun, host.out, host.device)]
                    show.add(added)
                    table.add(added)
            whole.complete(made, host, launcher, stopped)
            return made

        session = Session(
            request.workers if engine is None else 1,
            request.device,
            out=request.out,
            piece=request.time_limit,
            preload=None if is_in_turn and missing else (),  # processes of runs have fork servers of their own
        )
        runs = [run.loaded for run in missing or planned.runs[:1]]
        made = self.call(session, runs, work, show if is_in_turn else table)
        self.watch.check(run_set.folder_of(made), "the same call goes on with its runs")
        return whole, made, whole.result(made) | {"warnings": made["warnings"]}
