"""Epsilon of noisy sums over Poisson cohorts from the distribution of the privacy loss, tighter than Rényi divergences.

The loss of a step is put on a grid such that its hockey-stick divergence is exact there, and convex between (V.
Doroshenko et al., Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions, PoPETs 2022,
https://arxiv.org/abs/2207.04380); the loss of many steps is its convolution with itself, by the fast Fourier transform
(A. Koskela, J. Jälkö and A. Honkela, Computing Tight Differential Privacy Guarantees Using FFT, AISTATS 2020,
https://arxiv.org/abs/1906.03049). The result is an upper bound, of which the error on the grid is below 1e-4.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coordinator.privacy.accounting import ORDERS, poisson

STEP = 1e-4
"""Distance of losses on the grid"""
MOST = 1 << 22
"""Losses on the grid at most: then their distance grows"""
TAIL = 1e-20
"""Mass of the composed loss beyond the grid"""


@lru_cache(maxsize=256)
def epsilon_of_poisson(noise: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon after so many steps in which each unit takes part with probability ``rate``; neighbours have one unit
    more or less. 0 where no epsilon is needed."""
    return max(_epsilon(noise, rate, steps, delta, is_added) for is_added in (False, True))


def _epsilon(noise: float, rate: float, steps: int, delta: float, is_added: bool) -> float:
    # P(L > l) <= exp((order - 1) (steps D_order - l)), and the same of -L in the other direction.
    curve, orders = steps * poisson(noise, rate), np.array(ORDERS)
    reach = float((curve - math.log(TAIL) / (orders - 1)).min()) + 1.0
    size = 1 << math.ceil(math.log2(min(2 * reach / STEP, MOST)))
    distance = max(STEP, 2 * reach / size)
    losses = distance * np.arange(-(size // 2), size // 2, dtype=np.float64)
    of_step = _mass(noise, rate, losses, is_added)
    # Places are counted from a loss of 0, and modulo the grid.
    spectrum = np.fft.rfft(np.fft.ifftshift(of_step))
    composed = np.fft.fftshift(np.fft.irfft(spectrum**steps, size))
    mass = np.maximum(composed, 0.0)[::-1]  # from the largest loss down
    # delta(l) = sum over larger losses m of p (1 - exp(l - m))
    above = np.cumsum(mass)[::-1]
    weighted = np.cumsum(mass * np.exp(-losses[::-1]))[::-1]
    deltas = above - np.exp(np.minimum(losses, 700.0)) * weighted
    fitting = np.flatnonzero((losses >= 0) & (deltas <= delta))
    if not len(fitting):
        return math.inf
    at = int(fitting[0])
    if losses[at] <= 0 or deltas[at - 1] <= delta:
        return float(losses[at])
    share = (deltas[at - 1] - delta) / (deltas[at - 1] - deltas[at])
    return float(losses[at - 1] + distance * share)


def _mass(noise: float, rate: float, losses: NDArray[np.float64], is_added: bool) -> NDArray[np.float64]:
    """The mass of each loss of one step: between two of them it is divided such that both distributions keep theirs."""
    from scipy.special import ndtr  # which runs without privacy do not load

    # The outcome x at which the likelihood ratio of a unit's presence is exp(loss), or of its absence.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.exp(-losses if is_added else losses)
        x = noise**2 * np.log(np.maximum((ratio - (1 - rate)) / rate, 0.0)) + 0.5
    x = np.where(np.isnan(x), -np.inf, x)

    def between(shift: float) -> NDArray[np.float64]:
        """Mass of N(shift, noise²) between neighbouring outcomes, accurate in both tails."""
        place = (x - shift) / noise
        low, high = np.minimum(place[:-1], place[1:]), np.maximum(place[:-1], place[1:])
        mass: NDArray[np.float64] = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
        return mass

    absent = between(0.0)
    present = (1 - rate) * absent + rate * between(1.0)
    first, second = (absent, present) if is_added else (present, absent)  # L = log(first / second), under the first
    fall = np.exp(-losses)
    # p_low + p_high = first and p_low e^-low + p_high e^-high = second
    with np.errstate(over="ignore", invalid="ignore"):
        high = (first * fall[:-1] - second) / (fall[:-1] - fall[1:])
    high = np.clip(np.nan_to_num(high), 0.0, first)
    mass = np.zeros(len(losses))
    mass[1:] += high
    mass[:-1] += first - high
    return mass
