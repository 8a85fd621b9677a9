"""Whoever watches runs: displays, time limits, callbacks and trackers, studies that need no more, other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from coordinator.records.schema import HostEvent
    from coordinator.rounds.run import RoundFinished
    from scenarios.config.load import Loaded
    from scenarios.run.run_summary import RunSummary


class RunObserver:
    """Is told of runs, one after another, in the thread that makes them. Subclasses can customise by overriding

    * `on_start`: a run begins or goes on, in its folder;
    * `on_note`: something that its author should know, before training;
    * `on_event`: a worker has come or gone;
    * `on_round`: a round has been committed;
    * `on_end`: the run has ended with this summary, or None if it failed or was stopped before its first round;
    * `__enter__` and `__exit__`: around all runs of a call or command.

    True from `on_start` or `on_round` ends the run after its last round, as Ctrl-C does. An error ends it at once; what
    was committed stays.
    """

    def on_start(self, folder: Path, loaded: Loaded) -> bool | None: ...

    def on_note(self, note: str) -> None: ...

    def on_event(self, event: HostEvent) -> None: ...

    def on_round(self, progress: RoundFinished) -> bool | None: ...

    def on_end(self, summary: RunSummary | None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Observers(RunObserver):
    """The observers of one run, in their order; and its stop flag, which they or the user set."""

    def __init__(self, observers: Sequence[RunObserver], stopped: Callable[[], bool] = lambda: False) -> None:
        self._all, self._stopped = observers, stopped
        self._is_enough = False

    def __call__(self) -> bool:
        return self._is_enough or self._stopped()

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        for each in self._all:
            self._is_enough |= bool(each.on_start(folder, loaded))

    def on_note(self, note: str) -> None:
        for each in self._all:
            each.on_note(note)

    def on_event(self, event: HostEvent) -> None:
        for each in self._all:
            each.on_event(event)

    def on_round(self, progress: RoundFinished) -> None:
        for each in self._all:
            self._is_enough |= bool(each.on_round(progress))

    def on_end(self, summary: RunSummary | None) -> None:
        for each in self._all:
            each.on_end(summary)


class InnerRun(RunObserver):
    """Tells others the notes and events of a run that is part of something else, and that they need not see."""

    def __init__(self, others: Sequence[RunObserver]) -> None:
        self._others = Observers(others)

    def on_note(self, note: str) -> None:
        self._others.on_note(note)

    def on_event(self, event: HostEvent) -> None:
        self._others.on_event(event)


class NotePrinter(RunObserver):
    """Prints notes for a scenario's author to stderr, each of them once in a call or command."""

    def __init__(self) -> None:
        self._known = set[str]()

    def __call__(self, note: str) -> None:
        if note not in self._known:
            print(f"fedbr: note: {note}", file=sys.stderr)
        self._known.add(note)

    def on_note(self, note: str) -> None:
        self(note)
