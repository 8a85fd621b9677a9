"""FLoRA: clients' adapters are stacked, and every client merges the stack into its own base.

Wang, Shen, He, Sun, Wang, Lyu and Li, FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
Adaptations, NeurIPS 2024, https://arxiv.org/abs/2409.05976. The stack of a round, [A_1; A_2; ..] and [p_1 B_1, p_2
B_2, ..], has the mean of the clients' products as its product, whatever their ranks (``submodel``), and is as large as
all uploads together. Every round trains new adapters, of A as it is drawn from seed and round and B = 0, on the merged
base.

A client downloads the stacks of all rounds since its last download; where these have more numbers than the layers, the
change of the layers itself. A follows from the seed, and costs nothing. What a device computes to merge, 2 R numbers a
weight for a stack of R, is not charged. The server, and with it each worker, keeps the sum of all products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coordinator.aggregation.adapters import ProductServer
from coordinator.aggregation.server import GLOBAL, Download, ServerContext, ServerExtension, State
from coordinator.methods.spec import ObjectiveSpec, Refusals, SubmodelRules, Traffic
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options
from edge.protocol.payload import MERGED, MODEL, Payload, Shapes, Vector, merged_key
from edge.protocol.rng import keyed_generator

STACK = "stack"
"""The slot of a download in which stacks are charged"""


class FloraServer(ProductServer):
    """Adds the mean product of a round to the merged weights, and begins anew."""

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        zeros = {
            merged_key(key): Vector(np.zeros(sum(b[0] * a[1] for a, b in _pairs(tensors)), np.float32))
            for key, tensors in setup.adapters.items()
        }
        self.models = {GLOBAL: {**self.model, **self._drawn(0)}} | ({MERGED: zeros} if zeros else {})
        self._stacks: list[list[int]] = []
        """Numbers of the stack of each round, by key of adapters"""

    def _drawn(self, round: int) -> dict[str, Vector]:
        """New adapters for a round: A uniform as layers are initialised, B zero."""
        rng, found = keyed_generator(self.setup.seed, "flora", round), {}
        for key, tensors in self.setup.adapters.items():
            pieces = []
            for a, b in _pairs(tensors):
                pieces += [rng.uniform(-1, 1, math.prod(a)) / math.sqrt(a[1]), np.zeros(math.prod(b))]
            found[key] = Vector(np.concatenate(pieces).astype(np.float32))
        return found

    def payload(self, client: int, round: int, choice: Choice) -> Payload:
        """The model and what has been merged."""
        return self.with_extensions(client, {**self.select(self.setup.down), **self._merged()})

    def _merged(self) -> Payload:
        return {name: model for name, model in self.models.items() if name == MERGED}

    def charged(self, down: Shapes, since: int) -> Shapes:
        """The blocks that learn whole, and the stacks of all rounds from ``since`` on."""
        learned = {key: size for key, size in down[MODEL].items() if key not in self.setup.adapters}
        stacks = dict[str, int]()
        for place, key in enumerate(self.setup.adapters):
            whole = self.models[MERGED][merged_key(key)].data.size
            if numbers := min(sum(stack[place] for stack in self._stacks[max(since, 0) :]), whole):
                stacks[key] = numbers
        others = {slot: sizes for slot, sizes in down.items() if slot not in (MODEL, MERGED)}
        return {slot: sizes for slot, sizes in {MODEL: learned, STACK: stacks, **others}.items() if sizes}

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """Note how large the stack of these clients' adapters is."""
        super().received(round, dispatches)
        self._stacks += [[0] * len(self.setup.adapters)] * (round - len(self._stacks))  # rounds in which nobody counted
        uploads = [self.part_up_shapes(dispatch.variant).get(MODEL, {}) for dispatch in dispatches]
        self._stacks.append([sum(upload.get(key, 0) for upload in uploads) for key in self.setup.adapters])

    def step(self) -> None:
        """Merge, and draw the adapters of the next round."""
        super().step()
        products, merged = self.taken_products(), {**self._merged().get(MERGED, {})}
        for key in products.of_key:
            change = np.concatenate([product.ravel() for product in products.mean(key)])
            before = merged[merged_key(key)].data
            merged[merged_key(key)] = Vector((before + change).astype(np.float32))
        drawn = {GLOBAL: {**self.model, **self._drawn(len(self._stacks))}}
        self.models = drawn | ({MERGED: merged} if merged else {})

    def global_evaluation_model(self) -> Payload:
        """With what has been merged."""
        return {MODEL: dict(self.model), **self._merged()}

    def evaluation_model(self, client: int) -> Payload:
        """The same for a client, of its part."""
        return self._part(self.payload(client, 0, {}), self.evaluation_variant(client))

    def state(self) -> State:
        """With the sizes of the stacks."""
        return super().state() | {
            "stacks": np.array(self._stacks, np.int64).reshape(len(self._stacks), len(self.setup.adapters))
        }

    def restore(self, models: dict[str, dict[str, Vector]], state: State) -> None:
        """Inverse of `state`."""
        super().restore(models, state)
        self._stacks = state["stacks"].tolist()


def _pairs(tensors: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Shapes of A and B of each adapter."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


SPEC = ObjectiveSpec(
    name="flora",
    title="stacked adapters, which every client merges",
    source="Wang, Shen, He, Sun, Wang, Lyu and Li, NeurIPS 2024",
    options=Options,
    takes_losses=lambda options: True,
    neutral="no adapters",
    client="edge.training.client_update:ClientUpdate",
    server=FloraServer,
    individual_updates=lambda options: True,
    traffic=Traffic(decides_without_updates=lambda options: True),
    submodels=SubmodelRules(by="rank"),
    refusals=Refusals(
        server_optimizers=("plain",),
        asynchronous=lambda options: "flora: stacks the adapters of a cohort; choose sync",
        partial_models=lambda options: "flora: stacks are of all adapters",
        tiers="flora: stacks grow from level to level",
    ),
)
