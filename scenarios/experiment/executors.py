"""Executors of the runs of a run set: in turn in this process, or at the same time in processes of this machine or on a
cluster.

No result depends on the executor. A run that fails, or whose process is killed, costs the others nothing.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict, cast

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher, environment, how_ended
from coordinator.workers.task import Stopped
from scenarios.config.errors import ScenarioError
from scenarios.config.tables import TomlValue
from scenarios.experiment.run_set import (
    NamedSummary,
    PlannedRun,
    RunSet,
    failures,
    locked,
    make_run,
    named_summary,
    pending,
    reason,
)
from scenarios.run.child_process import ChildProcess, Message
from scenarios.run.host import Host
from scenarios.run.observer import Observers
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_summary import RunSummary

RUN_PROCESS = "scenarios.experiment.run_process"
TURN_SECONDS = 0.2
"""The longest time until the user's wish to stop is seen."""
END_SECONDS = 10.0
"""Limit for the end of a process that has no run."""


class About(Protocol):
    def __call__(self, name: str, has_ended: bool = False) -> None:
        """The next calls are about the run of this name; ``has_ended``: it has just ended or failed."""


@dataclass
class RunOutcomes:
    """The outcomes of runs, by their names; of those that the user stopped before their first round there are none."""

    ended: dict[str, NamedSummary] = field(default_factory=dict)
    """Summaries"""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons"""
    users_errors: set[str] = field(default_factory=set)
    """Names of runs that failed by the user's input"""

    def add(self, name: str, message: Message) -> None:
        """Add the `outcome` of a run."""
        if "ended" in message:
            self.ended[name] = message["ended"]
        elif "failed" in message:
            self.failed[name] = message["failed"]
            if message["is_users"]:
                self.users_errors.add(name)


class RunExecutor(Protocol):
    """Makes the runs of one run set."""

    def make(
        self, runs: Sequence[PlannedRun], folder: Path, host: Host, stopped: Callable[[], bool], about: About
    ) -> RunOutcomes:
        """Make these runs in folders of their names in ``folder``, or go on with them.

        ``about`` is told which run the observers' next ``on_start`` or ``on_round`` is about, and of each run that has
        ended or failed. Once ``stopped``, runs at work end with their round, and no other begins.
        """


def make_runs(
    run_set: RunSet,
    host: Host,
    executor: RunExecutor,
    stopped: Callable[[], bool],
    about: About = lambda name, has_ended=False: None,
) -> dict[str, Any]:
    """Make the runs that are not finished; returns ``folder``, ``runs``, ``warnings``, and ``failed`` and ``missing``
    if any are.

    ``runs`` are summaries with the run's ``name``, and ``warnings`` theirs, each with the ``runs`` that have it;
    ``stopped_by`` is "budgets" where a run met its needs. A run that fails does not end the others;
    RunFailed if none of them has a summary, but the first ScenarioError if all of them failed with one. If the user
    stops the run set, the result covers the runs so far; `Stopped` if there are none.
    """
    with locked(run_set, host) as held:
        folder = held.path
        missing = {run.name: run for run in pending(run_set, host.out, host.device)}
        ended = {
            run.name: named_summary(run, folder / run.name, cast(RunSummary, RunFolder(folder / run.name).summary))
            for run in run_set.runs
            if run.name not in missing
        }
        made = executor.make(list(missing.values()), folder, host, held.watched(stopped), about)
        ended |= made.ended
        if not ended:
            if not made.failed:
                raise Stopped
            if made.users_errors == made.failed.keys():
                raise ScenarioError(next(iter(made.failed.values())))
            raise RunFailed(failures(made.failed))
    runs = [ended[run.name] for run in run_set.runs if run.name in ended]
    warnings: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.get("warnings", []):
            warnings.setdefault(warning, []).append(run["name"])
    shown = [{"warning": warning, "runs": names} for warning, names in warnings.items()]
    others = {"failed": made.failed, "missing": [run.name for run in run_set.runs if run.name not in ended]}
    return {"folder": str(folder), "runs": runs, "warnings": shown} | {
        key: each for key, each in others.items() if each
    }


