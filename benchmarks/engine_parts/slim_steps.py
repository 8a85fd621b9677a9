"""Single steps of GradAug and FedAlign and of a plain formulation, in turns: ``-m benchmarks.engine_parts.slim_steps``.

The plain formulation has no slimmable layers: a narrower network is modules of its own, whose parameters are copied
from the first channels of the model's and whose gradients are added to theirs. FedAlign's spectral norms are those of
the Gram matrix, as in the authors' code. Parameters are in the product's order. One process, one thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.engine_parts import images
from benchmarks.engine_parts.plain import GROUPS, LAYOUTS, Images, Residual, flat, in_layout, load
from benchmarks.engine_parts.steps import CHECKED_STEPS, CLIENT, ROUND, WARM_UP, Product
from edge.protocol.messages import Train, Update
from edge.protocol.options.gradaug import SUBNETWORKS, channels, draw_subnetworks
from edge.protocol.payload import MODEL, Floats
from edge.protocol.rng import keyed_generator
from edge.training.sgd import Sgd

STAGES = 4


class Timed(Product):
    """One client under one method, whose steps may have several parts."""

    def run(self) -> tuple[Update, float]:
        """One visit, and the seconds of its steps."""
        taken, depth = [0.0], [0]

        def clocked(original: Callable[..., None]) -> Callable[..., None]:
            def call(step: Sgd, *arguments: Any, **named: Any) -> None:
                start, depth[0] = time.perf_counter(), depth[0] + 1
                original(step, *arguments, **named)
                depth[0] -= 1
                taken[0] += 0.0 if depth[0] else time.perf_counter() - start

            return call

        task = Train(CLIENT, ROUND, self.loaded.scenario.train.lr, {}, self.payload)
        with ExitStack() as patches:
            for name in ("__call__", "backward", "apply"):
                patches.enter_context(mock.patch.object(Sgd, name, clocked(getattr(Sgd, name))))
            return self.site.train(task, None, None), taken[0]

    def after(self) -> Floats:
        """The model that goes up."""
        return np.concatenate([vector.data for vector in self.run()[0].payload[MODEL].values()])


def network(inputs: int, widths: Sequence[int], classes: int, layout: str) -> list[nn.Module]:
    """ResNet-18 with these channels of stem and stages; pooling before the head."""
    stem = nn.Sequential(
        nn.Conv2d(inputs, widths[0], 3, padding=1, bias=False), nn.GroupNorm(GROUPS, widths[0]), nn.ReLU()
    )
    made: list[nn.Module] = [stem]
    for number, (before, after) in enumerate(pairwise(widths)):
        made.append(nn.Sequential(Residual(before, after, 2 if number else 1), Residual(after, after, 1)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
    return [in_layout(module, layout) for module in (*made, head)]


class PlainClient:
    """The same client, written plainly."""

    def __init__(self, product: Product, layout: str) -> None:
        scenario, site = product.loaded.scenario, product.site
        self.layout, self.options, self.seed = layout, product.loaded.options, scenario.seed
        width = scenario.model.width
        assert width is not None
        self.widths = [width, *(width * 2**stage for stage in range(STAGES))]
        self.blocks = network(3, self.widths, images.CLASSES, layout)
        load(self.blocks, {key: vector.data for key, vector in product.payload[MODEL].items()})
        self.optimiser = torch.optim.SGD([p for block in self.blocks for p in block.parameters()], lr=scenario.train.lr)
        self.narrow: dict[float, list[nn.Module]] = {}
        pixels = Images(site.data.train.x, site.data.train.y, images.MEAN, images.STD, layout)
        indices = site.client_indices.train[CLIENT]
        shuffled = indices[keyed_generator(scenario.seed, "batches", ROUND, CLIENT).permutation(len(indices))]
        self.batches = [
            pixels.batch(chosen) for chosen in torch.split(torch.from_numpy(shuffled), scenario.train.batch)
        ]
        self.rng = keyed_generator(self.seed, SUBNETWORKS, ROUND, CLIENT)

    def step(self, x: Tensor, y: Tensor) -> None:
        raise NotImplementedError

    def seconds(self) -> float:
        """Of one step on the first batch, as the first of a visit."""
        self.rng = keyed_generator(self.seed, SUBNETWORKS, ROUND, CLIENT)
        start = time.perf_counter()
        self.step(*self.batches[0])
        return time.perf_counter() - start

    def after(self) -> Floats:
        """The model after the checked steps."""
        for x, y in self.batches[:CHECKED_STEPS]:
            self.step(x, y)
        return flat(self.blocks)

    @contextmanager
    def narrower(self, factor: float, first: int, stop: int) -> Iterator[list[nn.Module]]:
        """Blocks ``first`` to ``stop`` of a narrower network with the model's numbers; gradients are added after."""
        if factor not in self.narrow:
            widths = [channels(count, factor) for count in self.widths]
            self.narrow[factor] = network(3, widths, images.CLASSES, self.layout)
        chosen = self.narrow[factor][first:stop]
        pairs = [
            (small, large, tuple(slice(size) for size in small.shape))
            for narrow, whole in zip(chosen, self.blocks[first:stop], strict=True)
            for small, large in zip(narrow.parameters(), whole.parameters(), strict=True)
        ]
        with torch.no_grad():
            for small, large, inside in pairs:
                small.copy_(large[inside])
                small.grad = None
        yield chosen
        for small, large, inside in pairs:
            assert small.grad is not None and large.grad is not None
            large.grad[inside] += small.grad


