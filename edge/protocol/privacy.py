"""Differential privacy of updates: clipping, and noise. Numpy alone; no torch.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018,
https://arxiv.org/abs/1710.06963 (of clients); Abadi et al., Deep Learning with Differential Privacy, CCS 2016,
https://arxiv.org/abs/1607.00133 (of examples). An update is the change of a visit; all of its vectors are clipped as
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from edge.protocol.payload import Floats, Vector

CHUNK = 1 << 15
"""Numbers at a time, so that intermediate results stay in the processor's cache"""
EXAMPLE_NUMBERS = 1 << 24
"""Numbers of gradients of single examples that are in memory together, or one gradient"""
FLOPS_OF_WEIGHT, FLOPS_OF_NOISE = 4, 2
"""FLOPs of DP-SGD for each weight: the square and the scaled sum of an example's gradient; the noise of a step"""


def examples_at_a_time(weights: int) -> int:
    """Examples whose gradients are computed together."""
    return max(1, EXAMPLE_NUMBERS // max(weights, 1))


def norm_of(changes: Mapping[str, Floats]) -> float:
    """The L2 norm of all vectors together, in float64; the order of its sums is the same on every processor."""
    return math.sqrt(
        sum(
            float(np.square(vector[start : start + CHUNK], dtype=np.float64).sum())
            for vector in changes.values()
            for start in range(0, vector.size, CHUNK)
        )
    )


def clipped(model: Mapping[str, Vector], start: Mapping[str, Vector], clip: float) -> tuple[dict[str, Vector], float]:
    """A model whose change from ``start`` is scaled down to a norm of at most ``clip``, and the norm before that.

    The same vectors where the norm is not above it.
    """
    changes = {key: vector.data - start[key].data for key, vector in model.items()}
    norm = norm_of(changes)
    if norm <= clip:
        return dict(model), norm
    factor = np.float32(clip / norm)
    scaled = {}
    for key, change in changes.items():  # in place, since fresh memory takes longer than arithmetic
        np.multiply(change, factor, out=change)
        scaled[key] = Vector(np.add(change, start[key].data, out=change))
    return scaled, norm


def with_noise(model: Mapping[str, Vector], deviation: float, rng: np.random.Generator) -> dict[str, Vector]:
    """A model with Gaussian noise of this standard deviation on every weight."""
    return {key: Vector(noisy(vector.data, deviation, rng)) for key, vector in model.items()}


def noisy(numbers: Floats, deviation: float, rng: np.random.Generator) -> Floats:
    """float32 numbers with Gaussian noise."""
    if not deviation:
        return numbers
    noise = gaussian(numbers.size, rng)
    noise *= np.float32(deviation)
    noise += numbers
    return noise


def gaussian(size: int, rng: np.random.Generator) -> Floats:
    """Standard Gaussian numbers, of a generator that ``rng`` seeds: a million take three quarters of its own time."""
    return np.random.Generator(np.random.SFC64(int(rng.integers(2**63)))).standard_normal(size, np.float32)
