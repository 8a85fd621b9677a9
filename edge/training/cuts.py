"""Activations and gradients of a model that is cut, as the other side gets them: clipped, with noise, and decoded.

Both sides train on with what came. A codec's error passes no gradient, as if nothing was rounded (the straight-through
estimator: Y. Bengio, N. Leonard and A. Courville, 2013, https://arxiv.org/abs/1308.3432); clipping does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge.protocol.codecs.update_codec import VectorCodecs
from edge.protocol.config import Cut
from edge.protocol.payload import ACTIVATIONS, GRADIENTS

Way = Callable[[Tensor], Tensor]
"""Outputs of a block -> what the next one gets"""


class Sent(torch.autograd.Function):
    """Numbers as they come on the way forward, and their gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, received: Callable[[str, Tensor], Tensor]) -> Tensor:
        """(batch, ..) -> the same."""
        ctx.received = received
        return received(ACTIVATIONS, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient as it comes down."""
        return ctx.received(GRADIENTS, gradients[0]), None


class StepMessages:
    """The messages of one visit's steps, one after another."""

    def __init__(self, cut: Cut, codecs: VectorCodecs, rng: np.random.Generator) -> None:
        """``rng``: of the visit, for noise and for codecs that draw."""
        self._cut, self._codecs, self._rng = cut, codecs, rng

    def ways(self, blocks: Sequence[str]) -> dict[int, Way]:
        """Index of a block whose outputs travel -> how."""
        front, *back = self._cut.places(blocks)
        return {front: self._from_front, **dict.fromkeys(back, self._sent)}

    def _from_front(self, x: Tensor) -> Tensor:
        """What the server gets of the front's outputs, (batch, ..)."""
        cut = self._cut
        if cut.clip is not None:
            norms = x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
            x = x * (cut.clip / norms).clamp_max(1.0).view(-1, *[1] * (x.dim() - 1))
            if cut.noise:
                noise = self._rng.standard_normal(tuple(x.shape)) * (cut.noise * cut.clip)
                x = x + torch.from_numpy(noise).to(x)
        return self._sent(x)

    def _sent(self, x: Tensor) -> Tensor:
        sent: Tensor = Sent.apply(x, self._received) if self._codecs.is_used else x
        return sent

    def _received(self, slot: str, x: Tensor) -> Tensor:
        """The numbers of a message as its receiver decodes them."""
        numbers, tensors = x.detach().to("cpu", torch.float32).numpy().reshape(-1), ((x.numel(),),)
        codec = self._codecs.codec(slot, "", x.numel())
        if codec is None or not np.isfinite(numbers).all():  # which no codec has, and makes the update invalid
            return x
        rng = deepcopy(self._rng)
        frame = codec.encode(numbers, tensors, self._rng).frame
        return torch.from_numpy(codec.decode(frame.data, tensors, rng)).view(x.shape).to(x)
