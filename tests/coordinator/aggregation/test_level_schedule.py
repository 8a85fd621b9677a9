"""DAdaQuant's levels: of a round by what the clients' losses do, of a client by its weight."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from coordinator.aggregation.level_schedule import LevelSchedule, client_levels
from edge.protocol.config import LevelsConfig


def levels(losses: list[float], most: int = 8, by_round: bool = True, **options: Any) -> list[int]:
    """The level of each round, and of the one after the last, with a client that reports these losses."""
    schedule, found = LevelSchedule(LevelsConfig(by_round, **options), most, rounds=30), []
    for loss in losses:
        found.append(schedule.level)
        schedule.learn({0: loss}, {0: 1.0})
    return [*found, schedule.level]


def test_the_level_doubles_where_the_loss_has_not_fallen_and_stays_for_the_patience() -> None:
    # Without an average, and with three rounds' patience: the loss of rounds 1 to 3 falls; that of 2 to 4 does not.
    assert levels([5.0, 4.0, 3.0, 4.0, 4.0], momentum=0.0, patience=3) == [1, 1, 1, 1, 2, 2]
    # A loss that never falls: each level stays for three rounds, the largest to the end.
    assert levels([1.0] * 14, patience=3) == [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]
    assert levels([1.0] * 5, most=6, patience=1) == [1, 2, 4, 6, 6, 6]
    assert levels([1.0] * 3, least=4, patience=1) == [4, 8, 8, 8]
    assert levels([1.0] * 3, by_round=False, patience=1) == [8, 8, 8, 8]
    # A tenth of 30 rounds, by default.
    assert levels([1.0] * 4) == [1, 1, 1, 2, 2]


def test_the_average_hides_a_round_whose_clients_are_hard() -> None:
    # With ψ = 0.5: averages 4, 3, 3, so round 3 is no lower than round 2.
    assert levels([4.0, 2.0, 3.0], momentum=0.5, patience=2) == [1, 1, 1, 2]
    # With ψ = 0.9: averages 4, 3.8, 3.72.
    assert levels([4.0, 2.0, 3.0], momentum=0.9, patience=2) == [1, 1, 1, 1]


def test_the_loss_of_a_round_is_the_mean_by_weight_and_a_round_without_any_teaches_nothing() -> None:
    schedule = LevelSchedule(LevelsConfig(by_round=True, momentum=0.0, patience=2), 8, 100)
    schedule.learn({4: 1.0, 2: 5.0}, {2: 1.0, 4: 3.0})
    assert schedule.average == 2.0
    schedule.learn({}, {})
    schedule.learn({4: 1.0, 2: 5.0}, {2: 0.0, 4: 0.0})
    assert (schedule.level, schedule.average) == (1, 2.0)


def test_a_clients_level_grows_with_the_power_two_thirds_of_its_weight() -> None:
    # w = 8, 1: a = 4 + 1, b = (64 + 1)/8²; √(a/b) = 2.219; levels 2.219 · 4 = 8.9 and 2.2.
    assert client_levels(8, {3: 8.0, 1: 1.0}) == {3: 9, 1: 2}
    assert client_levels(8, {3: 8 / 9, 1: 1 / 9}) == {3: 9, 1: 2}
    assert client_levels(8, {0: 2.0, 1: 2.0, 2: 2.0}) == {0: 8, 1: 8, 2: 8}
    assert client_levels(1, {0: 27.0, 1: 1.0}) == {0: 1, 1: 1}
    assert client_levels(4, {0: 0.0, 1: 1.0}) == {0: 1, 1: 4}
    assert client_levels(4, {0: 0.0}) == {0: 1}
    found = {
        by: LevelSchedule(LevelsConfig(*by, least=2), 8, 10).of_cohort({0: 8.0, 1: 1.0})
        for by in product((False, True), (False, True))
    }
    assert found == {
        (False, False): {0: 8, 1: 8},
        (False, True): {0: 9, 1: 2},
        (True, False): {0: 2, 1: 2},
        (True, True): {0: 2, 1: 1},
    }


@pytest.mark.parametrize("q", [4, 16, 64])
def test_levels_by_client_keep_the_error_with_fewer_levels_in_all(q: int) -> None:
    weights = dict(enumerate([600.0, 90.0, 30.0, 12.0, 6.0, 6.0, 5.0, 5.0, 5.0, 5.0]))
    found = client_levels(q, weights)
    # Theorem 1's error, Σ w²/q_i², is that of q for all, but for the rounding.
    error = sum((w / found[client]) ** 2 for client, w in weights.items())
    assert error == pytest.approx(sum(w**2 for w in weights.values()) / q**2, rel=0.2)
    assert sum(found.values()) < 0.5 * q * len(weights)


def test_a_schedule_goes_on_where_its_state_was_kept() -> None:
    config, losses = LevelsConfig(by_round=True, patience=4), [5.0, 4.0, 4.1, 4.3, 4.2, 4.4, 4.5, 4.4, 4.6]
    whole, first = (LevelSchedule(config, 8, 100) for _ in range(2))
    for number, loss in enumerate(losses):
        whole.learn({0: loss}, {0: 1.0})
        if number == 5:
            state = whole.state()
    first.restore(state)
    for loss in losses[6:]:
        first.learn({0: loss}, {0: 1.0})
    assert vars(first) == vars(whole)
    fresh = LevelSchedule(config, 8, 100)
    fresh.restore(LevelSchedule(config, 8, 100).state())
    assert fresh.average is None
