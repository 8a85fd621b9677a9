"""What the coordinator must know before round 0: blocks, initial vectors, FLOPs per block and kind of pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edge.blocks import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Block, Net
from edge.payload import MODEL, Payload
from edge.streams import generator

EXAMPLES = 2  # batch statistics need more than one


def seeded(seed: int, make: Callable[[], list[Block]]) -> Callable[[], list[Block]]:
    """``make`` with torch's random state set from (seed, init), and put back afterwards.

    Torch's default initialisation draws from the global state; this is the only place that sets it.
    """

    def build() -> list[Block]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed, "init").integers(2**62)))
            return make()

    return build


def initial(net: Net) -> Payload:
    """All vectors of a freshly made net."""
    return {MODEL: net.dump(net.layout.sizes)}


def flops_per_example(make: Callable[[], list[Block]], shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """FLOPs per example of each block: (blocks, 3) for forward, weight gradient, input gradient.

    ``shape`` is (channels, height, width). Counted by torch on tensors without memory; convolutions and matrix
    products are counted, element-wise work and normalisation are not. 1 MAC = 2 FLOPs.
    """
    with torch.device("meta"):
        modules = [module for _, module in make()]
        x = torch.empty((EXAMPLES, *shape))
    flops = np.zeros((len(modules), 3))
    for row, module in zip(flops, modules, strict=True):
        row[FORWARD] = _count(lambda m=module, v=x: m(v))  # type: ignore[misc]
        row[WEIGHT_GRADIENT] = _backward(module, x, weights=True)
        row[INPUT_GRADIENT] = _backward(module, x, weights=False)
        x = module(x).detach()
    return flops / EXAMPLES


def _backward(module: nn.Module, x: torch.Tensor, weights: bool) -> int:
    module.requires_grad_(weights)
    y = module(x.detach().requires_grad_(not weights))
    return _count(lambda: torch.autograd.backward(y, torch.empty_like(y))) if y.requires_grad else 0


def _count(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()
