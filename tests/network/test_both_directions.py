"""Downloads beside uploads in a home whose link is much slower in one direction.

Seen on Linux 6.18 with cubic, in fifteen settings of 10/1 to 200/20 Mbit/s, 30 and 100 ms, queues of 32 to 250 kB, one
to eight downloads and one to four uploads: rounds 5 % shorter to 9 % longer than predicted (medians of two or three).
Each direction alone would be predicted 15 to 33 % short. Downloads went at 1.5 to 3.8 times the uplink's rate until the
uploads had ended, and behind links of 5 and 20 Mbit/s of their own at 2.5 to 4.8 times that rate each.

Where the queue is in the sending host, as behind a shaper of its own, Linux keeps it short and windows grow beyond it:
there downloads regain their rate after ten seconds, and rounds are predicted up to 22 % long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from costmodel.config import Transport
from costmodel.network.links import Links
from costmodel.visits.work import Work
from tests.network.lab import Lab
from tests.network.measure import Sent, both_directions, error_percent
from tests.network.predict import clock

pytestmark = pytest.mark.timeout(300)

REPETITIONS = 3
BAR_PERCENT = 10.0
SHORT_QUEUE = 3028
"""Bytes of a queue that holds nothing up: each direction alone"""


@dataclass(frozen=True)
class Case:
    """Rates in Mbit/s, the queue in kB, and payloads in MB."""

    down: float
    up: float
    rtt: float
    queue: int
    downloads: tuple[float, ...]
    uploads: tuple[float, ...]
    own: float = math.inf
    """Of each client's own link"""

    def __str__(self) -> str:
        link = f"{self.down:g}/{self.up:g} Mbit/s {self.rtt * 1e3:.0f} ms, queues of {self.queue} kB"
        return f"{link}: {len(self.downloads)} downloads beside {len(self.uploads)} uploads"


CASES = (
    Case(10, 1, 0.03, 32, (5,) * 2, (1,) * 2),
    Case(10, 1, 0.03, 128, (5,) * 2, (1,) * 2),
    Case(10, 1, 0.03, 250, (5,) * 2, (1,) * 2),
    Case(10, 1, 0.1, 128, (5,) * 2, (1,) * 2),
    Case(10, 1, 0.03, 128, (3,) * 4, (1,) * 2),
    Case(20, 2, 0.03, 128, (8,) * 2, (2,) * 2),
    Case(1000, 1, 0.03, 128, (10,) * 4, (1,) * 2, own=20),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_round_ends_when_predicted(case: Case, make_lab: Callable[..., Lab], show: Callable[[str], None]) -> None:
    clients, down, up = len(case.downloads) + len(case.uploads), case.down * 1e6, case.up * 1e6
    own = (case.own * 1e6,) * clients
    payloads = [[int(n * 1e6) for n in each] for each in (case.downloads, case.uploads)]
    with make_lab(case.rtt, own, home_down=down, home_up=up, queue_nbytes=1000 * case.queue) as lab:
        runs = [both_directions(lab, *payloads) for _ in range(REPETITIONS)]
    measured = np.array([_end(*run) for run in runs])
    errors = {}
    for name, queue in (("model", 1000 * case.queue), ("each direction alone", SHORT_QUEUE)):
        links = Links(site_down=(down,), site_up=(up,), transport=Transport(queue=queue))
        errors[name] = float(
            np.median(error_percent(np.array([_predicted(*run, links, case) for run in runs]), measured))
        )
    rounds = " ".join(f"{seconds:.1f}" for seconds in measured)
    show(f"\n{case}, rounds of {rounds} s: " + "; ".join(f"{name} {error:+.1f} %" for name, error in errors.items()))
    assert abs(errors["model"]) <= BAR_PERCENT
    assert errors["each direction alone"] < -BAR_PERCENT


def _end(down: Sent, up: Sent) -> float:
    return float(max(down.finish.max(), up.finish.max()) - min(down.start.min(), up.start.min()))


def _predicted(down: Sent, up: Sent, links: Links, case: Case) -> float:
    works = [Work(nbytes, 0, 0.0) for nbytes in down.nbytes] + [Work(0, nbytes, 0.0) for nbytes in up.nbytes]
    start, rates = np.concatenate([down.start, up.start]), (min(case.own * 1e6, 1e10),) * len(works)
    return float(clock(start, works, rates, rates, links, case.rtt).end.max() - start.min())
