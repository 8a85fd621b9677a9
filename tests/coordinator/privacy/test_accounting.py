"""Epsilon of noisy sums over cohorts, against published figures and other accountants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from coordinator.privacy.accounting import ORDERS, epsilon, fixed_cohort, gaussian, poisson


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "expected"),
    [
        (1.5, 0.04, 2250, 1e-5, 7.32911117143),  # opacus 1.6.0
        (4.530877117, 1.0, 1, 1e-6, 1.0),
        (1.0, 1.0, 1, 1e-5, 4.7285),
        (1.0, 5000 / 763430, 4120, 1e-9, 3.856),
    ],
)
def test_known_values_of_poisson_sampling(noise: float, rate: float, steps: int, delta: float, expected: float) -> None:
    digits = max(1e-10, 0.5 * 10 ** -len(str(expected).partition(".")[2]))
    assert epsilon(steps * poisson(noise, rate), delta) == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize(
    ("people", "cohort", "noise", "rounds", "sampled", "fixed"),
    [
        (30, 10, 1.0, 60, 12.6293, 30.707395994),
        (30, 10, 4.0, 60, 1.37873, 3.526073661),
        (580, 58, 1.0, 100, 5.70325, 10.906965926),
        (1_000, 50, 1.0, 200, 4.01427, 7.322288811),
        (3_500, 100, 1.0, 200, 2.52549, 4.272095789),
        (100_000, 1_000, 0.7, 1_500, 6.75537, 9.513482068),
    ],
)
def test_a_fixed_cohort_costs_more_than_a_poisson_sample(
    people: int, cohort: int, noise: float, rounds: int, sampled: float, fixed: float
) -> None:
    """Beside dp-accounting 0.6.0, whose series overstates broken orders, or leaves them out: up to 6 % of epsilon."""
    delta, rate = people**-1.1, cohort / people
    found = epsilon(rounds * poisson(noise, rate), delta)
    assert 0.93 * sampled < found < sampled
    assert epsilon(rounds * fixed_cohort(noise, rate), delta) == pytest.approx(fixed, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "noise", "order"), [(0.1, 1.0, 2.5), (0.1, 1.0, 1.7), (1 / 3, 4.0, 6.5), (0.04, 1.5, 3.9)]
)
def test_broken_orders_are_the_integral(rate: float, noise: float, order: float) -> None:
    def integrand(x: float) -> float:
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return math.exp(-(x**2) / (2 * noise**2) + order * math.log(ratio)) / (noise * math.sqrt(2 * math.pi))

    moment, _ = quad(integrand, -12 * noise, order + 12 * noise, epsabs=0, epsrel=1e-12, limit=500)
    place = [round(each, 6) for each in ORDERS].index(order)
    assert poisson(noise, rate)[place] == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


def test_moments_of_whole_orders_are_the_binomial_sum() -> None:
    noise, rate = 1.1, 0.2
    for order in (2, 3, 7, 32):
        terms = [
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp(k * (k - 1) / (2 * noise**2))
            for k in range(order + 1)
        ]
        expected = math.log(math.fsum(terms)) / (order - 1)
        assert poisson(noise, rate)[ORDERS.index(order)] == pytest.approx(expected, rel=1e-12)


def test_the_noise_for_an_epsilon_of_eight_is_that_of_opacus() -> None:
    more, less = (epsilon(2250 * poisson(noise, 0.04), 1e-5) for noise in (1.4155, 1.4165))
    assert more > 8 > less


def test_everybody_in_every_step_is_the_gaussian_mechanism() -> None:
    assert np.array_equal(poisson(2.0, 1.0), gaussian(2.0)) and np.array_equal(fixed_cohort(2.0, 1.0), gaussian(2.0))
    assert gaussian(2.0)[ORDERS.index(16)] == 2.0
    assert epsilon(0 * gaussian(2.0), 1e-5) == 0.0
