"""The options of Stochastic depth, one object for both of its sides, and its keep probabilities."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge.protocol.options.base import Options

Schedule = Literal["code", "paper"]
DRAWS = "stochdepth: units"
"""Purpose of the random stream of a visit: one uniform number per unit and step, unit after unit; below the keep
probability, the unit keeps its body."""


class StochasticDepthOptions(Options):
    """A training step leaves out the body of residual unit ℓ with probability 1 - p_ℓ; evaluations scale it by p_ℓ."""

    keep_last: float = Field(default=0.9, gt=0, le=1, title="p_L")
    """Probability that the last unit keeps its body; those before it fall evenly from 1. 1 is FedAvg. FedAlign's paper
    has 0.9, the flag of its code 0.5."""
    schedule: Schedule = "code"
    """p_ℓ = 1 - (ℓ-1)/(L-1)·(1 - p_L) as in FedAlign's code, which always keeps the first unit, or 1 - ℓ/L·(1 - p_L) as
    in its paper."""
    dropped: Literal["stay", "decay"] = "stay"
    """Parameters of a body that is left out stay as they are in that step, as torch's optimizers leave parameters
    without a gradient; or their gradient is zero, so that weight decay, momentum and corrections still move them."""


def keep_probabilities(units: int, keep_last: float, schedule: Schedule) -> NDArray[np.float64]:
    """(units,): p_1 .. p_L, which fall evenly to ``keep_last``.

    ``code``: from p_1 = 1, of one unit 1 alone; ``paper``: from p_0 = 1 of the input.
    """
    places = np.arange(1, units + 1)
    falls = places / max(units, 1) if schedule == "paper" else (places - 1) / max(units - 1, 1)
    probabilities: NDArray[np.float64] = 1 - falls * (1 - keep_last)
    return probabilities
