"""Client selectors: their choices by hand-derived numbers, and choices that are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.policy import POLICIES, PolicyName, RoundPolicy
from coordinator.rounds.selection import (
    ClientHistory,
    ClientSelection,
    ClientSelector,
    SelectionContext,
    weighted_order,
)
from coordinator.rounds.selectors.oort import Oort, OortOptions
from coordinator.rounds.selectors.poisson import Poisson
from coordinator.rounds.selectors.power_of_choice import PowerOfChoice, PowerOfChoiceOptions
from tests.crossed import every
from tests.toy import play, unsteady_world


def known(reports: Mapping[int, tuple[float, int, float]], clients: int) -> ClientHistory:
    """``reports``: client -> (loss, round of it, seconds) of its last visit."""
    history = ClientHistory(clients)
    for client, (loss, round, seconds) in reports.items():
        history.loss[client], history.loss_round[client], history.seconds[client] = loss, round, seconds
    return history


def asked(
    participants: int, samples: Sequence[int], history: ClientHistory, round: int = 0, seed: int = 0
) -> SelectionContext:
    everyone = range(len(samples))
    return SelectionContext(seed, round, round, participants, everyone, None, 0.0, np.array(samples), history)


def test_drawing_by_weight_takes_the_heavier_more_often_and_weights_of_0_last() -> None:
    orders = [weighted_order(np.array([1.0, 0.0, 3.0]), np.random.default_rng(seed)) for seed in range(2000)]
    assert {int(order[2]) for order in orders} == {1}
    assert 1420 < sum(order[0] == 2 for order in orders) < 1580  # 1500 expected, standard deviation 19


# --- power-of-choice --------------------------------------------------------------------------------------------------


def test_the_largest_losses_among_the_drawn_are_chosen_and_never_visited_clients_first() -> None:
    history = known({0: (0.5, 0, 1.0), 1: (2.0, 0, 1.0), 3: (1.0, 0, 1.0)}, 4)
    everyone = PowerOfChoice(PowerOfChoiceOptions(candidates=4))
    assert everyone.select(asked(1, [1, 1, 1, 1], history)) == [2]
    assert everyone.select(asked(3, [1, 1, 1, 1], history)) == [2, 1, 3]
    firsts = Counter(everyone.select(asked(1, [9, 1, 1, 1], ClientHistory(4), seed=s))[0] for s in range(1000))
    assert all(
        190 < count < 310 for count in firsts.values()
    )  # 250 expected, standard deviation 14: size is no tie-break


# --- Poisson ----------------------------------------------------------------------------------------------------------


def test_poisson_cohorts_are_of_the_asked_size_on_average_and_may_be_empty() -> None:
    cohorts = [Poisson().select(asked(2, [1] * 8, ClientHistory(8), round=round)) for round in range(2000)]
    sizes = Counter(map(len, cohorts))
    assert 3900 < sum(size * times for size, times in sizes.items()) < 4100  # 4000 expected, standard deviation 55
    assert 155 < sizes[0] < 245  # (3/4)^8 of 2000 are 200, standard deviation 13
    taken = Counter(client for cohort in cohorts for client in cohort)
    assert all(430 < taken[client] < 570 for client in range(8))  # 500 each, standard deviation 19
    assert Poisson().select(asked(8, [1] * 8, ClientHistory(8))) == [*range(8)]


# --- Oort -------------------------------------------------------------------------------------------------------------

THREE = known({0: (2.0, 0, 1.0), 1: (0.5, 2, 4.0), 2: (4.0, 3, 2.0)}, 3)


def utility(samples: Sequence[int], **options: Any) -> list[float]:
    """Of the clients of `THREE` in the fifth round, with a preferred duration of two seconds."""
    oort = Oort(OortOptions(pacer_step=2.0, **options))
    return [float(value) for value in oort.utility(asked(1, samples, THREE, round=4), np.arange(3))]


def test_utility_is_samples_times_loss_in_its_range_with_a_bonus_and_a_penalty_for_the_slow() -> None:
    # 10 * 2, 20 * 0.5 and 5 * 4 are 20, 10 and 20; less 0.999 * 10, over 20 - 9.99: 1, 0.000999 and 1.
    # Bonus: sqrt(0.1 ln 5 / L) with L = 1, 3, 4: 0.401178, 0.231620, 0.200589. Client 1 takes twice T: * 0.5^2.
    assert utility([10, 20, 5]) == pytest.approx([1.401178, 0.058155, 1.200589], abs=1e-6)
    assert utility([10, 20, 5], staleness_bonus=0) == pytest.approx([1, 0.01 / 10.01 / 4, 1])
    assert utility([10, 20, 5], staleness_bonus=0, penalty=0) == pytest.approx([1, 0.01 / 10.01, 1])
    # 20, 10 and 40, reduced to the median, 20; the range is that of all three: 40 - 9.99.
    clipped = utility([10, 20, 10], staleness_bonus=0, penalty=0, clip_percentile=50)
    assert clipped == pytest.approx([10.01 / 30.01, 0.01 / 30.01, 10.01 / 30.01])
    # A thousand times the samples give the same scores, so that the bonus counts for as much.
    assert utility([10_000, 20_000, 5_000]) == pytest.approx(utility([10, 20, 5]))


def test_the_best_are_drawn_from_those_above_the_cutoff() -> None:
    best = {"exploration": 0, "staleness_bonus": 0, "penalty": 0, "clip_percentile": 100}
    samples = [10, 20, 10]  # 20, 10, 40; in their range 0.3336, 0.0003, 1
    assert Oort(OortOptions(cutoff=1, **best)).select(asked(1, samples, THREE)) == [2]
    assert sorted(Oort(OortOptions(cutoff=1, **best)).select(asked(2, samples, THREE))) == [0, 2]
    wide = [Oort(OortOptions(cutoff=0.25, **best)).select(asked(1, samples, THREE, seed=s))[0] for s in range(1000)]
    counts = Counter(wide)
    assert set(counts) == {0, 2}
    assert 695 < counts[2] < 805  # 1 / 1.3336 expected, standard deviation 14


def test_a_share_that_decays_is_explored() -> None:
    visited = known(dict.fromkeys(range(10), (1.0, 0, 1.0)), 20)
    shares = {0: 9, 1: 8.82, 74: 2.018, 200: 2}  # 10 * 0.9 * 0.98^round, at least 2
    for round, expected in shares.items():
        new = [
            sum(client >= 10 for client in Oort(OortOptions()).select(asked(10, [1] * 20, visited, round, seed)))
            for seed in range(200)
        ]
        assert np.mean(new) == pytest.approx(expected, abs=0.1)
    assert len(set(Oort(OortOptions()).select(asked(10, [1] * 20, ClientHistory(20))))) == 10  # nobody was visited yet


def test_the_preferred_duration_grows_where_utility_falls() -> None:
    oort, history = Oort(OortOptions(pacer_window=1)), known({0: (10.0, 0, 3.0), 1: (1.0, 0, 5.0)}, 2)
    preferred = []
    for round, loss in enumerate([8.0, 9.0, 9.0], start=1):  # the utilities of the rounds: 11, 8, 9
        oort.select(asked(1, [1, 1], history, round))
        preferred.append(float(oort.preferred))
        history.loss[0], history.loss_round[0] = loss, round
    assert preferred == [4, 8, 8]  # the median of 3 and 5; a fall from 11 to 8; a rise to 9
    again = Oort(OortOptions(pacer_window=1))
    again.restore(oort.state())
    assert (again.preferred, again.step, again.achieved) == (8, 4, oort.achieved)


# --- any selector -----------------------------------------------------------------------------------------------------


class Stubborn(ClientSelector):
    """Always the same clients."""

    def __init__(self, clients: Sequence[int]) -> None:
        self.clients = clients

    def select(self, context: SelectionContext) -> Sequence[int]:
        return self.clients


@pytest.mark.parametrize(
    ("clients", "problem"),
    [
        ([1, 9], "chose client 9, which is no candidate"),
        ([1, 1], "chose client 1 more than once"),
        ([1], "chose 1 clients instead of 2"),
        (["x"], "ValueError: invalid literal for int"),
    ],
)
def test_an_invalid_choice_names_the_selector(clients: Sequence[int], problem: str) -> None:
    selection = ClientSelection("mine:ROW", Stubborn(clients), 0, np.ones(4, np.int64))
    with pytest.raises(ValueError, match=f"rounds.selection = 'mine:ROW': {problem}"):
        selection.select(0, range(4), 2, 0.0, lambda client: client != 3)


@pytest.mark.parametrize(
    ("policy", "name"), every(2, [("sync", "power-of-choice"), *((policy, "oort") for policy in POLICIES)])
)
def test_every_policy_selects_by_losses_to_the_same_rows(policy: PolicyName, name: str, tmp_path: Path) -> None:
    world = {**unsteady_world(policy), "participants": 3}
    rules = RoundPolicy(policy, deadline=0.2, buffer=3, selection=name)
    taken = "SELECT visit, client, start_s FROM visits ORDER BY visit"
    one, other, uniform = (
        play(tmp_path / str(number), **{**world, "rules": chosen, "shuffle": number})
        for number, chosen in enumerate((rules, rules, RoundPolicy(policy, deadline=0.2, buffer=3)))
    )
    assert one.rows(taken) == other.rows(taken)
    assert one.rows(taken) != uniform.rows(taken)
    reports = one.federation.selection.history
    rows = one.rows("SELECT client, loss, round FROM visits WHERE kind = 'train' ORDER BY visit")
    last = {client: (loss, round) for client, loss, round in rows}
    assert {c: (reports.loss[c], reports.loss_round[c]) for c in last} == last
