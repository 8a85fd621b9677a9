"""Messages that share the server's link, behind links of their own: max-min fair, with headers and slow start.

TCP shares a link evenly only over time: single clients were seen up to 30 % off, where the round, which waits for the
slowest, was within 4 %. In all cases but F the slowest is held by its own link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tests.network.lab import Lab
from tests.network.measure import Doubles, Sent, download, error_percent, upload
from tests.network.predict import ALONE, EQUAL, MODEL, Model

pytestmark = pytest.mark.timeout(180)

REPETITIONS = 3
FOOLED_PERCENT = 30.0
CLIENTS_BAR_PERCENT = 16.0
FEW = (10, 20, 40, 60)
MANY = (3, 3, 3, 4, 20, 40, 50, 60)


@dataclass(frozen=True)
class Case:
    """Rates in Mbit/s, payloads in MB, and what is asked of the model."""

    name: str
    way: str
    caps: tuple[float, ...]
    capacity: float
    megabytes: tuple[float, ...]
    rtt: float
    bar_percent: float
    fooled: tuple[str, ...]
    """The poorer models that must be off by more than `FOOLED_PERCENT` for some client."""


CASES = (
    # Here the links together are only half as fast again as the server's: who ignores that is off by a third at most.
    Case("A", "down", (5, 15, 40, 60), 80, (3, 8, 11, 22), 0.030, 7, (EQUAL,)),
    Case("A", "up", (5, 15, 40, 60), 80, (3, 8, 11, 22), 0.030, 7, (EQUAL,)),
    Case("B", "down", FEW, 80, (5,) * 4, 0.030, 7, (ALONE,)),
    Case("E", "down", MANY, 80, (3,) * 8, 0.030, 7, (ALONE, EQUAL)),
    Case("F", "up", MANY, 40, (3,) * 4 + (8,) * 4, 0.030, 7, (ALONE, EQUAL)),
    Case("G", "down", MANY, 80, (3,) * 8, 0.100, 7, (ALONE, EQUAL)),
    # Here 40 / 4 is what everybody gets, so that an equal split is right.
    Case("H", "down", FEW, 40, (1,) * 4, 0.100, 10, (ALONE,)),
)


@dataclass(frozen=True)
class Outcome:
    """Median errors of one model, in percent: of the round, and of each client."""

    of_round: float
    of_clients: Doubles

    @property
    def worst(self) -> float:
        return float(np.abs(self.of_clients).max())

    @property
    def mean(self) -> float:
        return float(np.abs(self.of_clients).mean())

    def __str__(self) -> str:
        return f"{self.of_round:+.1f} % (clients {self.mean:.1f}, worst {self.worst:.1f})"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.way}")
def test_the_round_ends_when_predicted(
    case: Case, make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    capacity = case.capacity * 1e6
    caps = [cap * 1e6 for cap in case.caps]
    send = download if case.way == "down" else upload
    with make_lab(case.rtt, caps, server_down=capacity, server_up=capacity) as lab:
        runs = [send(lab, [int(n * 1e6) for n in case.megabytes]) for _ in range(REPETITIONS)]
    outcomes = {name: _outcome(name, case, runs) for name in (MODEL, ALONE, EQUAL)}
    show(_row(case, runs, outcomes))
    measured = float(np.median([run.round_seconds for run in runs]))
    cell(measured * (1 + outcomes[MODEL].of_round / 100), measured)
    assert abs(outcomes[MODEL].of_round) <= case.bar_percent
    assert outcomes[MODEL].mean <= CLIENTS_BAR_PERCENT
    assert [name for name in case.fooled if outcomes[name].worst <= FOOLED_PERCENT] == []
    assert [name for name in case.fooled if outcomes[name].mean <= outcomes[MODEL].mean] == []


def _outcome(name: str, case: Case, runs: list[Sent]) -> Outcome:
    caps = [cap * 1e6 for cap in case.caps]
    finish = [Model(name).shared(run.start, run.nbytes, caps, case.capacity * 1e6, case.rtt) for run in runs]
    of_round = [
        error_percent(f.max() - run.start.min(), run.round_seconds) for f, run in zip(finish, runs, strict=True)
    ]
    of_clients = [error_percent(f - run.start, run.seconds) for f, run in zip(finish, runs, strict=True)]
    return Outcome(float(np.median(of_round)), np.median(of_clients, axis=0))


def _row(case: Case, runs: list[Sent], outcomes: dict[str, Outcome]) -> str:
    rounds = " ".join(f"{run.round_seconds:.2f}" for run in runs)
    errors = "; ".join(f"{name} {outcome}" for name, outcome in outcomes.items())
    return f"\n{case.name} {case.way} {case.rtt * 1e3:.0f} ms, rounds of {rounds} s: {errors}"
