"""DAdaQuant's levels: of a round by what the clients' losses do, of a client by its weight."""

from __future__ import annotations

from itertools import product
from typing import Any

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
