"""Rates of a device by kind of operation, fitted to measured training steps. Never torch, and nothing is measured here.

seconds of a step = step_seconds + sum over kinds of (operations of the step / operations_per_second)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from edge.protocol.operations import FLOP_KINDS, KINDS

FASTEST = 2.0
"""No kind of FLOPs is fitted with more than this times the most FLOP/s of any measured step. One whose share of all
steps is within their noise would else take no time."""


@dataclass(frozen=True)
class Measurement:
    """Steps of one network at one batch size."""

    model: str
    width: int | None
    fitted: bool
    """Whether the device is fitted to it; others show how far the fit holds."""
    family: str
    batch: int
    flops: float
    """FLOPs of one example in a plain step; 1 MAC = 2 FLOPs."""
    seconds: float
    """CPU time of one step: the least of the passes' lower quartiles."""
    spread: float
    """The largest of these quartiles above the least, as a fraction."""
    operations: NDArray[np.float64]
    """(kinds, 2): of a step, per example and per step."""

    @property
    def counts(self) -> NDArray[np.float64]:
        """(kinds,): operations of a step of this batch."""
        counts: NDArray[np.float64] = self.operations @ np.array([self.batch, 1.0])
        return counts


@dataclass(frozen=True)
class Fit:
    """What the steps of a device take."""

    step_seconds: float
    operations_per_second: dict[str, float]
    """By kind; kinds that no step has, or that take no time, are missing."""
    flops_per_second: dict[str, float]
    """Geometric mean of a family's steps, by family, for models whose operations are not known."""


def fit(measurements: Sequence[Measurement]) -> Fit:
    """The rates with the least sum of squared relative errors; none is negative.

    ValueError without measurements.
    """
    if not measurements:
        raise ValueError("there is nothing to fit: no step was measured")
    seconds = np.array([measured.seconds for measured in measurements])
    counts = np.array([[1.0, *measured.counts] for measured in measurements])
    # Divided by its measured seconds, a step reads 1 = sum of cost * count. Columns are scaled to be alike.
    relative = counts / seconds[:, None]
    scale = relative.max(axis=0)
    present = scale > 0
    most = max(measured.flops * measured.batch / measured.seconds for measured in measurements)
    least = np.array([1 / (FASTEST * most) if kind in FLOP_KINDS else 0.0 for kind in ("step", *KINDS)])
    bounds = ((least * scale)[present], np.inf)
    found = lsq_linear(relative[:, present] / scale[present], np.ones(len(seconds)), bounds, method="bvls")
    costs = np.zeros(len(scale))
    costs[present] = np.maximum(found.x, 0.0) / scale[present]  # the solver may leave a bound by its last bit
    rates = {kind: float(1 / cost) for kind, cost in zip(KINDS, costs[1:], strict=True) if cost > 0}
    logs: dict[str, list[float]] = {}
    for measured in measurements:
        reached = measured.flops * measured.batch / measured.seconds
        logs.setdefault(measured.family, []).append(math.log(reached))
    families = {family: math.exp(math.fsum(values) / len(values)) for family, values in logs.items()}
    return Fit(float(costs[0]), rates, families)
