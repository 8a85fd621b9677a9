"""The types of the cost model's arrays and of its random streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", np.float64, np.int64)
Doubles = NDArray[np.float64]
Streams = Callable[[str, int, int], np.random.Generator]
"""(purpose, index, client) -> a generator; the same key always gives the same draws."""


def everywhere(value: Scalar, *shape: int) -> NDArray[Scalar]:
    """An array of one value, read-only, which takes no memory however large it is."""
    return np.ndarray(shape, value.dtype, value.data, strides=(0,) * len(shape))
