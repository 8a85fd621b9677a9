"""Uploads that share a link whose queue is shorter than their paths, begin one after the other, or lose segments.

Fair shares say that the link is full to the end. Seen on Linux 6.18 with cubic and reno: of 37 medians of three rounds,
35 are predicted within 15 % by windows, while fair shares are up to 61 % short. The others are a queue of 16 kB, a
twentieth of the longest path (-21 %), and two uploads with round trips of 10 and 100 ms at 50 Mbit/s (-28 %).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from costmodel.config import Transport
from costmodel.network.links import Links
from costmodel.visits.timeline import solve
from costmodel.visits.work import Work, Works
from tests.network.lab import Lab
from tests.network.measure import Sent, error_percent, upload
from tests.network.predict import idle_conditions

pytestmark = pytest.mark.timeout(300)

REPETITIONS = 3
DRAWS = 5
"""Draws of losses in the model"""
BAR_PERCENT = 20.0
"""Repetitions of one round vary by as much: 8.1 to 11.2 s over a queue of 64 kB"""


@dataclass(frozen=True)
class Case:
    """The link's rate in Mbit/s, each upload's round trip in seconds, the queue in kB, MB each, seconds between starts,
    and the probability that a frame is lost."""

    rate: float
    rtts: tuple[float, ...]
    queue: int
    megabytes: float
    later: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        trips = [f"{1e3 * rtt:.0f}" for rtt in sorted({self.rtts[0], self.rtts[-1]})]
        text = f"{len(self.rtts)} uploads, {self.rate:g} Mbit/s {' to '.join(trips)} ms, {self.queue} kB"
        return text + (f", {self.later:g} s apart" if self.later else "") + (f", {self.loss:.1%}" if self.loss else "")


def spread(first: float, last: float, count: int) -> tuple[float, ...]:
    """Round trips from ``first`` to ``last``."""
    return tuple(np.linspace(first, last, count).tolist())


CASES = (
    Case(20, spread(0.01, 0.12, 5), 32, 3),
    Case(20, spread(0.01, 0.12, 5), 128, 3),
    Case(20, spread(0.01, 0.12, 5), 1000, 3),
    Case(20, (0.1,) * 5, 32, 3),
    Case(20, spread(0.005, 0.15, 12), 500, 2, later=0.5),
    Case(50, spread(0.005, 0.15, 12), 500, 5, later=0.5),
    Case(20, (0.06,) * 5, 500, 3, loss=0.003),
    Case(20, (0.03,) * 12, 500, 2, loss=0.003),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_round_ends_when_windows_say(
    case: Case, make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    count, rate = len(case.rtts), case.rate * 1e6
    # Frames are lost in the delay line of the server, which therefore needs a part of the round trip.
    common = case.rtts[0] if case.loss else 0.0
    own = [] if case.loss else list(case.rtts)
    with make_lab(
        common,
        (float("inf"),) * count,
        server_up=rate,
        queue_nbytes=1000 * case.queue,
        loss=case.loss,
        client_rtts=own,
    ) as lab:
        starts = [case.later * place for place in range(count)]
        runs = [upload(lab, [int(1e6 * case.megabytes)] * count, starts) for _ in range(REPETITIONS)]
    errors = {sharing: _error(case, runs, sharing) for sharing in ("windows", "fair")}
    rounds = " ".join(f"{run.round_seconds:.1f}" for run in runs)
    show(f"\n{case}, rounds of {rounds} s: " + "; ".join(f"{name} {error:+.1f} %" for name, error in errors.items()))
    measured = float(np.median([run.round_seconds for run in runs]))
    cell(measured * (1 + errors["windows"] / 100), measured)
    # Of some cells one round in three lasts half as long again: the law is missed if it is far from all of them.
    predicted = measured * (1 + errors["windows"] / 100)
    off = [float(error_percent(predicted, run.round_seconds)) for run in runs]
    assert min(off) <= BAR_PERCENT and max(off) >= -BAR_PERCENT


def _error(case: Case, runs: list[Sent], sharing: str) -> float:
    """The error of the median round, in percent; a connection keeps its window from one round to the next."""
    ends = [end for draw in range(DRAWS) for end in _rounds(case, runs, sharing, draw)]
    measured = float(np.median([run.round_seconds for run in runs]))
    return float(error_percent(float(np.median(ends)), measured))


def _rounds(case: Case, runs: list[Sent], sharing: str, draw: int) -> list[float]:
    count, rate = len(case.rtts), case.rate * 1e6
    transport = Transport(queue=1000 * case.queue, sharing="windows" if sharing == "windows" else "fair")
    links, threshold, ends = Links(up=rate, transport=transport), np.full((count, 2), np.inf), list[float]()
    for number, run in enumerate(runs):
        seeds = np.arange(2 * count).reshape(-1, 2) + 1000 * (draw * len(runs) + number)
        conditions = idle_conditions(run.start, (1e10,) * count, (1e10,) * count, case.rtts)
        conditions = replace(conditions, loss=np.full(count, case.loss), loss_seed=seeds, threshold=threshold)
        timeline = solve(run.start, Works.of([Work(0, nbytes, 0.0) for nbytes in run.nbytes]), conditions, links)
        threshold = np.stack((timeline.threshold_down, timeline.threshold_up), axis=1)
        ends.append(float(timeline.end.max() - run.start.min()))
    return ends
