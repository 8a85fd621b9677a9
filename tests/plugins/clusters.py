"""Clustered federated learning: k global models, and each client trains the one that fits its data best.

After Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning (IFCA), NeurIPS 2020,
https://arxiv.org/abs/2006.04088, as a user would write it. The client side is `tests.plugins.clusters_client`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from coordinator.aggregation.server import ServerContext, ServerExtension, ServerStrategy
from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, forward_passes, trained
from coordinator.methods.spec import Costs, ModelChange, ModelEvaluation, ObjectiveSpec
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Payload

CLUSTER = "cluster"


class ClusterOptions(Options):
    """Each client trains the model with the smallest loss on its training examples."""

    models: int = Field(default=2, ge=1, le=10, title="k")
    """Number of global models; 1 is FedAvg."""


class ClusterServer(ServerStrategy):
    """Sends all models; averages each over the clients that chose it. A model that nobody chose stays as it is."""

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.models = {f"{CLUSTER}{index}": model for index, model in enumerate(setup.initial_models)}

    def targets(self, update: Update) -> Mapping[str, str]:
        """The model that the client chose."""
        return {MODEL: f"{CLUSTER}{update.numbers[CLUSTER]:g}"}

    def payload(self, client: int, choice: Mapping[str, int]) -> Payload:
        """All models."""
        return {name: {key: model[key] for key in self.setup.down} for name, model in self.models.items()}

    def evaluation_model(self, client: int) -> Payload:
        """All models; the client chooses as in a visit."""
        return self.payload(client, {})


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and each model forward over all training examples."""
    return trained(context, fedavg_passes(context.blocks), forward_passes(context.blocks, context.options.models))


def initial_models(options: Any) -> int:
    """One per cluster."""
    return int(options.models)


SPEC = ObjectiveSpec(
    name="clusters",
    title="clustered federated learning",
    source="Ghosh et al., NeurIPS 2020",
    options=ClusterOptions,
    neutral="models = 1",
    client="tests.plugins.clusters_client:ClusterUpdate",
    server=ClusterServer,
    reports=(CLUSTER,),
    model=ModelChange(initial_models=initial_models),
    costs=Costs(compute=compute),
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
)
