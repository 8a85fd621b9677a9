"""A step of each optimizer on the flat vector, beside torch's own step on the same vector, in turns on one thread.

``python -m benchmarks.optimizers``: CPU seconds of a step (median) and the ratio to torch's (median over turns), for
vectors of 15,000 to 11 million weights; torch's is the fused one where there is one. Exit code 1 if AdamW takes more
than 1.10 of it. What is timed here is `edge.training.sgd.OptimizerStep` from the gradient on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Line, at_most, in_turns
from edge.protocol.config import CPU, TrainConfig
from edge.training.block_model import BlockModel
from edge.training.sgd import local_step

SIZES = {15_000: 400, 1_000_000: 40, 11_000_000: 6}
"""Weights -> steps that are timed together"""
CYCLES, BAR = 15, 1.10
THEIRS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"fused": True}),
    "adam": (torch.optim.Adam, {"fused": True}),
    "adamw": (torch.optim.AdamW, {"fused": True}),
    "adagrad": (torch.optim.Adagrad, {"fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"foreach": False}),
}


def seconds(step: Callable[[], object], times: int) -> float:
    """CPU seconds of one of so many steps."""
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def lines(name: str, weights: int, times: int) -> list[Line]:
    """Our step beside torch's."""
    net = BlockModel(lambda: [("w", nn.Linear(weights, 1, bias=False))], torch.device(CPU))
    net.flat.fill_(1.0)
    net.grad.fill_(0.5)
    step = local_step(net, TrainConfig(optimizer=name), 0.001)

    def ours() -> None:
        step.has_gradient = True
        step.apply()

    flat = torch.ones(weights)
    flat.grad = torch.full((weights,), 0.5)
    make, how = THEIRS[name]
    optimizer = make([flat], lr=0.001, **how)
    turns = in_turns(
        {"ours": partial(seconds, ours, times), "torch": partial(seconds, optimizer.step, times)}, CYCLES, warm_up=1
    )
    text = (
        f"{name}, {weights:,} weights: {1e6 * turns.median('ours'):,.0f} us, torch {1e6 * turns.median('torch'):,.0f}"
    )
    return [at_most(text, turns.ratio("ours", "torch"), BAR if name == "adamw" else None)]


def main() -> int:
    """Print a line per optimizer and size."""
    torch.set_num_threads(1)
    missed = False
    for name in THEIRS:
        for weights, times in SIZES.items():
            for line in lines(name, weights, times):
                print(f"{line.what}: ratio {line.result} {line.bar}", flush=True)
                missed |= line.met is False
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
