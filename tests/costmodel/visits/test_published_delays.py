"""The delays of NVFlare's edge example on the clock, which its simulated devices sleep through.

NVIDIA/NVFlare, examples/advanced/edge/README.md and jobs/pt_job.py (2025): each of 16 devices is of one of three kinds,
drawn once, and sleeps for a Gaussian of 100, 200 or 400 s and a hundredth of that as deviation, and for one of 5 s and
1 s, after each training. Both are one time of computing here, so that a jitter has the deviation of the slowest kind.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.fleet.devices import devices
from costmodel.fleet.inputs import FleetInputs
from costmodel.visits.timeline import solve
from costmodel.visits.work import Work, Works
from tests.costmodel.worlds import fleet_of

STEPS = 4 * math.ceil(50_000 / 16 / 4)
"""4 epochs of a sixteenth of CIFAR-10 in batches of 4: 3,128 steps"""
MEANS = {"fast": 105.0, "middle": 205.0, "slow": 405.0}
JITTER = math.hypot(4, 1) / 405
ROUNDS = 400


def durations(kinds: list[str]) -> NDArray[np.float64]:
    """(rounds, devices) seconds of each visit, whose messages take no time."""
    rows = {
        name: replace(devices()["hierfavg-client"], name=name, step_seconds=mean / STEPS)
        for name, mean in MEANS.items()
    }
    inputs = FleetInputs(devices=rows)
    fleet = fleet_of(len(kinds), inputs, devices=tuple(kinds), networks={"hierfavg-edge": 1.0}, jitter=JITTER)
    works = Works.of([Work(0, 0, 0.0, STEPS)] * len(kinds))
    clients = range(len(kinds))
    ends = [
        solve([0.0] * len(kinds), works, fleet.conditions(clients, round), fleet.links).up_end
        for round in range(ROUNDS)
    ]
    return np.array(ends)


def test_devices_take_238_s_on_average_and_the_last_of_three_slow_ones_408_s() -> None:
    took = durations(["fast"] * 3 + ["middle"] * 3 + ["slow"] * 3)
    assert took.mean(axis=0)[[0, 3, 6]] == pytest.approx([105, 205, 405], rel=2e-3)
    assert took.mean() == pytest.approx(238.3, abs=0.2)  # the README: (400 + 200 + 100) / 3 + 5
    # The maximum of three Gaussians is 3 / (2 sqrt(pi)) deviations above their mean: 4.12 s each, or 4 s in the README,
    # which leaves out the deviation of the link: 408.4.
    assert took.max(axis=1).mean() == pytest.approx(405 + 1.5 / math.sqrt(math.pi) * math.hypot(4, 1), abs=0.5)
    assert 405 + 1.5 / math.sqrt(math.pi) * 4 == pytest.approx(408.4, abs=0.05)


def test_the_160th_update_of_sixteen_devices_that_do_not_wait_comes_after_1995_s() -> None:
    # After 1890 s five fast, five middle and six slow devices have sent 18 x 5 + 9 x 5 + 4 x 6 = 159 updates; the fast
    # ones send their 19th at 1995 s. The README expects 2383 s, as if updates came at the pace of the mean device.
    took = durations(["fast"] * 5 + ["middle"] * 5 + ["slow"] * 6)[:30]
    assert np.sort(took.cumsum(axis=0), axis=None)[159] == pytest.approx(1995, abs=10)
