"""Rows of parametrised tests, of which `make test` has some and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def every(step: int, rows: Iterable[Any], first: int = 0, is_one: bool = False) -> list[Any]:
    """All rows, of which those between each ``step``-th are long; ``is_one``: a row that is a tuple is one value."""
    return [_row((row,) if is_one else row, (number - first) % step == 0) for number, row in enumerate(rows)]


def crossed(*axes: Sequence[Any]) -> list[Any]:
    """All combinations, of which those are long that are not needed to have each value of each axis once."""
    needed = {tuple(number % len(axis) for axis in axes) for number in range(max(map(len, axes)))}
    places = product(*(range(len(axis)) for axis in axes))
    return [
        _row(tuple(axis[number] for axis, number in zip(axes, place, strict=True)), place in needed) for place in places
    ]


def _row(row: Any, is_short: bool) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=() if is_short else pytest.mark.long)
