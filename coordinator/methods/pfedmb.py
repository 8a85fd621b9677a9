"""pFedMB: every linear map has B branches, which clients share, and mix by weights of their own.

Mori, Yoshiyama, Furukawa and Teranishi, Personalized Federated Learning with Multi-branch Architecture, 2022,
https://arxiv.org/abs/2211.07931. The client side is `edge.methods.pfedmb`.

Layer l of client i is W_l = Σ_b α^i_{l,b} W_{l,b}, with α^i_l on the simplex. A visit trains α^i first, then W; α^i is
client state, and goes up as a weight of the mean:

    W_{l,b} ← Σ_i n_i α^i_{l,b} W^i_{l,b} / Σ_i n_i α^i_{l,b}       over the participants

Normalisation and all else without branches is shared, trained with W, and averaged by n_i. Details that the paper
leaves open are options, with the default first. The global model, if that is evaluated, is that of a client without any
training: all α are 1/B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coordinator.aggregation.block_exchange import EVERYTHING
from coordinator.aggregation.server import Models, ServerContext, ServerExtension, ServerStrategy, VisitFeedback
from coordinator.methods.compute import Compute, ComputeContext, PassCounts, fedavg_compute
from coordinator.methods.spec import (
    Costs,
    MethodMap,
    ModelChange,
    ModelEvaluation,
    ObjectiveSpec,
    Records,
    Refusals,
    Traffic,
)
from coordinator.records.schema import MethodTable
from edge.protocol.config import TrainingPlan
from edge.protocol.messages import Update
from edge.protocol.options.pfedmb import (
    ALPHA,
    BRANCH,
    WEIGHTS,
    PFedMBOptions,
    branched_keys,
    mixing_flops,
    weighted_layers,
)
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    LAYER,
    PASS_TYPES,
    WEIGHT_GRADIENT,
    BlockShape,
    LayerShape,
    Layout,
    block_of,
)

LEAST_WEIGHT = 1e-12
"""A branch whose weights add up to less keeps its numbers."""


class BranchWeightRow(NamedTuple):
    """One branch weight of a client after a visit."""

    round: int
    client: int
    layer: str
    """``block/layer``, or ``all layers`` where they share their weights"""
    branch: int
    """1..B"""
    weight: float
    """α"""


class PFedMBServer(ServerStrategy):
    """Averages each branch, by default weighted with the clients' branch weights."""

    options: PFedMBOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.layers = branched_keys(setup.layout.sizes)
        self.sent = weighted_layers(setup.layout.sizes, self.options.shared_alpha)
        by_alpha = self.layers if self.options.aggregation == "alpha" else {}
        self._place = {
            key: (layer if layer in self.sent else next(iter(self.sent)), index)
            for layer, keys in by_alpha.items()
            for index, key in enumerate(keys.branches)
        }
        """Key of a branch -> (layer, index) of its weight in an upload"""
        self._observed: dict[int, list[tuple[str, int, float]]] = {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Also the branch weights."""
        alpha = {layer: len(keys.branches) for layer, keys in self.sent.items()}
        return {**super().up_shapes(), **({ALPHA: alpha} if alpha else {})}

    def weight(self, reply: Update, model: str, key: str) -> float:
        """n_i α_i for a branch, n_i for all else."""
        weight = super().weight(reply, model, key)
        if key not in self._place:
            return weight
        layer, index = self._place[key]
        alpha = reply.payload[ALPHA][layer].data
        # An update that counts as no change has zeros.
        return weight * (max(float(alpha[index]), 0.0) if alpha.any() else 1 / len(alpha))

    def step(self) -> None:
        """A branch that nearly no client uses stays as it is."""
        for unused in [key for key, total in self.sums.items() if total.weight < LEAST_WEIGHT]:
            del self.sums[unused]
        super().step()

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        """The branch weights, for the ledger; none of an update that counts as no change."""
        self._observed[reply.client] = [
            (layer, branch, float(weight))
            for layer, vector in reply.payload.get(ALPHA, {}).items()
            if vector.data.any()
            for branch, weight in enumerate(vector.data, 1)
        ]

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[BranchWeightRow]:
        """The rows of all branch weights."""
        clients = [outcome.dispatch.client for outcome in outcomes]
        return [BranchWeightRow(round, client, *row) for client in clients for row in self._observed.pop(client, ())]


def exchanged(options: PFedMBOptions) -> str:
    """All but the branch weights as they are trained."""
    return EVERYTHING if options.branches == 1 else f"without-layers:{WEIGHTS}"


def kept_blocks(layout: Layout, down: tuple[str, ...], options: PFedMBOptions) -> tuple[str, ...]:
    """The branch weights, of the first layer alone where all are the same; and whatever else is not downloaded."""
    layers = list(branched_keys(layout.sizes).values())
    copies = {keys.weights for keys in layers[1:]} if options.shared_alpha else set()
    return tuple(key for key in layout.sizes if key not in down and key not in copies)


def branched_layout(layout: Layout, options: PFedMBOptions) -> Layout:
    """The layout with branches, if each block were one layer: for prices of methods without torch.

    Normalisation is counted as branched, which in a resnet18 is 0.1 % of the numbers; and of the weights, a few numbers
    per layer, those of one layer per block.
    """
    count, blocks = options.branches, []
    if count == 1:
        return layout
    for block in layout.blocks:
        prefix = f"{block.name}{LAYER}"
        branches = [LayerShape(f"{prefix}{BRANCH}{number}", block.params) for number in range(1, count + 1)]
        weights = LayerShape(f"{prefix}{WEIGHTS}", count)
        others = [LayerShape(f"{prefix}statistics", 0, block.buffers)] if block.buffers else []
        layers = (*branches, weights, *others)
        blocks.append(BlockShape(block.name, count * block.params + count, block.buffers, layers))
    return Layout(tuple(blocks))


def compute(context: ComputeContext) -> Compute:
    """An ordinary step per batch in both phases, and per step the mixing of the weights and its gradient."""
    epochs = context.options.alpha_epochs
    if epochs is None:
        return _in_phases(context, context.plan)
    train = replace(context.train, local_epochs=epochs, local_steps=None)
    return _in_phases(context, train.plan(context.samples))


def adaptation(context: ComputeContext) -> Compute:
    """The same phases, each with all epochs of the adaptation; or W alone."""
    options: PFedMBOptions = context.options
    is_trained = options.fine_tuning == "both" and options.alpha_epochs != 0
    return _in_phases(context, context.plan if is_trained else TrainingPlan(0, 0, 0))


def _in_phases(context: ComputeContext, alpha: TrainingPlan) -> Compute:
    """``alpha``: the amount of training of phase A."""
    plain = fedavg_compute(context)
    if context.options.branches == 1:
        return plain
    steps = alpha.steps + plain.steps
    return replace(
        plain,
        passes=plain.passes + alpha.samples * _alpha_passes(context.layout),
        steps=steps,
        further_flops=float(mixing_flops(context.layout.sizes) * steps),
    )


def _alpha_passes(layout: Layout) -> PassCounts:
    """Of a step of α: no gradient goes further back than to the first block with branches, nor to other weights.

    A layout without layers, such as that of a price of methods, has branches everywhere.
    """
    of_blocks = {block_of(layer) for layer in branched_keys(layout.sizes)}
    has = np.array([name in of_blocks or not of_blocks for name in layout.names])
    passes = np.zeros((len(layout), PASS_TYPES))
    reached = np.maximum.accumulate(has)
    passes[:, FORWARD] = 1
    passes[:, WEIGHT_GRADIENT], passes[:, INNER_GRADIENT] = has, reached
    passes[1:, INPUT_GRADIENT] = reached[:-1]
    return passes


def refused_with_single_updates(options: PFedMBOptions) -> str | None:
    """A mean over one client has no use for weights."""
    if options.branches == 1 or options.aggregation == "plain":
        return None
    return (
        'method_options.aggregation = "alpha": a server step with one update has no mean to weight, so that a client '
        'would replace branches that it hardly uses; choose "plain", or fedbuff with rounds.buffer above 1'
    )


FIGURE = MethodMap(
    title="Branch weights",
    text="The weight α of each branch (columns, layer by layer) in each client's model (rows), as the mean over its "
    "visits in a part of the run. Clients with similar rows share branches, and so learn from each other.",
    across=("layer", "branch"),
    across_title="layer and branch",
    value="weight",
    value_title="weight α",
)

SPEC = ObjectiveSpec(
    name="pfedmb",
    title="branches in every layer, mixed by weights of each client",
    source="Mori et al., 2022",
    options=PFedMBOptions,
    takes_losses=lambda options: True,
    neutral="branches = 1",
    client="edge.methods.pfedmb:PFedMBUpdate",
    server=PFedMBServer,
    individual_updates=lambda options: True,
    traffic=Traffic(
        down=exchanged, up=exchanged, kept_blocks=kept_blocks, by_layer=lambda options: options.branches > 1
    ),
    model=ModelChange(
        wrap_model=lambda options: None if options.branches == 1 else "edge.methods.branched_layers:branched",
        wrapped_layout=branched_layout,
    ),
    costs=Costs(compute=compute, adaptation=adaptation),
    evaluation=ModelEvaluation(on="clients"),
    records=Records(table=MethodTable("pfedmb", BranchWeightRow), figure=FIGURE),
    refusals=Refusals(
        corrections={
            "scaffold": "scaffold corrects the drift from one common gradient, but with pfedmb each client mixes the "
            "branches, and so scales their gradients, in its own way",
            "feddyn": "feddyn's server step needs the mean of all clients' models, but pfedmb averages each branch "
            "with other weights",
        },
        single_updates=refused_with_single_updates,
    ),
)
