"""Activations and gradients as a model that is cut sends them, in fewer bits than it computes in.

``fp16``: the nearest numbers of 16 bits, at most 65,504. ``int8``: whole multiples of a 127th of the largest number of
a message, which travels with it. Both sides train on with what came, so that gradients pass as if nothing was rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edge.protocol.config import CutNumbers

LARGEST_HALF = 65_504.0
LEVELS = 127


def rounded(x: Tensor, numbers: CutNumbers) -> Tensor:
    """The numbers of a message as its receiver has them."""
    if numbers == "fp16":
        return x.clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16).to(x.dtype)
    if numbers == "int8":
        step = x.abs().amax() / LEVELS
        return torch.where(step > 0, torch.round(x / step) * step, x)
    return x


class Sent(torch.autograd.Function):
    """`rounded` on the way forward, and for the gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, numbers: CutNumbers) -> Tensor:
        """(batch, ..) -> the same."""
        ctx.numbers = numbers
        return rounded(x, numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient as it comes down."""
        return rounded(gradients[0], ctx.numbers), None
