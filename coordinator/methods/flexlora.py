"""FlexLoRA: each client has adapters of a rank of its own, and the server averages the products.

Bai, Chen, Qian, Yao and Li, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources, NeurIPS 2024, https://arxiv.org/abs/2402.11505. The server cuts the mean of the clients' products B A to
``adapter.rank`` by singular values. A client of rate r (``submodel``) has the first ⌈r·rank⌉ of these, and trains them
as FedAvg's clients train adapters; all have the factor ``adapter.alpha`` / ``adapter.rank``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.aggregation.adapters import StepProducts
from coordinator.aggregation.server import GLOBAL, ServerContext, ServerExtension, ServerStrategy
from coordinator.methods.spec import ObjectiveSpec, Refusals, SubmodelRules
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Vector


class FlexLoRAServer(ServerStrategy):
    """Averages products of adapters, and all else as FedAvg does."""

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self._products = StepProducts()

    def accumulate(self, reply: Update) -> None:
        """Keep the adapters of an update until the step."""
        assert self.setup.submodels is not None
        slices = self.setup.submodels.slices(reply.variant)
        vectors = dict(reply.payload.get(MODEL, {}))
        for key in self.setup.adapters:
            if key in vectors:
                weight = self.weight(reply, GLOBAL, key)
                self._products.add(key, vectors.pop(key).data, slices.tensors[key], weight)
        super().accumulate(msgspec.structs.replace(reply, payload={**reply.payload, MODEL: vectors}))

    def step(self) -> None:
        """Make the next model, with adapters cut from the mean of products."""
        super().step()
        products, self._products = self._products, StepProducts()
        cut = {key: Vector(products.cut(key, self.setup.adapters[key])) for key in products.of_key}
        self.models = {**self.models, GLOBAL: {**self.models[GLOBAL], **cut}}


SPEC = ObjectiveSpec(
    name="flexlora",
    title="adapters of a rank for each client",
    source="Bai, Chen, Qian, Yao and Li, NeurIPS 2024",
    options=Options,
    takes_losses=lambda options: True,
    neutral="one client a round, at rate 1: the mean of products is its product",
    client="edge.training.client_update:ClientUpdate",
    server=FlexLoRAServer,
    individual_updates=lambda options: True,
    submodels=SubmodelRules(by="rank"),
    refusals=Refusals(
        server_optimizers=("plain",),
        asynchronous=lambda options: "flexlora: takes singular values of the mean over a cohort; choose sync",
    ),
)
