"""Callbacks: functions and objects of the user's that are told of a run's rounds, and may stop it.

A callback runs in the process and thread that called `fedbr.run`, between two rounds, and changes no result. An error
in one ends the run after the round that it was told of; the run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.rounds.amounts import BYTES, ENERGY, VIRTUAL_SECONDS
from coordinator.rounds.run import RoundFinished, RunFailed
from edge.protocol.plugins import error_text
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.run.observer import RunObserver


@dataclass
class CommittedRound:
    """A round that has been committed to the ledger, as callbacks are given it."""

    folder: Path
    """Of the run"""
    round: int
    """Counted from 1; an evaluation after the last round has that round's number"""
    is_whole: bool
    """False for a round that was cut by a limit, and for an evaluation after the last round"""
    accuracy: float | None
    """On the test set, in [0, 1]; None if the model was not evaluated after this round"""
    test_loss: float | None
    train_loss: float | None
    """Mean over visits of their mean local cross-entropy"""
    participants: int
    """Training visits that counted"""
    virtual_seconds: float
    """Virtual time at the end of the round"""
    bytes_down: int
    """Of all clients, in this round, as ``bytes_up``, ``flops`` and ``joules``"""
    bytes_up: int
    flops: float
    joules: float
    total_bytes_down: int
    """Since the start of the run, as ``total_bytes_up``"""
    total_bytes_up: int
    logged: Mapping[str, float | None]
    """What the method has logged: ``server/NAME`` -> number, ``clients/NAME`` -> mean over visits that counted; None if
    no number was finite"""
    ledger_row: Mapping[str, Any] = field(repr=False)
    """Column -> value of the ledger's table ``rounds``, where ``round`` is counted from 0"""
    is_stopped: bool = field(default=False, repr=False)
    """Whether a callback has called `stop`"""

    def stop(self) -> None:
        """End the run after this round, as Ctrl-C would; `fedbr.resume` goes on with it.

        So it ends a sweep or comparison; the same call goes on with it.
        """
        self.is_stopped = True

    def numbers(self) -> dict[str, float]:
        """Name -> value of all fields that are amounts and known, and of `logged`, for other tools."""
        values = {name: getattr(self, name) for name in _AMOUNTS} | dict(self.logged)
        return {name: float(value) for name, value in values.items() if value is not None}


_OF_ROW = ("accuracy", "test_loss", "train_loss", "participants", *BYTES.columns, "flops", *ENERGY.columns)
_AMOUNTS = (*_OF_ROW, VIRTUAL_SECONDS.key, "total_bytes_down", "total_bytes_up")


class Callback:
    """Told of a run, or of each run of a sweep or comparison. Subclasses can customise by overriding

    * `on_start`: before the first round, and before the next one of a run that is resumed;
    * `on_round`: after each round; returning False stops the run, as `CommittedRound.stop` does;
    * `on_end`: once, at the end, however the run ended, if `on_start` was called: not for a run that failed before.

    Runs that are made at the same time take turns: `CommittedRound.folder` and ``run_dir`` of the summary tell them
    apart.
    """

    def on_start(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        """``folder``: of the run; ``scenario``: resolved, with every default."""

    def on_round(self, round: CommittedRound) -> object:
        """A round has been committed."""

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """``summary``: as of `fedbr.Run.summary`; None if the run failed, or was stopped before its first round.

        Of several at the same time, one that failed has ``run_dir``, and ``stopped_by`` None.
        """


OnRound = Callable[[CommittedRound], object] | Callback
Callbacks = OnRound | Iterable[OnRound]
"""A function of a `CommittedRound`, a `Callback`, or several"""


class _FunctionCallback(Callback):
    def __init__(self, function: Callable[[CommittedRound], object]) -> None:
        self._function = function

    def on_round(self, round: CommittedRound) -> object:
        return self._function(round)


class CallbackObserver(RunObserver):
    """Tells callbacks of a run; ends it by their wish, or after an error in one, of which the others know nothing."""

    def __init__(self, callbacks: Callbacks) -> None:
        several = [callbacks] if callable(callbacks) or isinstance(callbacks, Callback) else callbacks
        self._names, self._callbacks = list[str](), list[Callback]()
        for each in several if isinstance(several, Iterable) else [several]:
            if not (callable(each) or isinstance(each, Callback)):
                why = "must be a function of a CommittedRound, a fedbr.Callback, or several"
                raise ScenarioError(f"on_round = {each!r}: {why}")
            self._names.append(str(getattr(each, "__qualname__", type(each).__qualname__)))
            self._callbacks.append(each if isinstance(each, Callback) else _FunctionCallback(each))
        self._error: tuple[str, Exception] | None = None
        self.is_stopped = False
        """Whether a callback wants no further round, or has failed"""
        self._name = ""
        self._folders: dict[str, Path] = {}
        """Name -> folder of runs that work; of runs that follow each other, the one has no name"""

    def about(self, name: str) -> None:
        """The next calls are about this run of several at a time."""
        self._name = name

    def on_start(self, folder: Path, loaded: Loaded) -> bool:
        scenario = loaded.scenario.model_dump()
        self._folders[self._name] = folder
        self._tell(lambda callback: callback.on_start(folder, scenario))
        return self.is_stopped

    def on_round(self, progress: RoundFinished) -> bool:
        row = progress.row
        is_after = row.round == progress.rounds and not row.busy_s
        round = CommittedRound(
            folder=self._folders[self._name],
            round=row.round if is_after else row.round + 1,
            is_whole=row.round < progress.rounds and not row.cut_by,
            virtual_seconds=row.end_s,
            **{name: getattr(row, name) for name in _OF_ROW},
            total_bytes_down=progress.bytes_down,
            total_bytes_up=progress.bytes_up,
            logged=progress.logged,
            ledger_row=row._asdict(),
        )
        answers = self._tell(lambda callback: callback.on_round(round))
        # numpy's False is what comparisons of its numbers give; None and 0 stop nothing
        is_false = any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)
        self.is_stopped |= round.is_stopped or is_false
        return self.is_stopped

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        folder = self._folders.pop(self._name, None)
        if folder is not None:
            failed = {"run_dir": str(folder), "stopped_by": None} if self._name else None
            self._tell(lambda callback: callback.on_end(failed if summary is None else summary))

    def check(self, folder: Path | None, way_on: str = "") -> None:
        """RunFailed from the first error of a callback, if there was one.

        ``folder``: of the run or runs, if they are kept; ``way_on``: how to go on with them.
        """
        if self._error is None:
            return
        name, error = self._error
        kept = "" if folder is None else f"; {way_on}\nrun folder: {folder}"
        raise RunFailed(f"callback {name}: {error_text(error)}{kept}") from error

    def _tell(self, call: Callable[[Callback], object]) -> list[object]:
        answers = []
        for name, callback in zip(self._names, self._callbacks, strict=True):
            try:
                answers.append(call(callback))
            except Exception as error:  # a user's callback may raise anything; `check` raises it after the run's end
                self._error = self._error or (name, error)
                self.is_stopped = True
        return answers
