"""The types of the cost model's arrays and of its random streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Streams = Callable[[str, int, int], np.random.Generator]
"""(purpose, index, client) -> a generator; the same key always gives the same draws."""
