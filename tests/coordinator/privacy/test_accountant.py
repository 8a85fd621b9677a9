"""What a run has spent, by how clients are sampled: by hand, and beside the curves of one step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from coordinator.privacy.accountant import Accountant, Sampling, VisitCounts
from coordinator.privacy.accounting import epsilon, fixed_cohort, gaussian, poisson
from coordinator.privacy.loss_distribution import epsilon_of_poisson
from edge.protocol.config import PrivacyConfig

EXAMPLES = np.array([100, 50, 400, 100])


def accountant(sampling: Sampling = "fixed", limit: float | None = None, **config: Any) -> Accountant:
    """Of four clients, of which two take part in a round, with two steps each."""
    privacy = PrivacyConfig(**{"unit": "client", "noise": 2.0, "delta": 1e-3, **config})
    return Accountant(privacy, sampling, 4, 2.0, EXAMPLES, 10, np.full(4, 2), limit, "some are not there")


def counts(rounds: int, *visits: int, begun: int = 0) -> VisitCounts:
    """``visits``: that counted, of each client; ``begun``: so many more of client 0."""
    counted = np.array(visits)
    return VisitCounts(rounds, counted + np.array([begun, 0, 0, 0]), counted, 2 * counted)


def test_sampled_cohorts_are_accounted_by_rounds_whoever_has_taken_part() -> None:
    done = counts(7, 3, 4, 5, 2)
    assert accountant("poisson").spent(done) == epsilon(7 * poisson(2.0, 0.5), 1e-3)
    # One client is replaced, which changes a sum of clipped updates by twice the clip.
    assert accountant("fixed").spent(done) == epsilon(7 * fixed_cohort(1.0, 0.5), 1e-3)
    assert accountant("fixed").by_client(done).tolist() == [accountant("fixed").spent(done)] * 4


def test_without_sampling_each_participation_counts_and_the_client_with_the_most_decides() -> None:
    done = counts(7, 3, 4, 1, 0, begun=9)
    assert accountant("none").spent(done) == epsilon(4 * gaussian(2.0), 1e-3)
    assert accountant("none").by_client(done)[3] == 0.0
    # Towards the server a visit counts that was begun: its update may have arrived too late.
    assert accountant("none", where="client").spent(done) == epsilon(12 * gaussian(1.0), 1e-3)


def test_examples_are_accounted_by_the_steps_of_their_client_and_its_share_of_a_batch() -> None:
    done = counts(3, 3, 1, 3, 0)
    of_clients = accountant(unit="example").by_client(done)
    assert of_clients[0] == epsilon(6 * poisson(2.0, 0.1), 1e-3)
    assert of_clients[1] == epsilon(2 * poisson(2.0, 0.2), 1e-3)
    assert of_clients[3] == 0.0
    assert accountant(unit="example").spent(done) == of_clients.max()


def test_the_round_that_would_exceed_a_budget_is_not_allowed() -> None:
    after_two = epsilon(2 * poisson(2.0, 0.5), 1e-3)
    budget = accountant("poisson", limit=after_two)
    assert budget.allows(counts(1, 1, 1, 0, 0), [2, 3])
    assert not budget.allows(counts(2, 1, 1, 1, 1), [])  # whoever is drawn, also nobody
    assert budget.rounds_within(after_two, 100) == 2
    by_visits = accountant("none", limit=epsilon(2 * gaussian(2.0), 1e-3))
    assert by_visits.allows(counts(9, 2, 1, 1, 0), [1, 2, 3])
    assert not by_visits.allows(counts(9, 2, 1, 1, 0), [0])
    assert by_visits.rounds_within(by_visits.limit or 0, 100) == 2


def test_the_distribution_of_the_loss_gives_less_than_renyi_divergences() -> None:
    done = counts(7, 3, 4, 5, 2)
    tight = accountant("poisson", accountant="pld").spent(done)
    assert tight == epsilon_of_poisson(2.0, 0.5, 7, 1e-3) < accountant("poisson").spent(done)
    assert accountant("none", accountant="pld").spent(done) == epsilon_of_poisson(2.0, 1.0, 5, 1e-3)


def test_without_noise_epsilon_is_infinite_and_before_the_first_round_it_is_nothing() -> None:
    assert accountant(noise=0.0).spent(counts(1, 1, 1, 0, 0)) == math.inf
    assert accountant().spent(counts(0, 0, 0, 0, 0)) == 0.0


def test_delta_is_by_default_a_power_of_the_number_of_units() -> None:
    assert accountant(delta=None).delta == pytest.approx(4**-1.1)
    assert accountant(delta=None, unit="example").delta == pytest.approx(400**-1.1)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (accountant("poisson"), "one client more or less; Poisson sampling, each of 4 clients takes part with"),
        (accountant("fixed"), "one client replaced; cohorts of 2 of 4 clients without replacement; delta = 0.001"),
        (accountant("none"), "no amplification by sampling, since some are not there: each participation counts"),
        (accountant(where="client"), "neighbours differ in all data of one client; no sampling"),
        (accountant(unit="example"), "of a training example of a client: neighbours have one more or one less"),
    ],
)
def test_a_guarantee_says_unit_neighbours_sampling_and_delta(made: Accountant, words: str) -> None:
    assert words in made.guarantee and "delta = 0.001" in made.guarantee
