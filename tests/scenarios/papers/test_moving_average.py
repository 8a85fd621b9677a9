"""Moving averages of accuracy: a few rounds by hand, and how the two beginnings part and meet."""

from __future__ import annotations

import pytest

from scenarios.papers.spec import CORRECTED, FIRST, Smoothing, ema, smoothed
from scenarios.run.progress import ProgressPoint


def test_an_average_weighs_the_rounds_so_far_or_hardly_leaves_the_first_or_is_none_without_momentum() -> None:
    # 0.05/0.1;  (0.045 + 0.07)/0.19;  (0.1035 + 0.06)/0.271
    assert ema([0.5, 0.7, 0.6], Smoothing(0.9, CORRECTED)) == pytest.approx([0.5, 0.115 / 0.19, 0.1635 / 0.271])
    # 0.9 x 0.5 + 0.07;  0.9 x 0.52 + 0.06
    assert ema([0.5, 0.7, 0.6], Smoothing(0.9, FIRST)) == pytest.approx([0.5, 0.52, 0.528])
    assert ema([0.5, 0.7, 0.6], Smoothing(0.0)) == [0.5, 0.7, 0.6]


@pytest.mark.parametrize("start", [CORRECTED, FIRST])
def test_a_constant_is_its_own_average_and_no_rounds_have_none(start: str) -> None:
    assert ema([0.25] * 50, Smoothing(0.9, start)) == pytest.approx([0.25] * 50)
    assert ema([], Smoothing(0.9, start)) == []


def test_after_a_hundred_rounds_the_beginning_is_forgotten() -> None:
    values = [0.01, *([0.4] * 99)]
    corrected, first = (ema(values, Smoothing(0.9, start))[-1] for start in (CORRECTED, FIRST))

    assert corrected != first
    assert corrected == pytest.approx(first, rel=3e-5)


def test_a_trail_keeps_what_was_spent_and_rounds_that_were_not_evaluated_stay_so() -> None:
    points = (
        ProgressPoint(1, 10.0, 100, 80.0, 0.5, 0.5),
        ProgressPoint(2, 20.0, 200, 160.0, None, 0.5),
        ProgressPoint(3, 30.0, 300, 240.0, 0.1, 0.5),
    )
    first, second, third = smoothed(points, Smoothing(0.9, CORRECTED))

    assert [first.accuracy, third.accuracy] == pytest.approx([0.5, 0.055 / 0.19])
    assert second.accuracy is None
    assert (third.rounds, third.nbytes) == (3, 300)
    assert third.best == pytest.approx(0.5)
