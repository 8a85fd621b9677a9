"""One local step on flat vectors, in one fixed order, in place.

Order: zero gradients; loss; backward; corrections; clip the joint norm; unclipped corrections; weight decay; momentum;
step. Weight decay is added after clipping (coupled decay). Momentum starts from zero in each visit, so it never leaks
between clients.

A step is `Sgd.backward` and `Sgd.apply`. The gradients of several backward passes before an application add up: a batch
may be cut in parts, each with its share of the mean loss, and the step is the same but for the rounding of sums.

``train.precision = bf16`` computes the loss under autocast: convolutions and matrix products round their inputs and
results to bfloat16. The parameters, the gradients in ``net.grad``, and all operations on them and on logits stay
float32. Normalisation has float32 parameters and statistics, and bfloat16 inputs and outputs: casting its inputs up
would cost 5 % of a step of resnet18 of width 16, and 18 % of width 64, on an Intel Xeon with AVX512-BF16 and AMX.
Evaluation is always in float32, so that accuracies can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from edge.protocol.config import TrainConfig
from edge.training.block_model import BlockModel

NORM_BLOCK = 4096
"""Numbers of a gradient whose squares are summed in float32; the sums of blocks are summed in float64."""
Loss = Callable[[BlockModel, Tensor, Tensor], Tensor]


class Sgd:
    """SGD with weight decay, momentum and clipping, over all of a net or some of its blocks.

    ``corrections`` are called between backward and clipping, to change ``net.grad`` in place; ``unclipped`` between
    clipping and weight decay. ``shifts`` are vectors (classes,) that are added to all logits of a loss. ``lr`` may be a
    tensor of one number on the net's device, for steps that are captured and replayed at other rates
    (`edge.training.cuda_graphs`).
    """

    def __init__(
        self,
        net: BlockModel,
        config: TrainConfig,
        lr: float | Tensor,
        corrections: Sequence[Callable[[BlockModel], None]] = (),
        unclipped: Sequence[Callable[[BlockModel], None]] = (),
        shifts: Sequence[Tensor] = (),
    ) -> None:
        self.net = net
        self.config = config
        self.lr = lr
        self.corrections = corrections
        self.unclipped = unclipped
        self.shifts = tuple(shifts)
        self.steps = 0
        self.has_gradient = False
        """Whether ``net.grad`` has gradients that have not been applied."""
        if config.momentum:
            # Zero, so that the first momentum is the first gradient, as in torch.
            self._momentum = net.scratch("momentum").zero_()

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """One step on a batch; ``only``: the blocks that are updated (default: all), as if there were no others."""
        self.zero()
        self.backward(loss, x, y)
        self.apply(only)

    def zero(self) -> None:
        """Discard gradients that have not been applied."""
        self.net.grad.zero_()
        self.has_gradient = True

    def backward(self, loss: Loss, x: Tensor, y: Tensor) -> None:
        """Add the gradient of a loss on a batch to those since the last application."""
        if not self.has_gradient:
            self.zero()
        self.net.logit_shifts = self.shifts
        try:
            with autocast(self.config.precision, self.net.device):
                value = loss(self.net, x, y)
        finally:
            self.net.logit_shifts = ()
        torch.autograd.backward(value)

    def apply(self, only: Sequence[str | slice] | None = None) -> None:
        """Correct and clip the gradients, and move; ``only`` as of a whole step, or slices of the flat vectors."""
        net = self.net
        if not self.has_gradient:
            self.zero()
        for correct in self.corrections:
            correct(net)
        parts: Sequence[slice | None] = [None]
        if only is not None:
            parts = [part if isinstance(part, slice) else net.slices[part] for part in only]
        if self.config.clip > 0:
            clip([_cut(net.grad, part) for part in parts], self.config.clip)
        for correct in self.unclipped:
            correct(net)
        for part in parts:
            self._move(part)
        self.has_gradient = False
        self.steps += 1

    def _move(self, part: slice | None) -> None:
        config, flat, step = self.config, _cut(self.net.flat, part), _cut(self.net.grad, part)
        if config.weight_decay:
            step.add_(flat, alpha=config.weight_decay)
        if config.momentum:
            momentum = _cut(self._momentum, part).mul_(config.momentum).add_(step)
            step = step.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
        if isinstance(self.lr, Tensor):
            flat.addcmul_(step, self.lr, value=-1)
        else:
            flat.add_(step, alpha=-self.lr)


def _cut(vector: Tensor, part: slice | None) -> Tensor:
    return vector if part is None else vector[part]


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """The context of a training loss in this precision (``tf32`` is set for a whole process)."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def clip(grads: Sequence[Tensor], limit: float) -> None:
    """Scale gradients (numbers,) down, in place, to a joint L2 norm of at most ``limit``."""
    parts = []
    for grad in grads:
        # One float32 sum of millions of squares loses 0.5 % of the norm; a copy in float64 takes twenty times as long.
        end = grad.numel() - grad.numel() % NORM_BLOCK
        if end:
            parts.append(torch.linalg.vector_norm(grad[:end].view(-1, NORM_BLOCK), dim=1))
        parts.append(torch.linalg.vector_norm(grad[end:].view(1, -1), dim=1))
    norm = torch.linalg.vector_norm(torch.cat(parts), dtype=torch.float64)
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0).float()
    for grad in grads:
        grad.mul_(scale)
