"""The bandit of FedBR, Eq. 5 to 7, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coordinator.methods.gmbs import Gmbs, normalise, reward


def test_eq_5_rewards_a_falling_loss_and_short_times() -> None:
    assert reward(0.5, 0.8, 0.0, 0.0) == 0.4
    assert reward(0.5, 0.8, 1.0, 0.5) == pytest.approx(0.4 / math.exp(1.5))
    # The loss rose: the sign stays. Data like everyone's: nothing to gain.
    assert reward(0.5, -0.8, 0.0, 0.0) == -0.4
    assert reward(0.0, 0.8, 1.0, 1.0) == 0.0


def test_eq_6_remembers_a_share_of_what_was() -> None:
    bandit = Gmbs(2, 3, memory=0.25)
    bandit.learn(1, 2, 8.0)
    assert bandit.p.tolist() == [[0, 0, 0], [0, 2, 0]]
    bandit.learn(1, 2, 4.0)
    assert bandit.p.tolist() == [[0, 0, 0], [0, 2.5, 0]]  # 0.25 x 4 + 0.75 x 2


def test_a_memory_of_1_keeps_the_latest_reward_alone() -> None:
    bandit = Gmbs(1, 2, memory=1.0)
    for gained in (3.0, -1.0, 0.5):
        bandit.learn(0, 1, gained)
        assert bandit.p[0, 0] == gained


def test_a_memory_of_0_learns_nothing_and_goes_round_by_counts() -> None:
    bandit, rng = Gmbs(1, 3, memory=0.0), np.random.default_rng(0)
    chosen = []
    for t in range(1, 10):
        m = bandit.choose(0, t, rng)
        bandit.started(0, m)
        bandit.learn(0, m, 100.0)
        chosen.append(m)
    assert bandit.p.tolist() == [[0, 0, 0]]
    assert [sorted(chosen[i : i + 3]) for i in (0, 3, 6)] == [[1, 2, 3]] * 3


def test_eq_7_adds_a_bonus_that_shrinks_with_use() -> None:
    bandit = Gmbs(1, 3, memory=1.0)
    bandit.learn(0, 1, 0.5)
    for m in (1, 1, 1, 2):
        bandit.started(0, m)
    heat = math.sqrt(math.log(5))
    assert bandit.values(0, 4) == pytest.approx([0.5 + heat / 4, heat / 2, heat])


def test_the_other_form_of_the_bonus_takes_the_count_under_the_root() -> None:
    bandit = Gmbs(1, 2, memory=1.0, bonus="root")
    for _ in range(3):
        bandit.started(0, 1)
    assert bandit.values(0, 4) == pytest.approx([math.sqrt(math.log(5) / 4), math.sqrt(math.log(5))])


def test_the_first_choice_is_uniform_since_all_values_are_0() -> None:
    bandit, rng = Gmbs(1, 5, memory=0.5), np.random.default_rng(0)
    for _ in range(4):
        bandit.started(0, 1)
    assert bandit.values(0, 0).tolist() == [0, 0, 0, 0, 0]
    counts = np.bincount([bandit.choose(0, 0, rng) for _ in range(5000)], minlength=6)
    assert counts[0] == 0
    assert all(900 < count < 1100 for count in counts[1:])


def test_the_best_value_wins_and_ties_are_drawn() -> None:
    bandit, rng = Gmbs(2, 3, memory=1.0), np.random.default_rng(0)
    bandit.learn(0, 2, 9.0)
    assert {bandit.choose(0, 1, rng) for _ in range(50)} == {2}
    assert {bandit.choose(1, 1, rng) for _ in range(50)} == {1, 2, 3}


def test_counts_are_per_client_and_choice() -> None:
    bandit = Gmbs(2, 3, memory=0.5)
    for client, m in ((0, 1), (0, 1), (1, 3)):
        bandit.started(client, m)
    assert bandit.n.tolist() == [[2, 0, 0], [0, 0, 1]]


def test_times_are_made_comparable_within_a_round() -> None:
    seconds = np.array([1.0, 2.0, 6.0])
    assert normalise(seconds, "max") == pytest.approx([1 / 6, 1 / 3, 1])
    assert normalise(seconds, "min-max") == pytest.approx([0, 0.2, 1])
    assert normalise(seconds, "mean") == pytest.approx([1 / 3, 2 / 3, 2])
    deviation = math.sqrt((4 + 1 + 9) / 3)
    assert normalise(seconds, "z-score") == pytest.approx([-2 / deviation, -1 / deviation, 3 / deviation])


def test_equal_times_cannot_be_told_apart() -> None:
    same, zero = np.array([3.0, 3.0]), np.zeros(2)
    assert normalise(same, "max").tolist() == normalise(same, "mean").tolist() == [1, 1]
    assert normalise(same, "min-max").tolist() == normalise(same, "z-score").tolist() == [0, 0]
    for kind in ("max", "min-max", "mean", "z-score"):
        assert normalise(zero, kind).tolist() == [0, 0]
