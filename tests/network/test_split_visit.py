"""A visit of a model that is cut, over a real link: 100 steps, each a message up and one down.

Steps begin as soon as the gradient of the one before is there; the device computes for 5 ms of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from costmodel.network.links import Links
from costmodel.visits.timeline import solve
from costmodel.visits.work import StepExchange, Work, Works
from tests.costmodel.worlds import connected
from tests.network.lab import Lab
from tests.network.peer import SERVER

pytestmark = pytest.mark.timeout(400)

STEPS = 100
COMPUTES = 0.005
BAR_PERCENT, LOSSY_PERCENT = 7.0, 25.0
"""Without losses, and with: these differ from run to run"""
WARM_UP = 10
"""Steps in which the windows of both senders grow"""
CASES = (
    (20e6, 0.060, 20_000, 0.0),
    (100e6, 0.060, 20_000, 0.0),
    (20e6, 0.010, 100_000, 0.0),
    (20e6, 0.060, 100_000, 0.01),
)
"""(bit/s, round trip, bytes of a message's vectors, probability that a frame is lost)"""


@dataclass(frozen=True)
class Case:
    """All steps of one link."""

    rate: float
    rtt: float
    nbytes: int
    loss: float
    measured: float
    predicted: float

    @property
    def error_percent(self) -> float:
        return 100 * (self.predicted / self.measured - 1)


def steps_over(lab: Lab, nbytes: int) -> tuple[float, int, int]:
    """(seconds of all steps after the warm-up, bytes of a message down and up)."""
    client = lab.clients[0]
    turns = WARM_UP + STEPS
    of_client: list[list[Any]] = [["connect"], ["receive", 1]]
    for _ in range(turns):
        of_client += [["sleep", COMPUTES], ["send", [[0, nbytes]]], ["receive", 1]]
    of_server: list[list[Any]] = [["greet", 1], ["send", [[0, 1000]]]]
    for _ in range(turns):
        of_server += [["receive", 1], ["send", [[0, nbytes]]]]
    seen = lab.run({client: of_client, SERVER: of_server})[client]
    arrivals = [each[0] for step, each in zip(of_client, seen, strict=True) if step[0] == "receive"]
    sent = [each[0] for step, each in zip(of_client, seen, strict=True) if step[0] == "send"]
    return arrivals[-1][1] - arrivals[WARM_UP][1], arrivals[-1][2], sent[-1][2]


def predicted(rate: float, rtt: float, down: int, up: int, loss: float) -> float:
    """Seconds of the steps, by the clock: a device of 1 FLOP/s that computes 0.005 FLOP a step."""
    exchange = StepExchange(STEPS, STEPS * down, STEPS * up, 0.0)
    work = Work(STEPS * down, STEPS * up, STEPS * COMPUTES, exchange=exchange)
    who = connected(1, rtt=rtt, down=rate, up=rate, flops_per_second=1.0, step_seconds=0.0, loss=loss)
    return float(solve([0.0], Works.of([work]), who, Links()).up_end[0])


def test_a_hundred_steps_take_as_long_as_their_chain(
    make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    found = []
    for rate, rtt, nbytes, loss in CASES:
        measured, down, up = steps_over(make_lab(rtt, [rate], loss=loss), nbytes)
        found.append(Case(rate, rtt, nbytes, loss, measured, predicted(rate, rtt, down, up, loss)))
        cell(found[-1].predicted, measured)
    show("\nA hundred steps of a model that is cut: measured, predicted")
    for one in found:
        where = f"{one.rate / 1e6:3.0f} Mbit/s {one.rtt * 1e3:3.0f} ms {one.nbytes / 1e3:4.0f} kB {one.loss:.0%} lost"
        show(f"{where}  {one.measured:6.3f} s  {one.predicted:6.3f} s  {one.error_percent:+5.1f} %")
    assert all(abs(one.error_percent) <= (LOSSY_PERCENT if one.loss else BAR_PERCENT) for one in found)
