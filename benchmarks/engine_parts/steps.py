"""Single steps of the product, and of a plain formulation: ``-m benchmarks.engine_parts.steps KIND REQUEST``.

KIND ``methods`` sends the lines of part D of ``benchmarks/engine.py``, and ``visits`` those of ``benchmarks/gpu.py``:
whole visits in variants. REQUEST is then the JSON of the function's arguments. Any other KIND is one of instructions,
``native`` or ``portable``: the process prints each model's CPU seconds of a step of FedAvg (median of a visit after
another), and REQUEST is JSON, name -> [scenario, steps of a visit].

A step of the product is `edge.training.sgd.Sgd` called within a visit, as a worker does it; the batch, the download
and the upload around it are not timed, nor are they for the plain step. One process, one thread.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.engine_parts import images
from benchmarks.engine_parts.plain import LAYOUTS, Images, Plain, blocks_of, flat, in_layout, load
from benchmarks.harness import BF16, MIB, Line, at_most, failure, in_turns, send_line
from coordinator.methods.compute import ComputeContext
from edge.protocol.config import CPU, TrainConfig
from edge.protocol.messages import Train
from edge.protocol.payload import MODEL, Floats, Payload
from edge.protocol.portable import PORTABLE, trains_portably
from edge.protocol.rng import keyed_generator
from edge.training.sgd import Sgd
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load as load_scenario
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup

CHECKED_STEPS, ONE_STEP = 3, "train.local_steps=1"
TOLERANCE = 1e-3
"""How far the product may be from the plain formulation, relatively to how far it has moved. Rounding makes it 4e-7 at
width 16 and 3e-4 at width 64 after three steps; leaving out one pathway of five would make it 0.06 and 0.12."""
WITHIN = 0.15
"""How far the cost of FedBR may be from the ratio of its FLOPs, relatively."""
WARM_UP = 2
"""Visits of each variant before it is timed, on a GPU: libraries choose kernels, graphs are captured."""
SHARE = 0.8
"""Of the limit, after which no further cycle begins."""
ROUND = CLIENT = 0


class Product:
    """One client under one method, without a server. Steps are timed by ``clock``, in seconds."""

    def __init__(
        self, scenario: str, overrides: Sequence[str], clock: Callable[[], float] = time.perf_counter, device: str = CPU
    ) -> None:
        self.clock = clock
        self.loaded = load_scenario(scenario, parse_all(overrides))
        inputs = RunInputs(self.loaded, device)
        first = LocalTrainer(inputs.job)
        self.description, self.payload = first.describe(False)
        self.site = LocalTrainer(Setup(inputs, self.description).job)

    def train(self, choice: Mapping[str, int]) -> Floats:
        """One visit: the model that goes up, as one vector."""
        task = Train(CLIENT, ROUND, self.loaded.scenario.train.lr, choice, self.payload)
        return vector(self.site.train(task, None, None).payload)

    def visit(self, choice: Mapping[str, int]) -> tuple[Floats, list[float]]:
        """`train`, and the seconds of each step."""
        taken: list[float] = []
        original = Sgd.__call__

        def timed(step: Sgd, *arguments: Any, **options: Any) -> None:
            start = self.clock()
            original(step, *arguments, **options)
            taken.append(self.clock() - start)

        with mock.patch.object(Sgd, "__call__", timed):
            return self.train(choice), taken

    def step(self, choice: Mapping[str, int]) -> float:
        """Seconds of one step."""
        (seconds,) = self.visit(choice)[1]
        return seconds

    def flops(self, choice: Mapping[str, int]) -> float:
        """Per example, as the method's row foresees them."""
        layout, flops, one = self.description.layout, self.description.flops, TrainConfig(batch=1)
        context = ComputeContext(layout, self.loaded.options, choice, one, one.plan(1), 1, flops)
        return self.loaded.method.objective.costs.compute(context).flops(flops)


def vector(payload: Payload) -> Floats:
    """A model as one vector."""
    return np.concatenate([block.data for block in payload[MODEL].values()])


class PlainClient:
    """The same client, written plainly."""

    def __init__(self, product: Product, layout: str) -> None:
        scenario, site = product.loaded.scenario, product.site
        model, initial = scenario.model, {key: block.data for key, block in product.payload[MODEL].items()}
        local, frozen = (blocks_of(model.name, images.CLASSES, model.width) for _ in range(2))
        for blocks in (local, frozen):
            load(blocks, initial)
        self.plain = Plain(
            *([in_layout(block, layout) for block in local], scenario.train.lr),
            [in_layout(block, layout) for block in frozen],
        )
        pixels = Images(site.data.train.x, site.data.train.y, images.MEAN, images.STD, layout)
        indices = site.client_indices.train[CLIENT]
        order = keyed_generator(scenario.seed, "batches", ROUND, CLIENT).permutation(len(indices))
        cut = torch.split(torch.from_numpy(indices[order]), scenario.train.batch)
        self.batches = [pixels.batch(chosen) for chosen in cut]

    def step(self, pathways: range) -> float:
        """Seconds of one step on the first batch."""
        start = time.perf_counter()
        self.plain.step(*self.batches[0], pathways)
        return time.perf_counter() - start

    def after(self, steps: int, pathways: range) -> Floats:
        """The model after so many steps from where it stands."""
        for x, y in self.batches[:steps]:
            self.plain.step(x, y, pathways)
        return flat(self.plain.blocks)


