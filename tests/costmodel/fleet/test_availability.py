"""Clients come and go by themselves: whoever asks, in whatever order, hears the same story."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.fleet.availability import (
    Always,
    Availability,
    Diurnal,
    RecordedIntervals,
    Renewal,
    available_seconds_end,
    first_available,
    merged,
)

INF = math.inf
HOUR = 3600.0
DAY = 86400.0


def streams(purpose: str, index: int, client: int) -> np.random.Generator:
    assert purpose == "availability"
    return np.random.default_rng([17, index, client])


def renewal() -> Renewal:
    return Renewal(600.0, 1800.0, 0.8, streams)


def diurnal() -> Diurnal:
    return Diurnal(22.0, 8.0, streams, spread_hours=3.0, jitter_hours=1.5, length_sigma=0.5, start_hour=9.0)


def windows() -> RecordedIntervals:
    rng = np.random.default_rng(3)
    rows = [np.cumsum(rng.uniform(1.0, 4000.0, (9, 2)).ravel()).reshape(9, 2) for _ in range(40)]
    return RecordedIntervals(rows, [DAY] * 40)


MODELS: list[Callable[[], Availability]] = [Always, renewal, diurnal, windows]
each_model = pytest.mark.parametrize("model", MODELS)


def walk(model: Availability, client: int, until: float, t: float = 0.0) -> list[tuple[bool, float, float]]:
    """(available, begin, end) of the intervals from t to ``until``."""
    found = []
    while t < until:
        available, end = model.interval(client, t)
        found.append((available, model.at(client, t).begin, end))
        t = end
    return found


@each_model
def test_the_order_of_questions_never_changes_an_answer(model: Callable[[], Availability]) -> None:
    rng = np.random.default_rng(1)
    questions = [
        (int(k), float(t)) for k, t in zip(rng.integers(0, 40, 400), rng.uniform(0, 20 * DAY, 400), strict=True)
    ]
    one, other = model(), model()
    in_order = {q: (one.interval(*q), one.at(*q).begin) for q in sorted(questions, key=lambda q: q[1])}
    shuffled = {q: (other.interval(*q), other.at(*q).begin) for q in questions}
    alone = {q: (model().interval(*q), model().at(*q).begin) for q in questions[:20]}
    assert shuffled == in_order
    assert alone == {q: in_order[q] for q in questions[:20]}


@each_model
def test_intervals_follow_each_other_without_a_gap_and_alternate(model: Callable[[], Availability]) -> None:
    for client in range(10):
        intervals = walk(model(), client, 10 * DAY)
        assert intervals[0][1] <= 0.0
        for (here, begin, end), (later, next_begin, _) in pairwise(intervals):
            assert begin < end == next_begin
            assert later is not here


# Renewal


def test_the_share_of_clients_that_are_there_is_the_same_at_any_time() -> None:
    """600 s on, 1800 s off: a quarter. Of 4000 clients the share has a standard deviation of 0.0068."""
    model = renewal()
    for t in (0.0, 300.0, 1800.0, 20_000.0):
        share = np.mean([model.interval(client, t)[0] for client in range(4000)])
        assert share == pytest.approx(0.25, abs=0.025)


def test_intervals_have_the_medians_and_the_sigma_that_were_asked_for() -> None:
    """8000 intervals: the median of ln has a standard error of 1.25 * 0.8 / sqrt(8000) = 0.011, quantiles 0.02."""
    model = renewal()
    intervals = [interval for client in range(100) for interval in walk(model, client, 100 * 3600 * 2.0)[1:-1]]
    for available, median in ((True, 600.0), (False, 1800.0)):
        logs = np.log([end - begin for here, begin, end in intervals if here is available])
        assert len(logs) > 8000
        # Quantiles of a normal law: 5 %, 25 %, 50 %, 75 %, 95 %.
        expected = math.log(median) + 0.8 * np.array([-1.645, -0.674, 0.0, 0.674, 1.645])
        assert np.quantile(logs, [0.05, 0.25, 0.5, 0.75, 0.95]) == pytest.approx(expected, abs=0.07)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ((0.0, 5.0, 1.0), "on_seconds must be a positive number, not 0.0"),
        ((5.0, INF, 1.0), "off_seconds must be a positive number, not inf"),
        ((5.0, 5.0, math.nan), "sigma must be a number of at least 0, not nan"),
    ],
)
def test_a_renewal_that_cannot_be_is_refused(figures: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Renewal(*figures, streams)


# Diurnal


def test_without_spread_everyone_charges_from_22_to_6_every_night() -> None:
    model = Diurnal(22.0, 8.0, streams)
    assert [model.interval(0, hour * HOUR) for hour in (0, 5, 6, 21, 22, 23)] == [
        (True, 6 * HOUR),
        (True, 6 * HOUR),
        (False, 22 * HOUR),
        (False, 22 * HOUR),
        (True, 30 * HOUR),
        (True, 30 * HOUR),
    ]
    assert model.at(9, 0.0).begin == -2 * HOUR
    assert model.at(9, 12 * HOUR).begin == 6 * HOUR
    # Across midnight, and a year later.
    assert model.interval(0, 365 * DAY + 1 * HOUR) == (True, 365 * DAY + 6 * HOUR)


def test_a_run_that_starts_at_9_in_the_morning_waits_13_hours_for_22() -> None:
    model = Diurnal(22.0, 8.0, streams, start_hour=9.0)
    assert model.interval(0, 0.0) == (False, 13 * HOUR)
    assert model.at(0, 0.0).begin == -3 * HOUR
    # And 16 hours for 1.
    assert Diurnal(1.0, 2.0, streams, start_hour=9.0).interval(0, 0.0) == (False, 16 * HOUR)


def test_each_client_keeps_its_own_hour() -> None:
    """Spread 2 h and no jitter: hours of 2000 clients have this deviation, and each client's are a day apart."""
    model = Diurnal(12.0, 1.0, streams, spread_hours=2.0)
    begins = [first_available(model, [client], 0.0) / HOUR for client in range(2000)]
    assert np.std(begins) == pytest.approx(2.0, abs=0.1)
    assert np.mean(begins) == pytest.approx(12.0, abs=0.15)
    for client in range(5):
        starts = [begin for here, begin, _ in walk(model, client, 6 * DAY) if here]
        assert np.diff(starts) == pytest.approx(DAY)


