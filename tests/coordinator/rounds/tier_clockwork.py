"""Runs whose aggregators and clients are a clockwork, for the tests of rounds with tiers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.rounds.synchronous import run_rounds
from costmodel.tiers import TierClock, TierMessages
from edge.protocol.config import ModelConfig
from tests.coordinator.rounds.clockwork import BRIEF, FOUR, IID
from tests.toy import Run, federation, store

TWO = {"count": 2, "aggregate": math.inf}
UP_NBYTES, DOWN_NBYTES = 5333, 5344
"""Of messages between aggregators and the server"""
CYCLE = 2 * (UP_NBYTES + DOWN_NBYTES)
"""Bytes of all of these from one step of the server to the next"""
SMALL: dict[str, Any] = {"train": BRIEF, "partition": IID, "model": ModelConfig("digits-cnn", width=2), "rounds": 4}


class Wan(TierClock):
    """Messages between aggregators and the server take literal seconds each: down 1 and 2, up 2 and 4."""

    down_seconds, up_seconds = np.array([1.0, 2.0]), np.array([2.0, 4.0])
    lost: Mapping[tuple[int, int], float] = {}
    """(round, aggregator) whose model is lost on its way up"""
    away: Mapping[int, tuple[float, float]] = {}
    """Aggregator -> times between which it is away"""

    def up(self, level: int, ready: Any, which: Any, nbytes: int, round: int, **more: bool) -> TierMessages:
        messages = self._taking(self.up_seconds, super().up(level, ready, which, nbytes, round, **more))
        lost = np.array([(round, index) in self.lost for index in range(messages.end.size)])
        return replace(messages, end=np.where(lost, math.inf, messages.end))

    def down(self, level: int, begin: Any, which: Any, nbytes: int, round: int, **more: bool) -> TierMessages:
        return self._taking(self.down_seconds, super().down(level, begin, which, nbytes, round, **more))

    @staticmethod
    def _taking(seconds: NDArray[np.float64], messages: TierMessages) -> TierMessages:
        return replace(messages, end=messages.start + seconds)

    def is_there(self, level: int, aggregator: int, time: float) -> bool:
        begin, end = self.away.get(aggregator, (math.inf, math.inf))
        return not begin <= time < end

    def first_there(self, level: int, aggregator: int, time: float) -> float:
        return time if self.is_there(level, aggregator, time) else self.away[aggregator][1]


def ran(folder: Path, wan: Mapping[str, Any] | None = None, aggregators: Mapping[str, Any] = TWO, **how: Any) -> Run:
    """A run whose messages above clients are those of `Wan`."""
    how = {"train": BRIEF, "partition": IID, "rounds": 1, "clients": 4, "seconds": FOUR, **how}
    run = federation(folder, "fedavg", aggregators=aggregators, **how)
    assert run.tiers is not None
    run.tiers.clock.__class__ = Wan
    vars(run.tiers.clock).update(wan or {})
    try:
        return Run(run, run_rounds(run))
    finally:
        store(run).ledger.close()


def rounds(run: Run) -> list[tuple[float, ...]]:
    return run.rows("SELECT start_s, end_s FROM rounds ORDER BY round")


def chain(run: Run) -> list[Any]:
    return run.rows("SELECT chain FROM rounds ORDER BY round")
