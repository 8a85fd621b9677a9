"""Epsilon from the distribution of the privacy loss, beside published libraries and one Gaussian by its formula."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from coordinator.privacy.accounting import epsilon, poisson
from coordinator.privacy.loss_distribution import epsilon_of_poisson


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "expected"),
    [
        # dp-accounting 0.6.0, losses 1e-4 apart
        (1.5, 0.04, 2250, 1e-5, 6.7687874),
        (1.0, 5000 / 763430, 4120, 1e-9, 3.5537704),
        (0.7, 0.01, 1500, 100_000**-1.1, 5.9127264),
        # the same, to the digits of a table
        (1.0, 1 / 3, 60, 30**-1.1, 9.8),
        (4.0, 1 / 3, 60, 30**-1.1, 1.07),
        (1.0, 0.1, 100, 580**-1.1, 4.83),
        (1.0, 0.05, 200, 1000**-1.1, 3.42),
        (1.0, 100 / 3500, 200, 3500**-1.1, 2.13),
    ],
)
def test_poisson_cohorts(noise: float, rate: float, steps: int, delta: float, expected: float) -> None:
    digits = len(str(expected).partition(".")[2])
    assert epsilon_of_poisson(noise, rate, steps, delta) == pytest.approx(expected, abs=max(1e-4, 0.75 * 10**-digits))


def test_the_noise_for_an_epsilon_of_eight_is_that_of_prv_accountants() -> None:
    # opacus 1.6.0 finds 1.34765625 with an error of 0.01 in epsilon
    assert epsilon_of_poisson(1.34765625, 0.04, 2250, 1e-5) == pytest.approx(8.0, abs=0.02)


@pytest.mark.parametrize(("noise", "delta"), [(1.0, 1e-5), (2.0, 1e-6), (0.5, 1e-3)])
def test_one_gaussian_is_its_formula(noise: float, delta: float) -> None:
    """Balle and Wang, ICML 2018, Theorem 8."""

    def excess(loss: float) -> float:
        shift, spread = 1 / (2 * noise), loss * noise
        return float(ndtr(shift - spread) - math.exp(loss) * ndtr(-shift - spread)) - delta

    assert epsilon_of_poisson(noise, 1.0, 1, delta) == pytest.approx(brentq(excess, 0, 60, xtol=1e-12), abs=2e-5)


def test_gaussians_compose_to_one_with_less_noise() -> None:
    assert epsilon_of_poisson(3.0, 1.0, 9, 1e-5) == pytest.approx(epsilon_of_poisson(1.0, 1.0, 1, 1e-5), abs=2e-5)
    assert epsilon_of_poisson(1.0, 1.0, 1, 1e-5) == pytest.approx(4.3772, abs=5e-5)


def test_it_is_below_what_renyi_divergences_give_and_0_where_delta_allows_all() -> None:
    for steps in (1, 10, 1000):
        assert epsilon_of_poisson(1.2, 0.1, steps, 1e-6) < epsilon(steps * poisson(1.2, 0.1), 1e-6)
    assert epsilon_of_poisson(50.0, 0.1, 1, 0.01) == 0.0