def test_long_and_late_windows_meet_and_are_one() -> None:
    """The oracle lays out all windows of a month and merges them; the model only ever looks at six days."""
    model = Diurnal(3.0, 20.0, streams, spread_hours=6.0, jitter_hours=9.0, length_sigma=1.0)
    for client in range(30):
        all_windows = [window for week in range(-1, 6) for window in model._week(client, week)]
        expected = [span for span in merged(all_windows) if span[1] > 0.0 and span[0] < 28 * DAY]
        assert [(begin, end) for here, begin, end in walk(model, client, 28 * DAY) if here] == expected
        assert max(end - begin for begin, end in expected) > DAY


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"hour": 24.0}, "hour must be at least 0 and less than 24, not 24.0"),
        ({"hours": 24.0}, "hours must be more than 0 and at most 23, not 24.0"),
        ({"spread_hours": INF}, "spread_hours must be a number of at least 0, not inf"),
    ],
)
def test_a_day_that_cannot_be_is_refused(figures: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Diurnal(**{"hour": 1.0, "hours": 2.0, "streams": streams, **figures})  # type: ignore[arg-type]


# Windows


def test_windows_that_come_once() -> None:
    model = RecordedIntervals([[(20.0, 30.0), (5.0, 10.0)], []], None)
    assert [model.interval(0, t) for t in (0.0, 5.0, 9.9, 10.0, 20.0, 30.0)] == [
        (False, 5.0),
        (True, 10.0),
        (True, 10.0),
        (False, 20.0),
        (True, 30.0),
        (False, INF),
    ]
    assert [model.at(0, t).begin for t in (0.0, 5.0, 15.0, 99.0)] == [-INF, 5.0, 10.0, 30.0]
    assert model.permanently_gone_at(0) == 30.0


def test_windows_repeat_with_their_period() -> None:
    model = RecordedIntervals([[(5.0, 10.0), (20.0, 30.0)]], [100.0])
    assert [model.interval(0, t) for t in (0.0, 30.0, 104.9, 105.0, 725.0)] == [
        (False, 5.0),
        (False, 105.0),
        (False, 105.0),
        (True, 110.0),
        (True, 730.0),
    ]
    assert model.at(0, 3.0).begin == -70.0
    assert model.permanently_gone_at(0) == INF


def test_several_clients_follow_one_recording() -> None:
    model = RecordedIntervals([[(5.0, 10.0)], [(1.0, 2.0)]], [100.0, 7.0], [1, 0, 1])
    assert [model.interval(client, 0.0) for client in range(3)] == [(False, 1.0), (False, 5.0), (False, 1.0)]
    assert model.interval(2, 8.5) == (True, 9.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=5), st.integers(1, 40), st.integers(0, 200))
