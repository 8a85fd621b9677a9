"""A whole round of four clients: a real `Train` down, time to compute, a real `Update` up, against virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from costmodel.network.links import Links
from costmodel.visits.work import Work
from tests.network.lab import Lab
from tests.network.measure import Sent, error_percent, whole_round
from tests.network.predict import ABRUPT, ALONE, MODEL, Model, clock

pytestmark = pytest.mark.timeout(180)

DOWN = (10e6, 20e6, 40e6, 60e6)
UP = (5e6, 10e6, 20e6, 30e6)
SERVER_DOWN, SERVER_UP = 40e6, 20e6
RTT = 0.030
COMPUTE_SECONDS = (0.2, 1.0, 0.8, 0.6)
PAYLOAD_NBYTES = 1_000_000
REPETITIONS = 5
BAR_PERCENT = 5.0


def test_virtual_and_real_rounds_take_as_long(
    make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    with make_lab(RTT, DOWN, UP, SERVER_DOWN, SERVER_UP) as lab:
        rounds = [whole_round(lab, PAYLOAD_NBYTES, COMPUTE_SECONDS) for _ in range(REPETITIONS)]
    real = np.array([up.finish.max() - down.start.min() for down, up in rounds])
    show(f"\nWhole rounds of {' '.join(f'{seconds:.3f}' for seconds in real)} s")
    errors = {}
    for name in (MODEL, ALONE, ABRUPT):
        virtual = np.array([_virtual(Model(name), down, up) for down, up in rounds])
        each = error_percent(virtual, real)
        errors[name] = abs(float(np.median(each)))
        if name == MODEL:
            cell(float(np.median(virtual)), float(np.median(real)))
        show(f"{name}: {np.median(each):+.1f} % (each {' '.join(f'{error:+.1f}' for error in each)})")
    assert errors[MODEL] <= BAR_PERCENT
    assert errors[ALONE] > BAR_PERCENT


def _virtual(model: Model, down: Sent, up: Sent) -> float:
    """Seconds of the round by the model, which knows of the real one only when it began."""
    if model.name == MODEL:
        works = [
            Work(to, back, seconds) for to, back, seconds in zip(down.nbytes, up.nbytes, COMPUTE_SECONDS, strict=True)
        ]
        visits = clock(down.start, works, DOWN, UP, Links(SERVER_DOWN, SERVER_UP), RTT)
        return float(visits.up_end.max() - down.start.min())
    received = model.shared(down.start, down.nbytes, DOWN, SERVER_DOWN, RTT)
    updated = model.shared(received + COMPUTE_SECONDS, up.nbytes, UP, SERVER_UP, RTT)
    return float(updated.max() - down.start.min())
