"""The floor: a hand-written loop of local SGD, a process per core: ``-m benchmarks.engine_parts.floor REQUEST``.

It trains the given clients with the batches that the product would use for them, and means their models at the end of
each round. Nothing is between the loop and torch: examples are normalised beforehand, orders are drawn beforehand, one
model and one optimiser serve all clients, and the two processes meet once a round in shared memory.

The request is the JSON of the arguments of `main`. The answer lists the seconds of each round.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing as mp
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine_parts import images, plain
from edge.data.decoded_cache import open_data
from edge.data.partitioning import cached_partition
from edge.protocol.payload import MODEL, Floats
from edge.protocol.rng import keyed_generator
from edge.training.trainer import LocalTrainer
from scenarios.config.cache import cache_folder
from scenarios.config.load import load
from scenarios.run.builder import job

PROCESSES = 2
Rounds = list[list[int]]


def initial_model(toml: str) -> Floats:
    """The model that runs start from; in a process of its own, since a worker's site sets up its process."""
    _, payload = LocalTrainer(job(load(toml), None, "cpu", cache_folder())).describe(False)
    return np.concatenate([vector.data for vector in payload[MODEL].values()])


class Floor:
    """The model, the data, and the orders of one of the processes."""

    def __init__(self, toml: str, layout: str) -> None:
        scenario = load(toml).scenario
        data = open_data(scenario.data, cache_folder())
        self.train, self.seed = scenario.train, scenario.seed
        self.shares = cached_partition(scenario.data, data, cache_folder()).train
        with mp.get_context("fork").Pool(1) as pool:
            self.initial = torch.from_numpy(pool.apply(initial_model, (toml,)))
        blocks = plain.blocks_of(scenario.model.name, images.CLASSES, scenario.model.width)
        self.plain = plain.Plain([plain.in_layout(block, layout) for block in blocks], self.train.lr)
        self.images = plain.Images(data.train.x, data.train.y, images.MEAN, images.STD, layout)
        count = len(self.initial)
        # Two rounds, since one process may still read the last sums when the other adds to the next.
        shared = mmap.mmap(-1, 4 * 2 * PROCESSES * count)  # zeros, float32
        self.shared = torch.frombuffer(shared, dtype=torch.float32).view(2, PROCESSES, count)
        self.world = torch.empty(count)
        self.worlds = self.views(self.world)

    def order(self, round: int, client: int) -> list[Tensor]:
        """The batches of one visit, as the product draws them."""
        rng, indices = keyed_generator(self.seed, "batches", round, client), self.shares[client]
        epochs = [torch.from_numpy(indices[rng.permutation(len(indices))]) for _ in range(self.train.local_epochs)]
        return [batch for epoch in epochs for batch in torch.split(epoch, self.train.batch)]

    def visit(self, batches: list[Tensor], weight: float, sums: list[Tensor]) -> None:
        """Train one client from the global model, and add its model to the sums."""
        parameters = self.plain.parameters
        with torch.no_grad():
            torch._foreach_copy_(parameters, self.worlds)
        for chosen in batches:
            self.plain.step(*self.images.batch(chosen))
        with torch.no_grad():
            torch._foreach_add_(sums, parameters, alpha=weight)

    def views(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as views in the shapes of the parameters."""
        parts = torch.split(vector, [parameter.numel() for parameter in self.plain.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.plain.parameters, strict=True)]

    def play(self, rank: int, rounds: Rounds, meet: Any, save: str | None) -> list[float]:
        """Train all rounds with the other processes; returns the seconds of each."""
        torch.set_num_threads(1)
        self.world.copy_(self.initial)
        mine = [
            [(self.order(number, k), 1 / len(all)) for k in all[rank::PROCESSES]] for number, all in enumerate(rounds)
        ]
        taken = []
        meet()
        for number, visits in enumerate(mine):
            start = time.perf_counter()
            rows = self.shared[number % 2]
            sums = self.views(rows[rank].zero_())
            for batches, weight in visits:
                self.visit(batches, weight, sums)
            meet()
            torch.sum(rows, dim=0, out=self.world)
            taken.append(time.perf_counter() - start)
            if number == 0 and save is not None and rank == 0:
                np.save(save, self.world.numpy())
        return taken


def main(scenario: str, layout: str, rounds: Rounds, save: str) -> None:
    """``rounds``: the clients of each; ``save``: a file for the model after the first."""
    torch.set_num_threads(1)
    floor, fork = Floor(scenario, layout), mp.get_context("fork")  # examples are in memory once
    meet = fork.Barrier(PROCESSES).wait
    for rank in range(1, PROCESSES):
        fork.Process(target=floor.play, args=(rank, rounds, meet, None), daemon=True).start()
    print(json.dumps(floor.play(0, rounds, meet, save)))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
