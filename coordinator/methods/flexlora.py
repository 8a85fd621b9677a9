"""FlexLoRA: each client has adapters of a rank of its own, and the server averages the products.

Bai, Chen, Qian, Yao and Li, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources, NeurIPS 2024, https://arxiv.org/abs/2402.11505. The server cuts the mean of the clients' products B A to
``adapter.rank`` by singular values. A client of rate r (``submodel``) has the first ⌈r·rank⌉ of these, and trains them
as FedAvg's clients train adapters; all have the factor ``adapter.alpha`` / ``adapter.rank``.
"""

from __future__ import annotations

from coordinator.aggregation.adapters import ProductServer
from coordinator.aggregation.server import GLOBAL
from coordinator.methods.spec import ObjectiveSpec, Refusals, SubmodelRules
from edge.protocol.options.base import Options
from edge.protocol.payload import Vector


class FlexLoRAServer(ProductServer):
    """Averages products of adapters, and all else as FedAvg does."""

    def step(self) -> None:
        """Make the next model, with adapters cut from the mean of products."""
        super().step()
        products = self.taken_products()
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
