"""One local step on flat vectors, in one fixed order, in place.

Order: zero gradients; loss; backward; corrections; clip the joint norm; unclipped corrections; weight decay; momentum;
step. Weight decay is added after clipping (coupled decay). Other optimizers have everything up to unclipped corrections
in common, and then make a move of their own (`local_step`, `edge.training.optimizers`). What an optimizer keeps beside
the weights begins anew in each visit, unless ``train.optimizer_state`` says otherwise, so it never leaks between
clients.

A step is `Sgd.backward` and `Sgd.apply`. The gradients of several backward passes before an application add up: a batch
may be cut in parts, each with its share of the mean loss, and the step is the same but for the rounding of sums.

``train.precision = bf16`` computes the loss under autocast: convolutions and matrix products round their inputs and
results to bfloat16. The parameters, the gradients in ``net.grad``, and all operations on them and on logits stay
float32. Normalisation has float32 parameters and statistics, and bfloat16 inputs and outputs: casting its inputs up
would cost 5 % of a step of resnet18 of width 16, and 18 % of width 64, on an Intel Xeon with AVX512-BF16 and AMX.
Evaluation is always in float32, so that accuracies can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from edge.protocol.config import MOMENTUM, TrainConfig
from edge.protocol.optimizers import SGD
from edge.training.block_model import BlockModel
from edge.training.blocks import load_dotted

NORM_BLOCK = 4096
"""Numbers of a gradient whose squares are summed in float32; the sums of blocks are summed in float64."""
Loss = Callable[[BlockModel, Tensor, Tensor], Tensor]
Move = Callable[[Tensor, Tensor, Mapping[str, Tensor], int, float, Any], None]
"""`edge.protocol.optimizers.OptimizerRow.move`"""


class Sgd:
    """SGD with weight decay, momentum and clipping, over all of a net or some of its blocks.

    ``corrections`` are called between backward and clipping, to change ``net.grad`` in place; ``unclipped`` between
    clipping and weight decay. ``shifts`` are vectors (classes,) that are added to all logits of a loss. ``lr`` may be a
    tensor of one number on the net's device, for steps that are captured and replayed at other rates
    (`edge.training.cuda_graphs`). ``planned`` is the number of steps that a schedule within the visit spans. ``kept``
    are the steps that each block's state has behind it, (blocks,), where the vectors of `optimizer_scratch` have been
    loaded, and are counted on in place; None: they begin anew.
    """

    def __init__(
        self,
        net: BlockModel,
        config: TrainConfig,
        lr: float | Tensor,
        corrections: Sequence[Callable[[BlockModel], None]] = (),
        unclipped: Sequence[Callable[[BlockModel], None]] = (),
        shifts: Sequence[Tensor] = (),
        planned: int = 0,
        kept: list[int] | None = None,
    ) -> None:
        self.net = net
        self.config = config
        self.lr = lr
        self.corrections = corrections
        self.unclipped = unclipped
        self.shifts = tuple(shifts)
        self.planned = planned
        self.steps = 0
        self.steps_of_blocks = [0] * len(net) if kept is None else kept
        """Steps that the optimizer's state of each block has behind it"""
        self.has_gradient = False
        """Whether ``net.grad`` has gradients that have not been applied."""
        self._begun_lr = lr if config.visit_schedule == "constant" else float(lr)
        # Momentum is zero at first, so that the first one is the first gradient, as in torch.
        self.state = optimizer_scratch(net, config, is_new=kept is None)

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """One step on a batch; ``only``: the blocks that are updated (default: all), as if there were no others."""
        self.schedule()
        self.scheduled(loss, x, y, only)

    def schedule(self) -> None:
        """Set the step size of the step that follows, and count it."""
        if self.config.visit_schedule != "constant":
            rate = self.config.lr_of_step(float(self._begun_lr), self.steps, self.planned)
            if isinstance(self.lr, Tensor):
                self.lr.fill_(rate)
            else:
                self.lr = rate
        self.steps += 1

    def scheduled(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """The step after `schedule`, all of which happens on the net's device."""
        self.zero()
        self.backward(loss, x, y)
        self._apply(only)

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
        self.schedule()
        self._apply(only)

    def _apply(self, only: Sequence[str | slice] | None) -> None:
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
        self._move(parts)
        self.has_gradient = False

    def _move(self, parts: Sequence[slice | None]) -> None:
        for part in parts:
            self._descend(part)

    def _descend(self, part: slice | None) -> None:
        config, flat, step = self.config, _cut(self.net.flat, part), _cut(self.net.grad, part)
        if config.weight_decay:
            step.add_(flat, alpha=config.weight_decay)
        if config.momentum:
            momentum = _cut(self.state[MOMENTUM], part).mul_(config.momentum).add_(step)
            step = step.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
        if isinstance(self.lr, Tensor):
            flat.addcmul_(step, self.lr, value=-1)
        else:
            flat.add_(step, alpha=-self.lr)


class OptimizerStep(Sgd):
    """A step of another optimizer than SGD, which counts the steps of each block: of a block whose numbers have not
    moved, the next step is still the first."""

    def __init__(self, *arguments: Any, **further: Any) -> None:
        super().__init__(*arguments, **further)
        row, self.options = self.config.optimizer_row
        self.optimizer: Move = load_dotted(row.move)

    def _move(self, parts: Sequence[slice | None]) -> None:
        counts = self.steps_of_blocks
        if parts == [None] and len({*counts}) == 1:
            self._move_slice(slice(None), counts[0])
            counts[:] = [count + 1 for count in counts]
            return
        for block, name in enumerate(self.net.layout.names):
            own = self.net.slices[name]
            # A part is a block, or the range of some blocks' numbers.
            ranges = [own if part is None else _common(own, part) for part in parts]
            moving = [each for each in ranges if each.start < each.stop]
            for each in moving:
                self._move_slice(each, counts[block])
            counts[block] += bool(moving)

    def _move_slice(self, part: slice, steps: int) -> None:
        state = {name: vector[part] for name, vector in self.state.items()}
        self.optimizer(self.net.flat[part], self.net.grad[part], state, steps, float(self.lr), self.options)


def local_step(net: BlockModel, config: TrainConfig, lr: float | Tensor, *further: Any, **named: Any) -> Sgd:
    """The step of ``train.optimizer``, with the arguments of `Sgd`; ``lr`` is a number but for SGD."""
    return (Sgd if config.optimizer == SGD else OptimizerStep)(net, config, lr, *further, **named)


def optimizer_scratch(net: BlockModel, config: TrainConfig, is_new: bool = True) -> dict[str, Tensor]:
    """The vectors like the net's that the optimizer keeps beside the weights, by name; if ``is_new``, as they begin."""
    vectors = {name: net.scratch(f"optimizer: {name}") for name in config.optimizer_vectors}
    if is_new:
        for name, first in config.optimizer_vectors.items():
            vectors[name].fill_(first)
    return vectors


def _common(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop))


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
