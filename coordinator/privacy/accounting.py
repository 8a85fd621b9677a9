"""Rényi differential privacy of noisy sums over sampled cohorts, and epsilon for a delta.

A step adds Gaussian noise of ``noise`` times the sum's sensitivity. Costs of steps are curves over `ORDERS`, which add
up; `epsilon` is the least that any order gives. Nothing is sampled here.

Poisson sampling, neighbours that differ in one unit more or less: I. Mironov, K. Talwar and L. Zhang, Rényi
Differential Privacy of the Sampled Gaussian Mechanism, 2019, https://arxiv.org/abs/1908.10530. Cohorts of a fixed size,
neighbours in which one unit is replaced: Y.-X. Wang, B. Balle and S. Kasiviswanathan, Subsampled Rényi Differential
Privacy and Analytical Moments Accountant, AISTATS 2019, https://arxiv.org/abs/1808.00087, Theorem 27. The conversion:
C. Canonne, G. Kamath and T. Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020, Proposition 12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
"""(orders,) Rényi divergence at each of `ORDERS`"""

ORDERS: tuple[float, ...] = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
EXACT = 256
"""Orders up to which forward differences tighten the bound of fixed cohorts"""
REACH = 12.0
"""Standard deviations of the noise beyond which the densities add nothing"""
STEPS = 20
"""Steps of the quadrature in the smallest length on which its integrand changes"""


def gaussian(noise: float) -> Curve:
    """The curve of one step in which every unit takes part."""
    return np.array(ORDERS) / (2 * noise**2)


@lru_cache(maxsize=64)
def poisson(noise: float, rate: float) -> Curve:
    """The curve of one step in which each unit takes part with probability ``rate``, above 0 and at most 1.

    log A(α) / (α − 1) with A(α) = E[(1 − q + q·exp((2x − 1)/(2z²)))^α] over x ~ N(0, z²), by the trapezoidal rule,
    whose error on so smooth an integrand is beyond float64.
    """
    if rate == 1:
        return gaussian(noise)
    return np.array([_log_moment(noise, rate, order) / (order - 1) for order in ORDERS])


def _log_moment(noise: float, rate: float, order: float) -> float:
    """log A(order)."""

    def log_ratio(log_likelihood: Curve) -> Curve:
        return order * np.logaddexp(math.log1p(-rate), math.log(rate) + log_likelihood)

    return _log_expectation(noise, order, log_ratio)


def _log_expectation(noise: float, order: float, log_of: Callable[[Curve], Curve]) -> float:
    """log E[f] over x ~ N(0, noise²); ``log_of`` gives log f from the log likelihood ratio (2x − 1)/(2·noise²) of a
    shift by 1. ``order``: where f grows as that power of the ratio."""
    step = min(noise, noise**2) / STEPS
    x = np.arange(-REACH * noise, order + REACH * noise, step)
    log_density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    return float(np.logaddexp.reduce(log_density + log_of((2 * x - 1) / (2 * noise**2)))) + math.log(step)


@lru_cache(maxsize=64)
def fixed_cohort(noise: float, rate: float) -> Curve:
    """The curve of one step over a cohort of a fixed size, ``rate`` of all, drawn without replacement.

    ``noise`` is that over the sensitivity where one unit is *replaced*: of a sum of clipped vectors, twice the clip.
    """
    if rate == 1:
        return gaussian(noise)
    whole = {order: _log_fixed(noise, rate, order) for order in {*map(math.floor, ORDERS), *map(math.ceil, ORDERS)}}
    curve = []
    for order in ORDERS:  # between integers the log moment is convex: a chord is above it
        low, high = math.floor(order), math.ceil(order)
        share = order - low
        curve.append(((1 - share) * whole[low] + share * whole[high]) / (order - 1))
    return np.array(curve)


def _log_fixed(noise: float, rate: float, order: int) -> float:
    """The log of the bound of Theorem 27 at an integer order."""
    if order == 1:
        return 0.0

    def moment(count: int) -> float:
        """count · ε(count + 1) of the Gaussian mechanism: the log of its moment."""
        return count * (count + 1) / (2 * noise**2)

    at_two = 1 / noise**2
    terms = [0.0]
    for number in range(2, order + 1):
        if number == 2:
            term = min(math.log(4) + at_two + math.log1p(-math.exp(-at_two)), at_two + math.log(2))
        else:
            term = math.log(2) + moment(number - 1)
            if order <= EXACT:
                low, high = 2 * (number // 2), 2 * -(-number // 2)
                term = min(term, math.log(4) + (_log_difference(noise, low) + _log_difference(noise, high)) / 2)
        log_choose = math.lgamma(order + 1) - math.lgamma(number + 1) - math.lgamma(order - number + 1)
        terms.append(term + number * math.log(rate) + log_choose)
    return float(np.logaddexp.reduce(terms))


@lru_cache(maxsize=4096)
def _log_difference(noise: float, number: int) -> float:
    """log E[(L − 1)^number] for an even number, L the likelihood ratio: the forward difference of the moments at 0."""

    def log_power(log_likelihood: Curve) -> Curve:
        with np.errstate(divide="ignore"):  # where L is 1
            # log |e^y − 1| = max(y, 0) + log(1 − e^−|y|)
            logs: Curve = np.maximum(log_likelihood, 0) + np.log(-np.expm1(-np.abs(log_likelihood)))
            return number * logs

    return _log_expectation(noise, number, log_power)


def epsilon(curve: Curve, delta: float) -> float:
    """The least epsilon that a curve gives for this delta, in (0, 1); 0 where the divergence itself is below it."""
    found: list[float] = []
    for order, cost in zip(ORDERS, curve.tolist(), strict=True):
        if delta**2 + math.expm1(-cost) > 0:
            return 0.0
        if order > 1.01:
            found.append(cost + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, min(found))