def outcome(make: Callable[[], NamedSummary]) -> Message:
    """``ended`` with the summary that ``make`` returns, ``failed`` with its reason, or ``stopped`` by the user."""
    try:
        return {"ended": make()}
    except Stopped:
        return {"stopped": True}
    except Exception as error:  # in a run of its own: the others need not know
        return {"failed": reason(error), "is_users": isinstance(error, ScenarioError)}


class InTurn:
    """Makes one run after the other in this process; a run may also be stopped before its first round ends."""

    def __init__(self, launcher: WorkerLauncher) -> None:
        self._launcher = launcher

    def make(
        self, runs: Sequence[PlannedRun], folder: Path, host: Host, stopped: Callable[[], bool], about: About
    ) -> RunOutcomes:
        outcomes = RunOutcomes()
        for run in runs:
            about(run.name)
            message = outcome(partial(make_run, run, folder / run.name, host, self._launcher, stopped))
            outcomes.add(run.name, message)
            about(run.name, has_ended=True)
            if "stopped" in message or stopped():
                break
        return outcomes


def choose_executor(launcher: WorkerLauncher, parallel: int = 1, cluster: RunPlaces | None = None) -> RunExecutor:
    """That of a ``cluster``, if there is one, or of so many runs at a time on this machine."""
    if cluster is not None:
        return AtOnce(cluster)
    return AtOnce(RunProcesses(parallel)) if parallel > 1 else InTurn(launcher)


# --- at the same time -------------------------------------------------------------------------------------------------

OnMessage = Callable[[Message | None], None]


class RunPlaces(Protocol):
    """Slots, known by numbers, which make one run after another: processes of this machine, or nodes of a cluster."""

    def shares(self, host: Host, runs: int) -> list[int]:
        """The workers of each slot for so many runs."""

    def open(self, slot: int, on_message: OnMessage) -> None:
        """Open a slot; ``on_message`` is called in another thread with what `scenarios.experiment.run_process` sends,
        and with None if the slot is lost."""

    def begin(self, slot: int, request: ProcessRun | None) -> None:
        """Begin a run in a slot, as `run_request` has it; None: there are no more."""

    def stop(self, slot: int, why: str) -> None:
        """Have the run of a slot end with its round, stopped by ``why``."""

    def close(self, slot: int, at_once: bool) -> str:
        """End a slot, with its run if it has one and ``at_once``; the reason for which it is lost, if it is."""


