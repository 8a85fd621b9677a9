"""Computing at a speed that changes, by hand: throttling, load, recorded speeds, and absences."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.fleet.availability import RecordedIntervals, Renewal
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad, RecordedSpeed
from costmodel.step_series import StepSeries
from tests.costmodel.worlds import INF, streams

HOT = ComputeSpeed(throttle_after=4.0, throttle_to=0.5)
# Half of the speed from 3 s to 5 s of every 10 s.
BUSY = RecordedSpeed([StepSeries((0.0, 3.0, 5.0), (1.0, 0.5, 1.0), 10.0)], np.array([0, 0]))


def test_a_device_throttles_after_a_while() -> None:
    # 4 s at full speed, then the other 6 s at half of it.
    assert HOT.end(0, 100.0, 10.0, None) == (116.0, 16.0)
    assert HOT.end(0, 100.0, 4.0, None) == (104.0, 4.0)
    assert HOT.done(0, 100.0, 110.0, None) == 7.0


def test_a_device_cools_down_while_it_is_away() -> None:
    # From 3 s to 5 s it is away; it is hot at 9 s, with 7 s done; 3 s more take 6 s.
    presence = RecordedIntervals([[(-1.0, 3.0), (5.0, 100.0)]], None).interval
    assert HOT.end(0, 0.0, 10.0, presence) == (15.0, 13.0)
    assert HOT.done(0, 0.0, 11.0, presence) == 8.0


def test_factors_multiply_and_repeat() -> None:
    # 3 s, then 1 s at half speed; hot from 4 s on: 1 s at a quarter; then at half until 13 s; 2 s at a quarter.
    speed = ComputeSpeed((BUSY,), 4.0, 0.5)
    assert speed.end(0, 0.0, 3.0 + 0.5 + 0.25 + 4.0 + 0.5 + 0.25, None) == (15.5, 15.5)
    assert ComputeSpeed((BUSY,)).end(1, 10.0, 4.5, None) == (15.5, 5.5)


def test_the_user_of_a_device_slows_it_down_for_as_long_as_the_keys_say() -> None:
    load = ForegroundLoad(Renewal(10.0, 30.0, 0.0, streams, "foreground load"), 0.25)
    factor, change = load.factor(3, 0.0)
    lengths = []
    for _ in range(6):
        now, (before, (factor, change)) = change, (factor, load.factor(3, change))
        lengths.append((factor, change - now))
        assert {before, factor} == {0.25, 1.0}
    assert np.array(sorted(lengths[:2])) == pytest.approx(np.array([(0.25, 10.0), (1.0, 30.0)]))
    assert change < INF
    # It has draws of its own, which are not those of availability.
    assert Renewal(10.0, 30.0, 0.0, streams).interval(3, 0.0)[1] != load.factor(3, 0.0)[1]
