"""Downloads beside uploads in a home whose link is slower in one direction.

Seen on Linux 6.18 with cubic, from 2:1 to 1000:1: rounds are predicted 7 % short to 6 % long (medians of two to four
repetitions), each direction alone up to 31 % short. Downloads went at 1 to 4.5 times the uplink's rate together, and in
long rounds behind links of 20 Mbit/s of their own at more than four times that rate each.

Where the queue is in the sending host, as behind a shaper of its own, Linux keeps it short and windows grow beyond it:
there downloads regain their rate after ten seconds, and rounds are predicted up to 22 % long. Queues of less than half
of what the path holds are another matter: cubic does not fill the link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from costmodel.config import Transport
from costmodel.network.links import Links
from costmodel.visits.work import Work
from tests.network.lab import Lab
from tests.network.measure import Sent, both_directions, error_percent
from tests.network.predict import Doubles, clock

pytestmark = pytest.mark.timeout(300)

REPETITIONS = 3
BAR_PERCENT = 12.0
"""Repetitions of one cell vary by as much: 23.5 to 26.3 s at 100 ms"""


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
    Case(10, 5, 0.03, 128, (4,) * 2, (2.5,) * 2),
    Case(50, 5, 0.03, 128, (4,) * 3, (2.5,) * 2),
    Case(50, 5, 0.03, 128, (4,) * 3, (2.5,) * 2, own=8),
    Case(50, 5, 0.03, 128, (4,) * 3, (2.5,) * 2, own=16),
    Case(50, 5, 0.03, 128, (2,) * 8, (2.5,) * 2),
    Case(200, 5, 0.03, 128, (6,) * 3, (2.5,) * 2),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_round_ends_when_predicted(
    case: Case, make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    clients, down, up = len(case.downloads) + len(case.uploads), case.down * 1e6, case.up * 1e6
    own = (case.own * 1e6,) * clients
    payloads = [[int(n * 1e6) for n in each] for each in (case.downloads, case.uploads)]
    with make_lab(case.rtt, own, home_down=down, home_up=up, queue_nbytes=1000 * case.queue) as lab:
        runs = [both_directions(lab, *payloads) for _ in range(REPETITIONS)]
    measured = np.array([_end(*run) for run in runs])
    links = Links(site_down=(down,), site_up=(up,), transport=Transport(queue=1000 * case.queue))
    predicted = {
        "model": [_predicted(*run, links, case) for run in runs],
        "each direction alone": [_alone(*run, links, case) for run in runs],
    }
    errors = {name: float(np.median(error_percent(np.array(of), measured))) for name, of in predicted.items()}
    rounds = " ".join(f"{seconds:.1f}" for seconds in measured)
    show(f"\n{case}, rounds of {rounds} s: " + "; ".join(f"{name} {error:+.1f} %" for name, error in errors.items()))
    cell(float(np.median(predicted["model"])), float(np.median(measured)))
    assert abs(errors["model"]) <= BAR_PERCENT
    assert errors["each direction alone"] < errors["model"]


def _end(down: Sent, up: Sent) -> float:
    return float(max(down.finish.max(), up.finish.max()) - min(down.start.min(), up.start.min()))


def _predicted(down: Sent, up: Sent, links: Links, case: Case) -> float:
    works = [Work(nbytes, 0, 0.0) for nbytes in down.nbytes] + [Work(0, nbytes, 0.0) for nbytes in up.nbytes]
    start = np.concatenate([down.start, up.start])
    return float(_ends(start, works, links, case).max() - start.min())


def _alone(down: Sent, up: Sent, links: Links, case: Case) -> float:
    downloads = _ends(down.start, [Work(nbytes, 0, 0.0) for nbytes in down.nbytes], links, case)
    uploads = _ends(up.start, [Work(0, nbytes, 0.0) for nbytes in up.nbytes], links, case)
    return float(max(downloads.max(), uploads.max()) - min(down.start.min(), up.start.min()))


def _ends(start: Doubles, works: Sequence[Work], links: Links, case: Case) -> Doubles:
    rates = (min(case.own * 1e6, 1e10),) * len(works)
    return clock(start, works, rates, rates, links, case.rtt).end
