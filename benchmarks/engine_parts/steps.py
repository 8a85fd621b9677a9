"""Single steps of the product and of the plain formulation, in turns: ``-m benchmarks.engine_parts.steps REQUEST``.

The request is the JSON of `Request`. A step of the product is `edge.training.sgd.Sgd` called within a visit of one
step, as a worker does it; the batch, the download and the upload around it are not timed, nor are they for the plain
step. One process, one thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.engine_parts import images
from benchmarks.engine_parts.plain import LAYOUTS, Images, Plain, blocks_of, flat, in_layout, load
from coordinator.methods.compute import ComputeContext
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Train
from edge.protocol.payload import MODEL, Floats
from edge.protocol.rng import keyed_generator
from edge.training.sgd import Sgd
from edge.training.trainer import LocalTrainer
from scenarios.config.cache import cache_folder
from scenarios.config.load import load as load_scenario
from scenarios.config.overrides import parse_all
from scenarios.run.builder import job

WARM_UP = 1
CHECKED_STEPS = 3
ROUND = CLIENT = 0


@dataclass(frozen=True)
class Request:
    """What is measured."""

    toml: str
    """A scenario with one client"""
    repeats: int
    bf16: str
    """The override that asks for bfloat16; '' where it is not measured"""


class Product:
    """One client under one method, without a server. Steps are timed by ``clock``, in seconds."""

    def __init__(
        self, toml: str, overrides: tuple[str, ...], steps: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self.loaded = load_scenario(toml, parse_all([*overrides, f"train.local_steps={steps}"]))
        first = LocalTrainer(job(self.loaded, None, "cpu", cache_folder()))
        self.description, self.payload = first.describe(False)
        self.site = LocalTrainer(job(self.loaded, self.description, "cpu", cache_folder()))

    def visit(self, choice: Mapping[str, int]) -> tuple[NDArray[np.float32], list[float]]:
        """One visit: the model that goes up, and the seconds of each step."""
        taken: list[float] = []
        original = Sgd.__call__

        def timed(step: Sgd, *arguments: Any, **named: Any) -> None:
            start = self._clock()
            original(step, *arguments, **named)
            taken.append(self._clock() - start)

        task = Train(CLIENT, ROUND, self.loaded.scenario.train.lr, choice, self.payload)
        with mock.patch.object(Sgd, "__call__", timed):
            update = self.site.train(task, None, None)
        return np.concatenate([vector.data for vector in update.payload[MODEL].values()]), taken

    def seconds(self, choice: Mapping[str, int]) -> float:
        """Of one step."""
        (taken,) = self.visit(choice)[1]
        return taken

    def flops(self, choice: Mapping[str, int]) -> float:
        """Per example, as the method's row foresees them."""
        layout, flops, one = self.description.layout, self.description.flops, TrainConfig(batch=1)
        context = ComputeContext(layout, self.loaded.options, choice, one, one.plan(1), 1, flops)
        return self.loaded.method.objective.costs.compute(context).flops(flops)


class PlainClient:
    """The same client, written plainly."""

    def __init__(self, product: Product, layout: str) -> None:
        scenario, site = product.loaded.scenario, product.site
        self.initial = {key: vector.data for key, vector in product.payload[MODEL].items()}
        local, frozen = (self._blocks(product, layout) for _ in range(2))
        self.plain = Plain(local, scenario.train.lr, frozen)
        pixels = Images(site.data.train.x, site.data.train.y, images.MEAN, images.STD, layout)
        indices = site.client_indices.train[CLIENT]
        shuffled = indices[keyed_generator(scenario.seed, "batches", ROUND, CLIENT).permutation(len(indices))]
        cut = torch.split(torch.from_numpy(shuffled), scenario.train.batch)
        self.batches = [pixels.batch(chosen) for chosen in cut]

    def _blocks(self, product: Product, layout: str) -> list[nn.Module]:
        model = product.loaded.scenario.model
        blocks = blocks_of(model.name, images.CLASSES, model.width)
        load(blocks, self.initial)
        return [in_layout(block, layout) for block in blocks]

    def seconds(self, pathways: range) -> float:
        """Of one step on the first batch."""
        start = time.perf_counter()
        self.plain.step(*self.batches[0], pathways)
        return time.perf_counter() - start

    def after(self, steps: int, pathways: range) -> Floats:
        """The model after so many steps from where it stands."""
        for x, y in self.batches[:steps]:
            self.plain.step(x, y, pathways)
        return flat(self.plain.blocks)


def main(text: str) -> None:
    request = Request(**json.loads(text))
    torch.set_num_threads(1)
    methods = {name: Product(request.toml, (f"method={name}",)) for name in ("fedavg", "fedmlb", "fedbr")}
    blocks = len(methods["fedavg"].description.layout)
    alphas = range(1, blocks)
    every = range(1, blocks)
    plains = {layout: PlainClient(methods["fedavg"], layout) for layout in LAYOUTS}
    product = Product(request.toml, ("method=fedmlb",), CHECKED_STEPS).visit({})[0]
    start = np.concatenate([vector.data for vector in methods["fedmlb"].payload[MODEL].values()])
    moved = np.linalg.norm(product - start)
    off = {
        layout: float(
            np.linalg.norm(product - PlainClient(methods["fedmlb"], layout).after(CHECKED_STEPS, every)) / moved
        )
        for layout in LAYOUTS
    }
    entries: dict[str, Callable[[], float]] = {
        "fedavg": lambda: methods["fedavg"].seconds({}),
        "fedmlb": lambda: methods["fedmlb"].seconds({}),
        "fedmlb plain": lambda: plains["contiguous"].seconds(every),
        "fedmlb plain channels_last": lambda: plains["channels_last"].seconds(every),
    }
    for a in alphas:
        entries[f"fedbr {a}"] = lambda a=a: methods["fedbr"].seconds({"alpha": a})  # type: ignore[misc]
        entries[f"fedbr {a} plain"] = lambda a=a: plains["contiguous"].seconds(range(blocks - a, blocks))  # type: ignore[misc]
    if request.bf16:
        entries |= in_bf16(request, alphas)
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for number in range(WARM_UP + request.repeats):
        for name, entry in entries.items():
            taken = entry()
            if number >= WARM_UP:
                seconds[name].append(taken)
    flops = {a: methods["fedbr"].flops({"alpha": a}) / methods["fedavg"].flops({}) for a in alphas}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(json.dumps({"seconds": seconds, "medians": medians, "flops": flops, "off": off}))


def in_bf16(request: Request, alphas: range) -> dict[str, Callable[[], float]]:
    """The product's steps once more, in bfloat16."""
    mlb, br = (Product(request.toml, (f"method={name}", request.bf16)) for name in ("fedmlb", "fedbr"))
    entries: dict[str, Callable[[], float]] = {"fedmlb bf16": lambda: mlb.seconds({})}
    for a in alphas:
        entries[f"fedbr {a} bf16"] = lambda a=a: br.seconds({"alpha": a})  # type: ignore[misc]
    return entries


if __name__ == "__main__":
    main(sys.argv[1])
