"""Visits of one client in variants, in turns: ``python -m benchmarks.gpu_parts.visits REQUEST``.

The request is the JSON of the arguments of `main`. One process, one thread of the CPU. A variant that fails is a failed
line, and the others go on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness import MIB, Turns, failure, in_turns, send_line
from edge.protocol.config import CPU
from edge.protocol.messages import Train
from edge.protocol.payload import MODEL, Floats, Payload
from edge.training.trainer import LocalTrainer
from scenarios.config.cache import cache_folder
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.builder import job

WARM_UP = 2
"""Visits of each variant before it is timed, on a GPU: libraries choose kernels, graphs are captured."""
SHARE = 0.8
"""Of the limit, after which no further cycle begins."""
ROUND = 0


class Client:
    """One client on one device."""

    def __init__(self, scenario: str, overrides: Sequence[str], device: str) -> None:
        loaded = load(scenario, parse_all(overrides))
        first = LocalTrainer(job(loaded, None, device, cache_folder()))
        description, self.start = first.describe(False)
        self.trainer = LocalTrainer(job(loaded, description, device, cache_folder()))
        self.lr = loaded.scenario.train.lr

    def visit(self, client: int = 0) -> Floats:
        """The model that goes up, as one vector on the host."""
        return flat(self.trainer.train(Train(client, ROUND, self.lr, {}, self.start), None, None).payload)


def flat(payload: Payload) -> Floats:
    return np.concatenate([vector.data for vector in payload[MODEL].values()])


class Measurement:
    """Variants of the same work: their seconds, peaks of the GPU's memory, and models of the last cycle."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.nbytes: dict[str, int] = {}
        self.models: dict[str, Floats] = {}

    def seconds(self, name: str, work: Callable[[], Floats], count: int) -> float:
        """Of ``work`` by ``count``."""
        before = 0
        if self.device.type != CPU:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        started = time.perf_counter()
        self.models[name] = work()
        taken = time.perf_counter() - started
        if self.device.type != CPU:
            self.nbytes[name] = torch.cuda.max_memory_allocated(self.device) - before
        return taken / count

    def send(self, turns: Turns, bases: Mapping[str, str], notes: Mapping[str, str]) -> None:
        for name in turns.seconds:
            memory = [f"{self.nbytes[name] / MIB:.0f} MiB"] if name in self.nbytes else []
            send_line(turns.line(name, bases.get(name, ""), *memory, *filter(None, [notes.get(name)])))
        for name, error in turns.errors.items():
            send_line(failure(name, error))


def main(
    scenario: str,
    device: str,
    variants: Mapping[str, Sequence[str]],
    bases: Mapping[str, str],
    seconds: float,
    cycles: int,
    same: Sequence[str],
) -> None:
    """``same``: variants of one method, whose models differ by rounding alone; ``seconds``: limit of this process."""
    began, measurement = time.monotonic(), Measurement(device)
    clients: dict[str, Client] = {}

    def step_seconds(name: str, overrides: Sequence[str]) -> float:
        if name not in clients:
            clients[name] = Client(scenario, overrides, device)
        client = clients[name]
        return measurement.seconds(name, client.visit, client.trainer.job.train.local_steps or 1)

    visits = {name: partial(step_seconds, name, overrides) for name, overrides in variants.items()}
    warm_up = 1 if device == CPU else WARM_UP
    turns = in_turns(visits, cycles, warm_up, began + SHARE * seconds, keep_going=True)
    notes = {}
    for name, base in bases.items():
        if {name, base} <= set(same) & set(turns.seconds):
            own, other, start = measurement.models[name], measurement.models[base], flat(clients[name].start)
            off = np.linalg.norm(own - other) / np.linalg.norm(other - start)
            notes[name] = f"model off by {off:.1e} of its way"
    measurement.send(turns, bases, notes)


def run(measure: Callable[..., Any]) -> None:
    torch.set_num_threads(1)
    measure(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    run(main)
