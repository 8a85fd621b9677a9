"""Keep probabilities of residual units under stochastic depth: the client side draws, the compute plan repeats it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Schedule = Literal["code", "paper"]
DRAWS = "stochdepth: units"
"""Purpose of the random stream of a visit: one uniform number per unit and step, unit after unit; below the keep
probability, the unit keeps its body."""


def keep_probabilities(units: int, keep_last: float, schedule: Schedule) -> NDArray[np.float64]:
    """(units,): p_1 .. p_L, which fall evenly to ``keep_last``.

    ``code``: from p_1 = 1, of one unit 1 alone; ``paper``: from p_0 = 1 of the input.
    """
    places = np.arange(1, units + 1)
    falls = places / max(units, 1) if schedule == "paper" else (places - 1) / max(units - 1, 1)
    probabilities: NDArray[np.float64] = 1 - falls * (1 - keep_last)
    return probabilities
