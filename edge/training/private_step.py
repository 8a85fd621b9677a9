"""DP-SGD: a step along the noisy mean of the clipped gradients of single examples.

Abadi et al., Deep Learning with Differential Privacy, CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1. Each
example of a Poisson batch (`edge.training.batches.PoissonBatches`) gives a gradient over all weights, scaled down to a
norm of at most S; their sum gets noise of z S and is divided by the batch that is expected. What follows (corrections,
weight decay, momentum, other optimizers) sees that mean alone.

Gradients of some examples at a time are computed by `torch.func`, and of recurrent models, which it does not take, of
one after another. They are in memory together: `edge.protocol.privacy.examples_at_a_time`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from edge.protocol.config import PrivacyConfig
from edge.protocol.payload import step_passes
from edge.protocol.privacy import FLOPS_OF_NOISE, FLOPS_OF_WEIGHT, examples_at_a_time, gaussian
from edge.training.adapters import is_frozen
from edge.training.block_model import BlockModel
from edge.training.sgd import Loss, Sgd

Weights = Sequence[Mapping[str, Tensor]]
"""The parameters of each block, by name"""


class ExampleGradients:
    """Clips and adds up the gradients of single examples of a model."""

    def __init__(self, net: BlockModel, clip: float) -> None:
        self.net, self.clip = net, clip
        self.at_a_time = examples_at_a_time(net.flat.numel())
        self.is_recurrent = any(isinstance(layer, nn.RNNBase) for module in net.modules for layer in module.modules())
        self._learning = [
            {name: each for name, each in module.named_parameters() if not is_frozen(each)} for module in net.modules
        ]
        """The parameters of each block that learn, by name; a frozen base is as it is"""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the clipped gradients of these examples to ``net.grad``; returns (examples,) their losses."""
        losses = []
        size = 1 if self.is_recurrent else self.at_a_time
        for start in range(0, len(y), size):
            part = slice(start, start + size)
            gradients, values = self._of_one(x[part], y[part]) if self.is_recurrent else self._of_some(x[part], y[part])
            squares = sum(each.flatten(1).square().sum(1) for of_block in gradients for each in of_block.values())
            assert isinstance(squares, Tensor)
            scale = torch.clamp(self.clip / (squares.sqrt() + 1e-12), max=1.0)
            for named, of_block in zip(self._learning, gradients, strict=True):
                for name, parameter in named.items():
                    assert parameter.grad is not None
                    parameter.grad.add_(torch.tensordot(scale, of_block[name], dims=1))
            losses.append(values)
        return torch.cat(losses)

    def _of_some(self, x: Tensor, y: Tensor) -> tuple[list[dict[str, Tensor]], Tensor]:
        weights = [{name: each.detach() for name, each in named.items()} for named in self._learning]
        each = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0), randomness="different")
        gradients, values = each(weights, x, y)
        return gradients, values

    def _loss(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one example."""
        out: Any = x.unsqueeze(0)
        for module, named in zip(self.net.modules, weights, strict=True):
            out = functional_call(module, dict(named), (out,))
        return self.net.criterion.each(out.float(), y.unsqueeze(0))[0]

    def _of_one(self, x: Tensor, y: Tensor) -> tuple[list[dict[str, Tensor]], Tensor]:
        out: Any = x
        for module in self.net.modules:
            out = module(out)
        value = self.net.criterion.each(out.float(), y)
        named = [(block, *pair) for block, own in enumerate(self._learning) for pair in own.items()]
        found = torch.autograd.grad(value.sum(), [each for _, _, each in named])
        gradients: list[dict[str, Tensor]] = [{} for _ in self.net.modules]
        for (block, name, _), gradient in zip(named, found, strict=True):
            gradients[block][name] = gradient.unsqueeze(0)
        return gradients, value.detach()


class PrivateBackward:
    """Stands in place of a step's backward pass, with the noise of one visit."""

    def __init__(
        self, net: BlockModel, privacy: PrivacyConfig, batch: int, rng: np.random.Generator, losses: list[Tensor]
    ) -> None:
        """``batch``: examples that a batch has on average; ``losses``: where mean losses of batches are noted."""
        self.net, self.privacy, self.batch, self.rng, self.losses = net, privacy, batch, rng, losses
        self.gradients = ExampleGradients(net, privacy.clip)
        self.passes = step_passes(net.layout.learns).astype(np.int64)

    def __call__(self, x: Tensor, y: Tensor) -> None:
        """Set ``net.grad`` to the noisy mean of the clipped gradients of a batch, which may be empty."""
        net, count, weights = self.net, len(y), self.net.flat.numel()
        net.grad.zero_()
        if count:
            self.losses.append(self.gradients.add(x, y).mean().detach())
            net.executed += count * self.passes
            net.add_flops(float(FLOPS_OF_WEIGHT * count * weights))
        noise = torch.from_numpy(gaussian(weights, self.rng)).to(net.device)
        net.grad.add_(noise, alpha=self.privacy.noise * self.privacy.clip).div_(self.batch)
        net.add_flops(float(FLOPS_OF_NOISE * weights))


def make_private(step: Sgd, backward: PrivateBackward) -> Sgd:
    """The step, whose gradients are noisy means of clipped ones; whatever loss it is given is that of the run."""

    def privately(loss: Loss, x: Tensor, y: Tensor) -> None:
        backward(x, y)
        step.has_gradient = True

    step.backward = privately  # type: ignore[method-assign]
    return step
