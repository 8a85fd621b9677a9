"""The user's stop reaches a run that computes virtual times, and nothing but these."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coordinator.workers.task import Stopped
from costmodel.clock import Clock
from costmodel.config import FleetConfig
from costmodel.fleet.fleet import Fleet
from edge.protocol.rng import keyed_generator
from scenarios.run.host import StopFlag
from scenarios.run.runner import StoppableClock

CALLS: dict[str, tuple[Any, ...]] = {
    "solve": ([], [], None),
    "solve_beside": (None, [], [], None),
    "begin": (None, None, 0),
    "next": (),
    "first_available": ([],),
}
"""Method -> arguments"""


def told_to_end(then: Callable[[], None]) -> Callable[..., None]:
    """A long computation, in which the signal to end comes, and what is done after that."""

    def compute(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        then()

    return compute


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_ends_a_long_computation_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on: list[str] = []
    monkeypatch.setattr(Clock, name, told_to_end(lambda: went_on.append(name)))
    fleet = Fleet.build(1, FleetConfig(), streams=partial(keyed_generator, 0))
    flag = StopFlag()
    with flag.watching(), pytest.raises(Stopped):
        getattr(StoppableClock(fleet), name)(*CALLS[name])
    assert (flag(), went_on) == (True, [])
