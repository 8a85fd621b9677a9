"""Who goes on: rungs, pairs of candidates, and the last order, on curves made by hand."""

from __future__ import annotations

from fractions import Fraction

from scenarios.run.progress import ProgressPoint, Trail
from scenarios.studies.decide import halving
from scenarios.studies.decide.halving import Rung
from scenarios.studies.decide.objective import Objective

BYTES_TO_90 = Objective(0.9, "bytes", {})
WITHIN_100_BYTES = Objective(None, "bytes", {"bytes": 100})


def curve(cost: int, *accuracies: float) -> Trail:
    """Rounds that take so many bytes and a second each."""
    best = [max(accuracies[: count + 1]) for count in range(len(accuracies))]
    return Trail(
        ProgressPoint(number, float(number), cost * number, 0.0, accuracy, top)
        for number, (accuracy, top) in enumerate(zip(accuracies, best, strict=True), start=1)
    )


def test_rounds_double_and_candidates_halve_until_the_finalists_have_all_rounds_and_seeds() -> None:
    eighth, quarter, half, whole = Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1)
    assert halving.rungs(24, 3, 3) == [Rung(eighth, 1, 12), Rung(quarter, 2, 6), Rung(half, 2, 3), Rung(whole, 3, 3)]
    assert halving.rungs(4, 1, 3) == [Rung(half, 1, 3), Rung(whole, 1, 3)]
    assert halving.rungs(2, 3, 3) == [Rung(whole, 3, 2)]
    # Of 40 rounds an eighth is 5; with an evaluation in every second or seventh round it ends with one.
    assert [Rung(eighth, 2, 12).rounds(40, every) for every in (1, 2, 7, 50)] == [5, 6, 7, 40]


def test_who_needs_less_for_the_same_and_has_more_for_the_same_is_ahead() -> None:
    cheap, dear = curve(10, 0.5, 0.6, 0.7), curve(30, 0.5, 0.6, 0.7)
    assert (halving.ahead(BYTES_TO_90, cheap, dear), halving.ahead(BYTES_TO_90, dear, cheap)) == (1, -1)
    # 0.7 took the one 10 bytes and the other 30; but at 30 bytes the other has 0.8 and the one 0.7: open.
    assert halving.ahead(BYTES_TO_90, curve(10, 0.7, 0.7, 0.7), curve(30, 0.8)) == 0
    assert halving.ahead(BYTES_TO_90, cheap, cheap) == 0


def test_between_two_that_have_reached_the_target_the_cost_decides() -> None:
    slow, fast = curve(10, 0.2, 0.3, 0.4, 0.92), curve(25, 0.5, 0.95)
    assert halving.ahead(BYTES_TO_90, slow, fast) == 1  # 40 bytes and 50


def test_candidates_are_ordered_by_the_pairs_that_they_win_over_all_seeds() -> None:
    found = {
        "dear": {0: curve(30, 0.5, 0.6), 1: curve(30, 0.5, 0.6)},
        "cheap": {0: curve(10, 0.5, 0.6), 1: curve(10, 0.5, 0.6)},
        "poor": {0: curve(30, 0.1, 0.2), 1: curve(30, 0.1, 0.2)},
    }
    assert halving.order(BYTES_TO_90, found) == ["cheap", "dear", "poor"]


def test_who_has_spent_more_without_the_target_than_another_with_it_cannot_win() -> None:
    found = {
        "there": {0: curve(10, 0.5, 0.9), 1: curve(10, 0.5, 0.8, 0.9)},  # 20 and 30 bytes
        "behind": {0: curve(30, 0.8), 1: curve(30, 0.8)},
        "open": {0: curve(20, 0.8), 1: curve(30, 0.8)},  # 20 bytes so far with seed 0
    }
    assert halving.cannot_win(BYTES_TO_90, found) == {"behind": "there"}
    assert halving.cannot_win(WITHIN_100_BYTES, found) == {}


def test_the_finalist_with_the_target_in_most_seeds_is_first_and_then_the_cheapest() -> None:
    found = {
        "once": {0: curve(1, 0.9), 1: curve(1, 0.8)},
        "dear": {0: curve(30, 0.9), 1: curve(30, 0.9)},
        "cheap": {0: curve(20, 0.9), 1: curve(30, 0.9)},
        "never": {0: curve(1, 0.7), 1: curve(1, 0.7)},
    }
    assert halving.final_order(BYTES_TO_90, found) == ["cheap", "dear", "once", "never"]
    # At most 100 bytes: 0.8 in both; the last evaluation within the budget counts, not the best.
    fallen = {"fallen": {0: curve(40, 0.9, 0.7, 0.9)}, "even": {0: curve(40, 0.8, 0.8)}}
    assert halving.final_order(WITHIN_100_BYTES, fallen) == ["even", "fallen"]
