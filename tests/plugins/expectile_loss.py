"""The loss of `tests.plugins.expectile`."""

from __future__ import annotations

from torch import Tensor, where

from tests.plugins.expectile import ExpectileOptions


def each(outputs: Tensor, targets: Tensor, options: ExpectileOptions) -> Tensor:
    """(examples,)"""
    error = targets - outputs[..., 0]
    return (where(error > 0, options.above, 1.0) * error.square()).mean(dim=1)