def test_windows_agree_with_looking_at_every_second(row: list[tuple[int, int]], period: int, t: int) -> None:
    """The oracle marks the seconds of a period one by one."""
    seconds = {second % period for begin, length in row for second in range(begin, begin + length)}
    model = RecordedIntervals([[(float(begin), float(begin + length)) for begin, length in row]], [float(period)])
    here = t % period in seconds
    change = next((s for s in range(t + 1, t + period + 1) if (s % period in seconds) is not here), INF)
    began = next((s + 1 for s in range(t - 1, t - period - 1, -1) if (s % period in seconds) is not here), -INF)
    assert (model.interval(0, float(t)), model.at(0, float(t)).begin) == ((here, change), began)


@pytest.mark.parametrize("row", [(0.0, 0.3), (0.4, 0.7), (0.6, 0.8), (0.1, 0.69999999)])
def test_a_period_of_no_whole_seconds_never_stands_still(row: tuple[float, float]) -> None:
    intervals = walk(RecordedIntervals([[row]], [0.7]), 0, 1749.9)
    assert all(begin < end == later for (_, begin, end), (_, later, _) in pairwise(intervals))
    assert all(here is not later for (here, _, _), (later, _, _) in pairwise(intervals))
    # 2500 periods of two intervals each, and perhaps one that began before t = 0 or ends after the last.
    assert len(intervals) in (5000, 5001)


# What is asked of all of them


def test_the_first_of_several_clients_to_be_there() -> None:
    model = RecordedIntervals([[(50.0, 60.0)], [(20.0, 30.0)], []], None)
    assert first_available(model, [0, 1, 2], 0.0) == 20.0
    assert first_available(model, [0, 1, 2], 25.0) == 25.0
    assert first_available(model, [0, 1, 2], 30.0) == 50.0
    assert first_available(model, [0, 1, 2], 60.0) == INF
    assert first_available(model, [2], 0.0) == INF
    assert first_available(model, [], 0.0) == INF


def test_work_pauses_while_its_client_is_away() -> None:
    model = RecordedIntervals([[(10.0, 20.0), (50.0, 60.0)]], [100.0])
    ends = {need: available_seconds_end(model, 0, 15.0, need) for need in (0.0, 3.0, 5.0, 6.0, 15.0, 17.0, 40.0)}
    # 5 s are left in the first window, then 10 s from 50 on, then 10 s from 110, 150 and 210 on.
    assert ends == {0.0: 15.0, 3.0: 18.0, 5.0: 20.0, 6.0: 51.0, 15.0: 60.0, 17.0: 112.0, 40.0: 215.0}
    assert available_seconds_end(model, 0, 30.0, 1.0) == 51.0
    assert available_seconds_end(model, 0, 30.0, 0.0) == 30.0


@each_model
def test_pauses_are_just_the_time_away(model: Callable[[], Availability]) -> None:
    asked = model()
    end = available_seconds_end(asked, 3, 1000.0, 50_000.0)
    present = sum(min(stop, end) - max(begin, 1000.0) for here, begin, stop in walk(asked, 3, end, 1000.0) if here)
    assert present == pytest.approx(50_000.0, rel=1e-9)
