"""Counts the operations of a training step by kind (`edge.protocol.operations`), on tensors without memory.

Nothing is computed or measured here, so the counts are the same on every machine. The loss and the step of the
optimiser are not counted, but for the number of parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from edge.data.registry import ExampleKind
from edge.protocol import operations
from edge.training.blocks import Block

BATCHES = (2, 4)
"""Batch sizes of the two counted steps, whose difference tells operations per example from those per step."""
GRADIENTS = "convolution_backward"
VIEWS = {
    *("view", "_unsafe_view", "t", "transpose", "detach", "expand", "permute", "slice", "squeeze", "unsqueeze"),
    *("reshape", "alias", "select", "split", "empty_like"),
}
"""Operators that move no numbers."""
POOLS = {"mean", "avg_pool2d", "_adaptive_avg_pool2d"}
"""Operators of an average pool: torch computes a global one as a mean."""
VECTOR = 16
"""Output channels that a processor works on at a time: numbers of 32 bits in 512. A convolution with fewer in its last
vector takes as long as one that fills it; convolutions in groups are computed otherwise."""
ALL_CONVOLUTIONS = "FLOPs of all convolutions"
MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"}
"""Operators whose FLOPs are `operations.LINEAR`, which are counted with those of the model."""


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the operations of everything that runs under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = defaultdict[str, float](float)
        self.pooled = 0
        """Numbers that average pools take"""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator, and count it."""
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in VIEWS:
            return result
        self.counts[operations.CALLS] += 1
        if name in POOLS:
            self.pooled += args[0].numel()
        if name == "convolution":
            self._convolution(args[1], args[0] if args[6] else result, groups=args[8], gradients=1)
            self.counts[operations.CONVOLUTIONS] += 1
        elif name == GRADIENTS:
            self._convolution(args[2], args[1] if args[7] else args[0], groups=args[9], gradients=sum(args[-1][:2]))
        elif name not in MATRIX_PRODUCTS:
            kind = operations.NORMALISED if "_norm" in name else operations.ELEMENTWISE
            self.counts[kind] += _numbers(args) + _numbers(result)
        return result

    def _convolution(self, weight: torch.Tensor, images: torch.Tensor, *, groups: int, gradients: int) -> None:
        """``images``: (batch, channels, places ..), the result, or the input of a transposed convolution; ``gradients``
        of the weights and of the input have as many FLOPs each as the convolution itself."""
        flops = 2.0 * gradients * images.shape[0] * math.prod(images.shape[2:]) * weight.numel()
        wide, narrow = weight.shape[0] // groups, weight.shape[1]
        self.counts[ALL_CONVOLUTIONS] += flops
        if groups > 1 and narrow == 1:
            self.counts[operations.CHANNELWISE] += flops
            return
        kind = operations.POINTWISE if math.prod(weight.shape[2:]) == 1 else operations.CONVOLUTION
        if groups == 1:
            flops *= math.ceil(wide / VECTOR) * VECTOR / wide
        for name, fraction in operations.classes(kind, wide, narrow):
            self.counts[name] += flops * fraction


def _numbers(value: Any) -> int:
    """Numbers in all tensors of an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(_numbers, value)) if isinstance(value, list | tuple) else 0


def operations_of(
    make: Callable[[], list[Block]], shape: Sequence[int], kind: ExampleKind, flops: float
) -> NDArray[np.float64]:
    """(kinds, 2): operations of a plain training step, per example and per step, in the order of `operations.KINDS`.

    ``shape``: of an example. ``flops``: of a plain step per example; those that are in no convolution are
    `operations.LINEAR`.
    """
    few, many = (_step(make, shape, kind, batch) for batch in BATCHES)
    per_example = (many - few) / (BATCHES[1] - BATCHES[0])
    found = np.stack([per_example, few - BATCHES[0] * per_example], axis=1)
    places = {name: index for index, name in enumerate(operations.KINDS)}
    found[places[operations.LINEAR], 0] = max(flops - found[-1, 0], 0.0)
    return np.maximum(found[:-1], 0.0)


def _step(make: Callable[[], list[Block]], shape: Sequence[int], kind: ExampleKind, batch: int) -> NDArray[np.float64]:
    """(kinds + 1,): operations of a step of all blocks on a batch, and `ALL_CONVOLUTIONS`."""
    with torch.device("meta"):
        modules = [module for _, module in make()]
        x = torch.empty((batch, *shape), dtype=torch.int64 if kind == "tokens" else torch.float32)
    with OperationCounter() as counter:
        for module in modules:
            x = module(x)
        torch.autograd.backward(x, torch.empty_like(x))
    parameters = sum(parameter.numel() for module in modules for parameter in module.parameters())
    counter.counts[operations.PARAMETERS] = parameters
    return np.array([counter.counts[name] for name in (*operations.KINDS, ALL_CONVOLUTIONS)], np.float64)