class AtOnce:
    """Makes several runs at the same time, in slots that take the next run when they have ended one.

    This process makes no run itself: it hands them out, and passes on how far they are.
    """

    def __init__(self, places: RunPlaces) -> None:
        self._places = places
        self._messages: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._workers: dict[int, int] = {}
        """Open slot -> its workers"""
        self._at_work: dict[int, PlannedRun] = {}
        """Slot -> its run"""
        self._numbers = itertools.count()
        self._outcomes = RunOutcomes()

    def make(
        self, runs: Sequence[PlannedRun], folder: Path, host: Host, stopped: Callable[[], bool], about: About
    ) -> RunOutcomes:
        """As of `RunExecutor`; when this returns or raises, all slots have ended. A slot that is lost is replaced."""
        self._waiting, self._folder, self._host, self._about = deque(runs), folder, host, about
        self._observers = Observers(host.observers)
        is_stopping = False
        try:
            for workers in self._places.shares(host, len(runs)):
                self._open(workers)
            while self._at_work:
                if stopped() and not is_stopping:
                    is_stopping = True
                    self._waiting.clear()
                    for slot in self._at_work:
                        self._places.stop(slot, host.stopped_by())
                with suppress(queue.Empty):
                    self._on_message(*self._messages.get(timeout=TURN_SECONDS))
            return self._outcomes
        finally:
            for slot in self._workers:
                self._places.close(slot, at_once=slot in self._at_work)

    def _open(self, workers: int) -> None:
        if self._waiting:
            slot = next(self._numbers)
            self._places.open(slot, lambda message: self._messages.put((slot, message)))
            self._workers[slot] = workers
            self._begin_next(slot)

    def _begin_next(self, slot: int) -> None:
        if not self._waiting:
            self._places.begin(slot, None)
            return
        run = self._at_work[slot] = self._waiting.popleft()
        self._places.begin(slot, run_request(run, self._folder / run.name, self._host, self._workers[slot]))

    def _on_message(self, slot: int, message: Message | None) -> None:
        run = self._at_work.get(slot)
        if run is None:  # the end of a slot for which there are no more runs
            return
        if message is None:
            workers = self._workers.pop(slot)
            self._end(slot, {"failed": self._places.close(slot, at_once=False), "is_users": False})
            self._open(workers)
        elif "note" in message:
            self._observers.on_note(message["note"])
        elif "started" in message:
            self._about(run.name)
            self._observers.on_start(self._folder / run.name, run.loaded)
        elif "round" in message:
            self._about(run.name)
            self._observers.on_round(round_finished(message["round"]))
        else:
            self._end(slot, message)
            self._begin_next(slot)

    def _end(self, slot: int, message: Message) -> None:
        name = self._at_work.pop(slot).name
        if "ended" in message:  # perhaps in another folder, on another machine
            message = {"ended": {**message["ended"], "run_dir": str(self._folder / name)}}
        self._outcomes.add(name, message)
        self._about(name, has_ended=True)
        self._observers.on_end(message.get("ended"))


class RunProcesses:
    """Processes of this machine (`scenarios.experiment.run_process`), which share the workers of one run in turn."""

    def __init__(self, most: int) -> None:
        self._parallel = most
        self._processes: dict[int, ChildProcess] = {}

    def shares(self, host: Host, runs: int) -> list[int]:
        """The workers of each process: those of ``host``, shared out; at least one each."""
        if runs and self._parallel > host.workers:
            note = f"{host.workers} workers: at most as many runs at a time, not {self._parallel}"
            Observers(host.observers).on_note(note)
        count = min(self._parallel, host.workers, runs)
        return [host.workers // count + (number < host.workers % count) for number in range(count)]

    def open(self, slot: int, on_message: OnMessage) -> None:
        self._processes[slot] = ChildProcess(RUN_PROCESS, env=environment())
        self._processes[slot].channel.listen(on_message)

    def begin(self, slot: int, request: ProcessRun | None) -> None:
        self._processes[slot].channel.send({"run": request})

    def stop(self, slot: int, why: str) -> None:
        self._processes[slot].channel.send({"stop": why})

    def close(self, slot: int, at_once: bool) -> str:
        return f"its process {how_ended(self._processes.pop(slot).end(0.0 if at_once else END_SECONDS))}"


class ProcessRun(TypedDict):
    """A run for `scenarios.experiment.run_process`, as values that JSON has."""

    name: str
    path: str
    scenario: dict[str, TomlValue]
    """Resolved"""
    scenario_name: str
    needs: dict[str, float]
    enough: dict[str, float]
    out: str
    device: str
    workers: int


def run_request(run: PlannedRun, path: Path, host: Host, workers: int) -> ProcessRun:
    """A run in a process of its own."""
    return {
        "name": run.name,
        "path": str(path),
        "scenario": run.loaded.scenario.model_dump(),
        "scenario_name": run.loaded.name,
        "needs": dict(run.needs),
        "enough": dict(run.enough),
        "out": str(host.out),
        "device": host.device,
        "workers": workers,
    }


def round_message(progress: RoundFinished) -> Message:
    """A round's progress as values that JSON has."""
    chosen, logged = list(progress.chosen.items()), dict(progress.logged)
    return {**vars(progress), "row": list(progress.row), "chosen": chosen, "logged": logged}


def round_finished(message: Message) -> RoundFinished:
    """The progress of a `round_message`."""
    return RoundFinished(**{**message, "row": RoundRow._make(message["row"]), "chosen": dict(message["chosen"])})
