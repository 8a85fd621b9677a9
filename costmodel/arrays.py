"""The types of the cost model's arrays and of its random streams, and operations for arrays and numbers alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", np.float64, np.int64)
Doubles = NDArray[np.float64]
Number = TypeVar("Number", float, Doubles)
"""For formulas of many visits, (visits,), and of one: numpy takes ten times as long for an array of one."""
Truth = bool | NDArray[np.bool_]
Streams = Callable[[str, int, int], np.random.Generator]
"""(purpose, index, client) -> a generator; the same key always gives the same draws."""


def everywhere(value: Scalar, *shape: int) -> NDArray[Scalar]:
    """An array of one value, read-only, which takes no memory however large it is."""
    return np.ndarray(shape, value.dtype, value.data, strides=(0,) * len(shape))


def where(condition: Truth, yes: Any, no: Any) -> Any:
    """`numpy.where`, also for numbers."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