def methods(scenario: str, cycles: int, no_bf16: str) -> None:
    """FedMLB and FedBR beside a plain formulation; ``no_bf16``: the reason why bf16 is not measured, or nothing."""
    products = {name: Product(scenario, (f"method={name}", ONE_STEP)) for name in ("fedavg", "fedmlb", "fedbr")}
    blocks = len(products["fedavg"].description.layout)
    every, plains = range(1, blocks), {layout: PlainClient(products["fedavg"], layout) for layout in LAYOUTS}
    _check(scenario, products["fedmlb"], every)
    variants: dict[str, Callable[[], float]] = {
        "fedavg": partial(products["fedavg"].step, {}),
        "fedmlb": partial(products["fedmlb"].step, {}),
        "fedmlb plain": partial(plains["contiguous"].step, every),
        "fedmlb plain channels_last": partial(plains["channels_last"].step, every),
    }
    for alpha in every:
        variants[f"fedbr {alpha}"] = partial(products["fedbr"].step, {"alpha": alpha})
        variants[f"fedbr {alpha} plain"] = partial(plains["contiguous"].step, range(blocks - alpha, blocks))
    if not no_bf16:
        mlb, br = (Product(scenario, (f"method={name}", ONE_STEP, BF16)) for name in ("fedmlb", "fedbr"))
        variants["fedmlb bf16"] = partial(mlb.step, {})
        variants |= {f"fedbr {alpha} bf16": partial(br.step, {"alpha": alpha}) for alpha in every}
    turns = in_turns(variants, cycles, warm_up=1)
    send_line(at_most("FedAvg step", 1e3 * turns.median("fedavg"), form="{:.1f} ms"))
    send_line(at_most("FedMLB / plain", turns.ratio("fedmlb", "fedmlb plain"), 1.0))
    send_line(at_most("FedMLB / plain, channels_last", turns.ratio("fedmlb", "fedmlb plain channels_last")))
    if no_bf16:
        send_line(Line("bf16", f"not measured: {no_bf16}"))
    else:
        send_line(at_most("FedMLB bf16 / plain fp32", turns.ratio("fedmlb bf16", "fedmlb plain"), 0.65))
    for alpha in every:
        name, plain = f"fedbr {alpha}", f"fedbr {alpha} plain"
        send_line(at_most(f"FedBR alpha {alpha} / plain", turns.ratio(name, plain)))
        if not no_bf16:
            send_line(at_most(f"FedBR alpha {alpha} bf16 / plain fp32", turns.ratio(f"{name} bf16", plain)))
        cost = turns.ratio(name, "fedavg")
        flops = products["fedbr"].flops({"alpha": alpha}) / products["fedavg"].flops({})
        what, is_near = f"FedBR alpha {alpha} / FedAvg (by FLOPs {flops:.2f})", abs(cost / flops - 1) <= WITHIN
        send_line(Line(what, f"{cost:.2f}", cost, f"within {WITHIN:.0%}", is_near))


def _check(scenario: str, fedmlb: Product, every: range) -> None:
    """Send the difference of the product from the plain formulation."""
    product = Product(scenario, ("method=fedmlb", f"train.local_steps={CHECKED_STEPS}")).visit({})[0]
    moved = np.linalg.norm(product - vector(fedmlb.payload))
    off = {
        layout: float(np.linalg.norm(product - PlainClient(fedmlb, layout).after(CHECKED_STEPS, every)) / moved)
        for layout in LAYOUTS
    }
    layouts = " (" + ", ".join(f"{layout} {value:.1e}" for layout, value in off.items()) + ")"
    what = f"FedMLB = plain after {CHECKED_STEPS} steps, in its layout"
    send_line(at_most(what, min(off.values()), TOLERANCE, "{:.1e}", layouts))


def numerics(instructions: str, models: Mapping[str, tuple[str, int]]) -> None:
    """CPU time, since other work on the machine lengthens it less."""
    assert trains_portably(os.environ) == (instructions == PORTABLE)
    overrides, seconds = ("method=fedavg", f"train.instructions={instructions}"), {}
    for name, (scenario, steps) in models.items():
        product = Product(scenario, (*overrides, f"train.local_steps={steps}"), time.process_time)
        seconds[name] = [statistics.median(product.visit({})[1]) for _ in range(2)][-1]
    print(json.dumps(seconds))


class VisitedClient(Product):
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

    def distance(self, other: VisitedClient) -> float:
        """How far its model is from another's, relatively to how far that has moved."""
        moved = np.linalg.norm(other.model - vector(self.payload))
        return float(np.linalg.norm(self.model - other.model) / moved)


def visits(
    scenario: str,
    device: str,
    variants: Mapping[str, Sequence[str]],
    bases: Mapping[str, str],
    seconds: float,
    cycles: int,
    same: Sequence[str],
) -> None:
    """Visits of one client in variants, in turns. A variant that fails is a failed line, and the others go on.

    ``same``: variants of one method, whose models differ by rounding alone; ``seconds``: limit of this process.
    """
    began, clients = time.monotonic(), dict[str, VisitedClient]()

    def visit(name: str, overrides: Sequence[str]) -> float:
        if name not in clients:
            clients[name] = VisitedClient(scenario, overrides, device=device)
        return clients[name].seconds()

    calls = {name: partial(visit, name, overrides) for name, overrides in variants.items()}
    warm_up = 1 if device == CPU else WARM_UP
    turns = in_turns(calls, cycles, warm_up, began + SHARE * seconds, keep_going=True)
    for name in turns.seconds:
        client, base = clients[name], bases.get(name, "")
        notes = [f"{client.nbytes / MIB:.0f} MiB"] if client.nbytes else []
        if {name, base} <= set(same) & set(turns.seconds):
            notes.append(f"model off by {client.distance(clients[base]):.1e} of its way")
        send_line(turns.line(name, base, *notes))
    for name, error in turns.errors.items():
        send_line(failure(name, error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, request = sys.argv[1], json.loads(sys.argv[2])
    if kind == "methods":
        methods(**request)
    elif kind == "visits":
        visits(**request)
    else:
        numerics(kind, request)
