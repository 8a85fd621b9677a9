"""IFCA: k models, and each client trains the one that fits its training examples best. models = 1 is FedAvg.

Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
https://arxiv.org/abs/2006.04088. The client side is `edge.methods.ifca`.

All k models are sent to every client; client i trains j = argmin_j f_i(θ_j), and θ_j becomes the mean over the clients
that chose it, which ``aggregate.weights`` weights by size (default) or equally, as the authors' code does. A model that
no client chose stays as it is. With ``shared`` first blocks, these are one model that all clients train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.aggregation.server import ServerContext, ServerExtension, ServerStrategy, VisitFeedback
from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, forward_passes, trained
from coordinator.methods.spec import Costs, MethodMap, ModelChange, ModelEvaluation, ObjectiveSpec, Records, Traffic
from coordinator.records.schema import MethodTable
from edge.protocol.messages import Choice, Update
from edge.protocol.options.ifca import CLUSTER, SHARED, IFCAOptions
from edge.protocol.payload import MODEL, Payload


class ClusterRow(NamedTuple):
    """The model that a client chose for one visit."""

    round: int
    client: int
    cluster: int


class IFCAServer(ServerStrategy):
    """Sends all models; averages each over the clients that chose it."""

    options: IFCAOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        shared = setup.layout.keys(setup.layout.names[: self.options.shared])
        initial = setup.initial_models
        self.models = {
            f"{CLUSTER}{index}": {key: vector for key, vector in model.items() if key not in shared}
            for index, model in enumerate(initial)
        }
        if shared:
            self.models = {SHARED: {key: initial[0][key] for key in shared}} | self.models

    def targets(self, update: Update) -> Mapping[str, str]:
        """The model that the client chose, and the shared blocks."""
        chosen = {MODEL: f"{CLUSTER}{update.numbers[CLUSTER]:g}"}
        return {SHARED: SHARED} | chosen if SHARED in self.models else chosen

    def payload(self, client: int, round: int, choice: Choice) -> Payload:
        """All models."""
        sent = {
            name: {key: vector for key, vector in model.items() if key in self.setup.down}
            for name, model in self.models.items()
        }
        return self.with_extensions(client, {name: model for name, model in sent.items() if model})

    def evaluation_model(self, client: int) -> Payload:
        """All models; the client chooses as in a visit."""
        return self.payload(client, 0, {})

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Those of the base class, with the shared blocks in a slot of their own."""
        up, shared = super().up_shapes(), self.models.get(SHARED, {})
        model = up.pop(MODEL, {})
        parts = {
            SHARED: {key: size for key, size in model.items() if key in shared},
            MODEL: {key: size for key, size in model.items() if key not in shared},
        }
        return {slot: named for slot, named in parts.items() if named} | up

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[ClusterRow]:
        """The clusters that the clients chose."""
        return [ClusterRow(round, outcome.dispatch.client, int(outcome.reply.numbers[CLUSTER])) for outcome in outcomes]


def choosing_forwards(options: IFCAOptions) -> float:
    """Forward passes over the client's training examples by which it chooses; none if there is one model."""
    return options.models if options.models > 1 else 0


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and each model forward over all training examples."""
    return trained(
        context,
        fedavg_passes(context.blocks),
        once=forward_passes(context.blocks, choosing_forwards(context.options)),
    )


FIGURE = MethodMap(
    title="Clusters",
    text="The model that each client (rows) trained in each round (columns). A client that takes no part in a round "
    "has no cell.",
    across=("round",),
    across_title="round",
    value="cluster",
    value_title="cluster",
    periods=1,
    is_kind=True,
)

SPEC = ObjectiveSpec(
    name="ifca",
    title="clusters of clients, each with a model",
    source="Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020",
    options=IFCAOptions,
    takes_losses=lambda options: True,
    neutral="models = 1",
    client="edge.methods.ifca:IFCAUpdate",
    server=IFCAServer,
    reports=(CLUSTER,),
    traffic=Traffic(decides_without_updates=lambda options: True),  # all models are sent in every visit
    model=ModelChange(initial_models=lambda options: options.models),
    costs=Costs(compute=compute, evaluation_forwards=choosing_forwards),
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
    records=Records(table=MethodTable("ifca", ClusterRow, reports={CLUSTER: CLUSTER}), figure=FIGURE),
)