def passed(blocks: Sequence[nn.Module], x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


class PlainGradAug(PlainClient):
    """GradAug."""

    def step(self, x: Tensor, y: Tensor) -> None:
        """The full model, then each sub-network."""
        options = self.options
        self.optimiser.zero_grad(set_to_none=True)
        logits = passed(self.blocks, x)
        torch.autograd.backward(F.cross_entropy(logits, y))
        taught = F.log_softmax(logits.detach(), dim=1)
        drawn = draw_subnetworks(self.rng, options.subnets, options.width, options.resolutions, True)  # type: ignore[attr-defined]
        for width, height in drawn:
            side = round(x.shape[2] * height)
            small = x if height == 1 else F.interpolate(x, (side, side), mode="bilinear", align_corners=True)
            with self.narrower(width, 0, len(self.blocks)) as blocks:
                found = F.log_softmax(passed(blocks, small), dim=1)
                divergence = F.kl_div(found, taught, reduction="batchmean", log_target=True)
                torch.autograd.backward(1.75 * divergence)
        self.optimiser.step()


class PlainFedAlign(PlainClient):
    """FedAlign, scaled as in the authors' code."""

    def step(self, x: Tensor, y: Tensor) -> None:
        """The full model, then the narrower last stage."""
        options: Any = self.options
        self.optimiser.zero_grad(set_to_none=True)
        before = passed(self.blocks[:-2], x)
        after = self.blocks[-2](before)
        cross_entropy = F.cross_entropy(self.blocks[-1](after), y)
        torch.autograd.backward(cross_entropy)
        before, after = before.detach(), after.detach()
        with self.narrower(options.width, len(self.blocks) - 2, len(self.blocks) - 1) as (stage,):
            first = before[:, : channels(before.shape[1], options.width)]
            slim = stage(first)
            difference = F.mse_loss(
                norm(transmitting(first, slim), options.iterations),
                norm(transmitting(before, after), options.iterations),
            )
            torch.autograd.backward(options.weight * (cross_entropy.item() / difference.item()) * difference)
        nn.utils.clip_grad_norm_([p for block in self.blocks for p in block.parameters()], options.clip)
        self.optimiser.step()


def transmitting(before: Tensor, after: Tensor) -> Tensor:
    """(batch, C1, C2)."""
    before = F.adaptive_avg_pool2d(before, (after.shape[2], after.shape[3])).flatten(2)
    return torch.bmm(before, after.flatten(2).transpose(1, 2)) / before.shape[2]


def norm(matrices: Tensor, iterations: int) -> Tensor:
    """(batch,): spectral norms by power iteration on the Gram matrix."""
    gram = torch.bmm(matrices, matrices.transpose(1, 2))
    vectors = torch.ones(len(gram), gram.shape[1], 1)
    for _ in range(iterations):
        products = torch.bmm(gram, vectors)
        lengths = torch.linalg.vector_norm(products, dim=1, keepdim=True)
        vectors = products / lengths
    return lengths.sqrt().flatten()


def main(text: str) -> None:
    request = json.loads(text)
    torch.set_num_threads(1)
    kinds: dict[str, type[PlainClient]] = {"gradaug": PlainGradAug, "fedalign": PlainFedAlign}
    products = {name: Timed(request["toml"], (f"method={name}",)) for name in ("fedavg", *kinds)}
    off: dict[str, dict[str, float]] = {}
    entries = {"fedavg": lambda: products["fedavg"].run()[1]}
    for name, kind in kinds.items():
        product = Timed(request["toml"], (f"method={name}",), CHECKED_STEPS)
        start = np.concatenate([vector.data for vector in product.payload[MODEL].values()])
        found = product.after()
        moved = np.linalg.norm(found - start)
        plain = {layout: kind(product, layout).after() for layout in LAYOUTS}
        off[name] = {layout: float(np.linalg.norm(found - model) / moved) for layout, model in plain.items()}
        entries[name] = lambda name=name: products[name].run()[1]  # type: ignore[misc]
        for layout in LAYOUTS:
            entries[f"{name} {layout}"] = kind(products[name], layout).seconds
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for number in range(WARM_UP + request["repeats"]):
        for name, entry in entries.items():
            taken = entry()
            if number >= WARM_UP:
                seconds[name].append(taken)
    flops = {name: products[name].run()[0].numbers["flops"] for name in products}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    relative = {name: flops[name] / flops["fedavg"] for name in kinds}
    print(json.dumps({"seconds": seconds, "medians": medians, "flops": relative, "off": off}))


if __name__ == "__main__":
    main(sys.argv[1])
