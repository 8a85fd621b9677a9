"""Where an answer is open: runs that the decision has ended say nothing of larger budgets and faster fleets."""

from __future__ import annotations

from collections.abc import Set

import pytest

from scenarios.run.progress import ProgressPoint, Trail
from scenarios.studies.decide.analysis import Analysis, Finalist, best_of
from scenarios.studies.decide.objective import Objective

CHEAPEST = Objective(0.9, "bytes", {"bytes": 50})
BEST = Objective(None, "bytes", {"bytes": 50})
MOST = 10


def curve(*accuracies: float, nbytes: int = 10) -> Trail:
    """Rounds of so many bytes and a second each."""
    return Trail(
        ProgressPoint(number, float(number), nbytes * number, 0.0, accuracy, max(accuracies[:number]))
        for number, accuracy in enumerate(accuracies, start=1)
    )


def finalist(name: str, *trails: Trail, cut: Set[int] = frozenset()) -> Finalist:
    return Finalist(name, None, {}, {}, dict(enumerate(trails)), MOST, cut)  # type: ignore[arg-type]


def at(objective: Objective, *finalists: Finalist) -> dict[float, tuple[str | None, list[str]]]:
    """Factor on the budgets -> (the chosen one, those that are unknown)."""
    points = Analysis(objective, finalists).budget_flip().points
    return {point.at: (point.chosen, point.unknown) for point in points}


def test_a_run_that_the_budget_has_ended_says_nothing_of_a_larger_one() -> None:
    # Both were ended by 50 bytes; the first one's last round was larger, and ends within 100 bytes with the target.
    larger = finalist("larger", curve(0.5, 0.6, 0.9, nbytes=26), cut={0})
    other = finalist("other", curve(0.5, 0.6, 0.7, 0.8, 0.85, 0.88), cut={0})
    assert at(CHEAPEST, larger, other) == {
        0.125: (None, []),
        0.25: (None, []),
        0.5: (None, []),
        1.0: (None, []),
        # The other one might have reached it in its seventh round, for 70 bytes.
        2.0: (None, ["other"]),
        4.0: (None, ["other"]),
        8.0: (None, ["other"]),
    }


def test_whoever_has_reached_the_target_for_less_than_the_others_have_spent_is_chosen_all_the_same() -> None:
    first = finalist("first", curve(0.5, 0.6, 0.92), cut={0})
    other = finalist("other", curve(0.5, 0.6, 0.7, 0.8, 0.85, 0.88), cut={0})
    assert [at(CHEAPEST, first, other)[factor] for factor in (0.5, 1.0, 8.0)] == [
        (None, []),
        ("first", []),
        ("first", []),
    ]


def test_without_a_target_every_run_that_would_go_on_leaves_it_open() -> None:
    cut, whole = finalist("cut", curve(*[0.7] * 6), cut={0}), finalist("whole", curve(*[0.6] * MOST))
    found = at(BEST, cut, whole)
    assert (found[1.0], found[2.0]) == (("cut", []), (None, ["cut"]))


def test_with_the_target_in_more_seeds_than_the_others_can_have_it_is_chosen() -> None:
    trails = {
        "both": {0: curve(0.9), 1: curve(0.5, 0.9)},
        "one": {0: curve(0.5, 0.6, 0.7), 1: curve(0.5, 0.6, 0.7)},
    }
    assert best_of(CHEAPEST, trails, {"one": {0}}).chosen == "both"
    # With both seeds the other one would need at least 30 bytes, and this one needs 15 in the mean.
    assert best_of(CHEAPEST, trails, {"one": {0, 1}}).chosen == "both"
    dear = {**trails, "both": {0: curve(0.9, nbytes=40), 1: curve(0.9, nbytes=40)}}
    assert best_of(CHEAPEST, dear, {"one": {0, 1}}).unknown == ["one"]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_probability_is_asked_of_the_seed_that_has_not_chosen(seed: int) -> None:
    # Each is better by far with one seed, which alone would choose it.
    one, other = curve(0.5, *[0.8] * 3), curve(*[0.6] * 4)
    trails = [(one, other), (other, one)]
    analysis = Analysis(BEST, [finalist("a", *trails[seed]), finalist("b", *trails[1 - seed])])
    found = analysis.over_seeds()
    assert (found.by_seed, found.probability) == ([[1.0, 0.0], [0.0, 1.0]][seed], 0.0)
    alone = Analysis(BEST, [finalist("a", one), finalist("b", other)]).over_seeds()
    assert (alone.by_seed, alone.probability, alone.low) == ([1.0], None, None)
