"""What a careful person would write without a framework, against which the product is measured: models as plain
modules, local SGD, branched losses; and the floor, a loop over rounds: ``-m benchmarks.engine_parts.plain REQUEST``.

Parameters come in the product's order: one flat vector per block, in the order of the modules.

The floor is a process per core. It trains the given clients with the batches that the product would use for them, and
means their models at the end of each round. Nothing is between the loop and torch: examples are normalised beforehand,
orders are drawn beforehand, one model and one optimiser serve all clients, and the two processes meet once a round in
shared memory. Its request is the JSON of the arguments of `main`; the answer lists the seconds of each round.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing as mp
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.engine_parts import images
from edge.data.decoded_cache import open_data
from edge.data.partitioning import cached_partition
from edge.protocol.payload import MODEL, Floats
from edge.protocol.rng import keyed_generator
from edge.training.trainer import LocalTrainer
from scenarios.config.cache import cache_folder
from scenarios.config.load import load as load_scenario
from scenarios.run.setup import RunInputs

GROUPS = 2
LAYOUTS = ("contiguous", "channels_last")
PROCESSES = 2
Rounds = list[list[int]]


def blocks_of(model: str, classes: int, width: int | None) -> list[nn.Module]:
    """The blocks of a model, first to last; numbers are torch's own."""
    if model == "cnn":
        return [
            nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, classes),
        ]
    assert model == "resnet18", model
    assert width is not None
    widths = [width * 2**stage for stage in range(4)]
    stem = nn.Sequential(_conv(3, width, 1), nn.GroupNorm(GROUPS, width), nn.ReLU())
    stages: list[nn.Module] = []
    for stage, (before, after) in enumerate(zip([width, *widths], widths, strict=False)):
        stages.append(nn.Sequential(Residual(before, after, 2 if stage else 1), Residual(after, after, 1)))
    stages[-1] = nn.Sequential(stages[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [stem, *stages, nn.Linear(widths[-1], classes)]


def _conv(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


class Residual(nn.Module):
    """ResNet's basic unit with GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(before, after, stride), nn.GroupNorm(GROUPS, after)
        self.conv2, self.norm2 = _conv(after, after, 1), nn.GroupNorm(GROUPS, after)
        self.shortcut: nn.Module | None = None
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.GroupNorm(GROUPS, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, before, h, w) -> (batch, after, h / stride, w / stride)."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


def load(blocks: Iterable[nn.Module], named: Mapping[str, NDArray[np.float32]]) -> None:
    """Fill the parameters of blocks from one flat vector each, in order; sizes must match."""
    for block, vector in zip(blocks, named.values(), strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(np.array(vector)), block.parameters())
        assert sum(p.numel() for p in block.parameters()) == vector.size


def flat(blocks: Iterable[nn.Module]) -> NDArray[np.float32]:
    """All parameters as one vector."""
    numbers: NDArray[np.float32] = torch.cat(
        [parameter.detach().reshape(-1) for block in blocks for parameter in block.parameters()]
    ).numpy()
    return numbers


class Images:
    """Normalised float32 images and classes in memory, in one of `LAYOUTS`."""

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        classes: NDArray[np.int64],
        mean: Sequence[float],
        std: Sequence[float],
        layout: str,
    ) -> None:
        """``pixels``: (examples, channels, height, width)."""
        gain, bias = 1 / (255 * np.array(std)), -np.array(mean) / np.array(std)
        gains, biases = (torch.tensor(each, dtype=torch.float32).view(1, -1, 1, 1) for each in (gain, bias))
        x = torch.from_numpy(np.array(pixels)).to(torch.float32).mul_(gains).add_(biases)
        self.channels_last = layout == "channels_last"
        # Held as (examples, height, width, channels), a gathered batch already lies as channels_last wants it.
        self.x = x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x
        self.y = torch.from_numpy(np.array(classes, dtype=np.int64))

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """((batch, channels, height, width), (batch,)) of these examples."""
        x = self.x.index_select(0, chosen)
        return x.permute(0, 3, 1, 2) if self.channels_last else x, self.y.index_select(0, chosen)


def in_layout(block: nn.Module, layout: str) -> nn.Module:
    """The block with its weights laid out for this memory format, as torch's documentation advises."""
    to: Any = block.to
    return to(memory_format=torch.channels_last) if layout == "channels_last" else block


class Plain:
    """Local SGD on one model instance: the main path alone, or with hybrid pathways through a frozen copy."""

    def __init__(self, blocks: Sequence[nn.Module], lr: float, frozen: Sequence[nn.Module] = ()) -> None:
        self.blocks, self.frozen = list(blocks), list(frozen)
        self.parameters: list[Tensor] = [parameter for block in blocks for parameter in block.parameters()]
        for block in self.frozen:
            block.requires_grad_(False)
        self.optimiser = torch.optim.SGD(self.parameters, lr=lr)

    def step(self, x: Tensor, y: Tensor, pathways: Sequence[int] = ()) -> None:
        """One step; ``pathways`` lists the m whose first m blocks are local and whose others are frozen."""
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(self.branched(x, y, pathways) if pathways else self.plain(x, y))
        self.optimiser.step()

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the main path."""
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(x, y)

    def branched(self, x: Tensor, y: Tensor, pathways: Sequence[int]) -> Tensor:
        """FedMLB's objective with both weights and the temperature 1: each pathway from its own block's output."""
        features = [x]
        for block in self.blocks:
            features.append(block(features[-1]))
        main = features[-1]
        loss = F.cross_entropy(main, y)
        for m in pathways:
            hybrid = features[m]
            for block in self.frozen[m:]:
                hybrid = block(hybrid)
            divergence = F.kl_div(
                F.log_softmax(main, dim=1), F.log_softmax(hybrid, dim=1), reduction="batchmean", log_target=True
            )
            loss = loss + (F.cross_entropy(hybrid, y) + divergence) / len(pathways)
        return loss


# --- the floor --------------------------------------------------------------------------------------------------------


def initial_model(toml: str) -> Floats:
    """The model that runs start from; in a process of its own, since a worker's site sets up its process."""
    _, payload = LocalTrainer(RunInputs(load_scenario(toml)).job).describe(False)
    return np.concatenate([vector.data for vector in payload[MODEL].values()])


class Floor:
    """The model, the data, and the orders of one of the processes."""

    def __init__(self, toml: str, layout: str) -> None:
        scenario = load_scenario(toml).scenario
        data = open_data(scenario.data, cache_folder())
        self.train, self.seed = scenario.train, scenario.seed
        self.shares = cached_partition(scenario.data, data, cache_folder()).train
        with mp.get_context("fork").Pool(1) as pool:
            self.initial = torch.from_numpy(pool.apply(initial_model, (toml,)))
        blocks = blocks_of(scenario.model.name, images.CLASSES, scenario.model.width)
        self.plain = Plain([in_layout(block, layout) for block in blocks], self.train.lr)
        self.images = Images(data.train.x, data.train.y, images.MEAN, images.STD, layout)
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
