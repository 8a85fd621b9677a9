"""One local step on flat vectors, in the fixed order of METHODS 0.2.

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

    def __init__(self, net: Net, config: TrainConfig, lr: float, corrections: Sequence[Callable[[Net], None]] = ()) -> None:
        self.net = net
        self.config = config
        self.lr = lr
        self.corrections = corrections
        self.steps = 0
        self._momentum: Tensor | None = None

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """One step on a batch; ``only`` names the blocks that move (default: all)."""
        net = self.net
        net.grad.zero_()
        torch.autograd.backward(loss(net, x, y))
        for correct in self.corrections:
            correct(net)
        self._clip()
        self._move(only)
        self.steps += 1

    def _clip(self) -> None:
        if self.config.clip > 0:
            scale = self.config.clip / (torch.linalg.vector_norm(self.net.grad) + 1e-6)
            self.net.grad.mul_(torch.clamp(scale, max=1.0))

    def _move(self, only: Sequence[str] | None) -> None:
        config, flat, step = self.config, self.net.flat, self.net.grad
        if config.weight_decay:
            step.add_(flat, alpha=config.weight_decay)
        if config.momentum:
            if self._momentum is None:
                self._momentum = step.clone()
            else:
                self._momentum.mul_(config.momentum).add_(step)
            step = step.add(self._momentum, alpha=config.momentum) if config.nesterov else self._momentum
        if only is None:
            flat.add_(step, alpha=-self.lr)
        else:
            for name in only:
                part = self.net.slices[name]
                flat[part].add_(step[part], alpha=-self.lr)
