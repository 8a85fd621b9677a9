"""Visits of one client in variants, in turns: ``python -m benchmarks.gpu_parts.visits REQUEST``.

A visit is the whole work of a worker for it: download, batches, steps, upload. One process, one thread of the CPU. A
variant that fails is a failed row, and the others go on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.gpu_parts.children import tell
from benchmarks.gpu_parts.report import Row, in_turns
from edge.protocol.config import CPU
from edge.protocol.messages import Train
from edge.protocol.payload import MODEL, Floats, Payload
from edge.training.trainer import LocalTrainer
from scenarios.config.cache import cache_folder
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.builder import job

WARM_UP = 2
"""Visits of each variant before it is timed, on a GPU: libraries choose kernels, graphs are captured"""
SHARE = 0.8
"""Of the limit, after which no further cycle begins"""
ROUND = CLIENT = 0
MOST_TEXT = 300
"""Characters of an error in the table"""


@dataclass(frozen=True)
class Request:
    """What is measured."""

    toml: str
    device: str
    steps: int
    """Of a visit"""
    variants: dict[str, list[str]]
    """Name -> overrides"""
    bases: dict[str, str]
    """Name -> the variant that it is held against"""
    seconds: float
    """Limit of this process"""
    cycles: int
    """Most turns"""
    prefix: str
    """Before the names in the table"""
    same: list[str]
    """Variants of one method, whose models differ by rounding alone"""


class Client:
    """One client on one device."""

    def __init__(self, toml: str, overrides: list[str], device: str) -> None:
        loaded = load(toml, parse_all(overrides))
        first = LocalTrainer(job(loaded, None, device, cache_folder()))
        description, self.start = first.describe(False)
        self.trainer = LocalTrainer(job(loaded, description, device, cache_folder()))
        self.lr = loaded.scenario.train.lr

    def visit(self, client: int = CLIENT) -> Floats:
        """The model that goes up, as one vector on the host."""
        update = self.trainer.train(Train(client, ROUND, self.lr, {}, self.start), None, None)
        return flat(update.payload)

    def timed(self) -> tuple[float, int, Floats]:
        """(seconds, bytes of the GPU that the visit takes beside what is there, model)."""
        before = reset_peak(self.trainer.device)
        started = time.perf_counter()
        model = self.visit()
        return time.perf_counter() - started, peak(self.trainer.device) - before, model


def flat(payload: Payload) -> Floats:
    """A model as one vector."""
    return np.concatenate([vector.data for vector in payload[MODEL].values()])


def reset_peak(device: torch.device) -> int:
    """Bytes of the GPU in use now, from which a peak is counted; 0 without one."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device: torch.device) -> int:
    """Most bytes of the GPU in use since `reset_peak`; 0 without one."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def distance(model: Floats, other: Floats, start: Floats) -> float:
    """How far a model is from another, relatively to how far that has moved."""
    return float(np.linalg.norm(model - other) / np.linalg.norm(other - start))


@contextmanager
def reported(what: str) -> Iterator[None]:
    """A failure in the block is a failed row."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        tell(Row(what, note=f"{type(error).__name__}: {error}"[:MOST_TEXT], failed=True))


def main(text: str) -> None:
    request, began = Request(**json.loads(text)), time.monotonic()
    seconds: dict[str, list[float]] = {}
    nbytes: dict[str, int] = {}
    models: dict[str, Floats] = {}
    clients: dict[str, Client] = {}
    for name, overrides in request.variants.items():
        with reported(request.prefix + name):
            made = Client(request.toml, overrides, request.device)
            for _ in range(1 if request.device == CPU else WARM_UP):
                made.visit()
            clients[name], seconds[name] = made, []
    for cycle in range(request.cycles):
        if cycle and time.monotonic() - began > SHARE * request.seconds:
            break
        for name in list(seconds):
            taken = None
            with reported(request.prefix + name):
                taken, nbytes[name], models[name] = clients[name].timed()
            if taken is None:
                del seconds[name]
            else:
                seconds[name].append(taken / request.steps)
    for found in in_turns(seconds, request.bases):
        base, note = models.get(found.to), ""
        if base is not None and {found.what, found.to} <= set(request.same):
            start = flat(clients[found.what].start)
            note = f"model off by {distance(models[found.what], base, start):.1e} of its way"
        to, memory = request.prefix + found.to if found.to else "", nbytes[found.what] or None
        tell(replace(found, what=request.prefix + found.what, to=to, nbytes=memory, note=note))


if __name__ == "__main__":
    main(sys.argv[1])
