"""The optimizer's vectors between visits (``train.optimizer_state``): a correction that joins any method.

With ``send`` the server sends the means over the last step's updates, with the aggregation weights of the models: m and
v of AdamW are 8 B a weight in each direction. With ``mean`` it sends one number per vector of the model. The steps
behind them travel as a mean, too, 4 B a block, which a client rounds. A step without updates changes nothing. The
client side is `edge.methods.optimizer_state`.

Means of moments: Cheng, Huang, Wu and Yuan, Momentum Benefits Non-IID Federated Learning Simply and Provably, ICLR 2024
(momentum), and FedAdamW (arXiv:2510.27486), whose paper sends the mean of v per block. Its step along the global
direction is not part of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordinator.aggregation.block_exchange import EVERYTHING
from coordinator.aggregation.server import Model, ServerContext, ServerExtension, State
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.methods.registry import Method
from coordinator.methods.spec import CorrectionSpec
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import BUFFERS, STEPS, Layout, Payload, Vector

COUNTS = "counts"


class OptimizerStateExtension(ServerExtension):
    """Sends the means of the optimizer's vectors, and updates them."""

    def __init__(self, setup: ServerContext) -> None:
        super().__init__(setup)
        self.vectors = initial_vectors(setup.train, setup.layout, setup.up)
        self._begin()

    def _begin(self) -> None:
        self.sums = {slot: {key: WeightedSum() for key in by_key} for slot, by_key in self.vectors.items()}

    def down(self, client: int) -> Payload:
        """The means of the last step."""
        return {slot: dict(by_key) for slot, by_key in self.vectors.items()}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """The same vectors."""
        return {
            slot: {key: vector.data.size for key, vector in by_key.items()} for slot, by_key in self.vectors.items()
        }

    def accumulate(self, reply: Update) -> None:
        """Add a visit's vectors."""
        weight = self.setup.weight_of(reply.client)
        for slot, by_key in self.sums.items():
            for key, total in by_key.items():
                total.add(reply.payload[slot][key].data, weight)

    def step(self, before: Model, after: Model) -> Model:
        """The means of this step's updates; the model stays the method's."""
        self.vectors = {
            slot: {key: _mean(total, self.vectors[slot][key]) for key, total in by_key.items()}
            for slot, by_key in self.sums.items()
        }
        self._begin()
        return after

    def carried(self) -> Payload:
        """All of them."""
        return self.down(0)

    def carry(self, vectors: Payload) -> None:
        self.vectors = {slot: dict(by_key) for slot, by_key in vectors.items()}

    def state(self) -> State:
        """The means, by slot and key."""
        return {f"{slot}/{key}": each.data for slot, by_key in self.vectors.items() for key, each in by_key.items()}

    def restore(self, state: State) -> None:
        self.vectors = {
            slot: {key: Vector(np.asarray(state[f"{slot}/{key}"], dtype=np.float32)) for key in by_key}
            for slot, by_key in self.vectors.items()
        }


def _mean(total: WeightedSum, current: Vector) -> Vector:
    average = total.mean(current.data)
    return current if average is None else Vector(average)


def initial_vectors(train: TrainConfig, layout: Layout, up: Sequence[str]) -> dict[str, Model]:
    """What travels before the first step, by slot: vectors like those of the model that are uploaded, or one number in
    place of each; and the steps of each block."""
    sizes = layout.shapes(key for key in up if not key.endswith(BUFFERS))
    vectors: Mapping[str, float] = train.optimizer_vectors
    if train.optimizer_state == "mean":
        second = train.optimizer_row[0].second
        assert second is not None
        sizes, vectors = dict.fromkeys(sizes, 1), {second: vectors[second]}
    sent: dict[str, Model] = {
        name: {key: Vector(np.full(size, first, np.float32)) for key, size in sizes.items()}
        for name, first in vectors.items()
    }
    return {**sent, STEPS: {COUNTS: Vector(np.zeros(len(layout), np.float32))}} if sizes else {}


def with_optimizer_state(method: Method, train: TrainConfig, down: str | None, up: str | None) -> Method:
    """The method, joined with what ``train.optimizer_state`` says; ``down``, ``up``: ``travels`` of the scenario."""
    if train.optimizer_state == "reset":
        return method
    is_kept = train.optimizer_state == "keep"

    def kept_numbers(layout: Layout, options: Options) -> int:
        sent = () if is_kept else method.travels(options, layout, down, up)[1]
        kept = [size for key, size in layout.sizes.items() if key not in sent and not key.endswith(BUFFERS)]
        return len(train.optimizer_vectors) * sum(kept) + (len(layout) + 1 if kept else 0)

    sends_all = (up or method.objective.traffic.up(method.options())) == EVERYTHING
    correction = replace(SPEC, client_state=kept_numbers if is_kept or not sends_all else None)
    if is_kept:
        correction = replace(correction, server=None, individual_updates=lambda options: False)
    return replace(method, corrections=(*method.corrections, correction))


SPEC = CorrectionSpec(
    name="optimizer_state",
    title="the optimizer's vectors between visits",
    source="train.optimizer_state",
    options=Options,
    takes_losses=lambda options: True,
    neutral='train.optimizer_state = "reset"',
    client="edge.methods.optimizer_state:OptimizerState",
    server=OptimizerStateExtension,
    individual_updates=lambda options: True,
)
