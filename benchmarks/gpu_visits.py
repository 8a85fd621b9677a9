"""Visits of one client in variants, in turns: ``python -m benchmarks.gpu_visits REQUEST``.

The request is the JSON of the arguments of `main`. One process, one thread of the CPU. A variant that fails is a failed
line, and the others go on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from benchmarks.engine_parts.steps import Product, vector
from benchmarks.harness import MIB, failure, in_turns, send_line
from edge.protocol.config import CPU
from edge.protocol.payload import Floats

WARM_UP = 2
"""Visits of each variant before it is timed, on a GPU: libraries choose kernels, graphs are captured."""
SHARE = 0.8
"""Of the limit, after which no further cycle begins."""


class Client(Product):
    """One client under a variant, with the peak of the GPU's memory and the model of its last visit."""

    nbytes = 0
    model: Floats

    def seconds(self) -> float:
        """Seconds of a step, in a visit with its batches, download and upload."""
        device, before = self.site.device, 0
        if device.type != CPU:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        started = time.perf_counter()
        self.model = self.train({})
        taken = time.perf_counter() - started
        if device.type != CPU:
            self.nbytes = torch.cuda.max_memory_allocated(device) - before
        return taken / (self.loaded.scenario.train.local_steps or 1)

    def distance(self, other: Client) -> float:
        """How far its model is from another's, relatively to how far that has moved."""
        moved = np.linalg.norm(other.model - vector(self.payload))
        return float(np.linalg.norm(self.model - other.model) / moved)


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
    torch.set_num_threads(1)
    began, clients = time.monotonic(), dict[str, Client]()

    def visit(name: str, overrides: Sequence[str]) -> float:
        if name not in clients:
            clients[name] = Client(scenario, overrides, device=device)
        return clients[name].seconds()

    visits = {name: partial(visit, name, overrides) for name, overrides in variants.items()}
    warm_up = 1 if device == CPU else WARM_UP
    turns = in_turns(visits, cycles, warm_up, began + SHARE * seconds, keep_going=True)
    for name in turns.seconds:
        client, base = clients[name], bases.get(name, "")
        notes = [f"{client.nbytes / MIB:.0f} MiB"] if client.nbytes else []
        if {name, base} <= set(same) & set(turns.seconds):
            notes.append(f"model off by {client.distance(clients[base]):.1e} of its way")
        send_line(turns.line(name, base, *notes))
    for name, error in turns.errors.items():
        send_line(failure(name, error))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
