"""One local step on flat vectors, in one fixed order.

zero gradients; loss; backward; corrections; clip the joint norm; weight decay; momentum; step. Weight decay is added
after clipping (coupled decay). The optimiser is made afresh for each visit, so momentum never leaks between clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from edge.blocks import Net
from edge.config import TrainConfig

Loss = Callable[[Net, Tensor, Tensor], Tensor]


class Sgd:
    """SGD with weight decay, momentum and clipping, over all of a net or some of its blocks.

    ``corrections`` are called between backward and clipping, to change ``net.grad`` in place.
    """

    def __init__(
        self, net: Net, config: TrainConfig, lr: float, corrections: Sequence[Callable[[Net], None]] = ()
    ) -> None:
        self.net = net
        self.config = config
        self.lr = lr
        self.corrections = corrections
        self.steps = 0
        self._momentum: Tensor | None = None

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """One step on a batch; ``only`` names the blocks that move (default: all), as if there were no others."""
        net = self.net
        net.grad.zero_()
        torch.autograd.backward(loss(net, x, y))
        for correct in self.corrections:
            correct(net)
        parts = [slice(None)] if only is None else [net.slices[name] for name in only]
        self._clip(parts)
        for part in parts:
            self._move(part)
        self.steps += 1

    def _clip(self, parts: Sequence[slice]) -> None:
        if self.config.clip > 0:
            grads = [self.net.grad[part] for part in parts]
            norm = torch.linalg.vector_norm(grads[0] if len(grads) == 1 else torch.cat(grads))
            scale = torch.clamp(self.config.clip / (norm + 1e-6), max=1.0)
            for grad in grads:
                grad.mul_(scale)

    def _move(self, part: slice) -> None:
        config, flat, step = self.config, self.net.flat[part], self.net.grad[part]
        if config.weight_decay:
            step.add_(flat, alpha=config.weight_decay)
        if config.momentum:
            step = self._with_momentum(part, step)
        flat.add_(step, alpha=-self.lr)

    def _with_momentum(self, part: slice, step: Tensor) -> Tensor:
        if self._momentum is None:
            # Momentum starts from zero: then the first sum is the first step, as in torch.
            self._momentum = torch.zeros_like(self.net.grad)
        momentum = self._momentum[part].mul_(self.config.momentum).add_(step)
        return step.add(momentum, alpha=self.config.momentum) if self.config.nesterov else momentum
