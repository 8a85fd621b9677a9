"""The rate at which this machine moves memory in an optimizer's step, with one core.

The step is AdamW's, which reads and writes 28 B a weight in one pass, over vectors that no cache holds.
"""

from __future__ import annotations

import time

import torch

from edge.protocol.optimizers import OPTIMIZERS, AdamWOptions
from edge.training.optimizers import adamw

WEIGHTS, FEW_WEIGHTS = 8 << 20, 1 << 18
STEPS = 7


def memory_rate(weights: int, steps: int = STEPS) -> float:
    """Bytes per second of the fastest of these steps, in CPU time."""
    row, options = OPTIMIZERS["adamw"], AdamWOptions()
    vector, grad = torch.ones(weights), torch.full((weights,), 0.5)
    state = {name: torch.zeros(weights) for name in row.state(options)}
    taken = []
    for step in range(steps + 1):  # the first one touches the memory
        start = time.process_time()
        adamw(vector, grad, state, step, row.lr, options)
        taken.append(time.process_time() - start)
    return row.traffic(options) * weights / min(taken[1:])
