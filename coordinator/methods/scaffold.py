"""SCAFFOLD: control variates take the clients' drift out of their gradients. The first round is the objective's alone.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
https://arxiv.org/abs/1910.06378. The client side is `edge.methods.scaffold`.

The server keeps c, 0 at first, which goes down beside the model; Δc_i comes up, and c ← c + (1/N) Σ Δc_i over those
that took part, N being all clients. So c is the mean of all c_i at any time, however the model's own mean is weighted.
It covers the parameters that go up: other blocks belong to their clients, and have no gradient in common. The paper's
η_g is the server optimiser's.

Late updates of asynchronous policies are discounted as models; their Δc_i count whole, as their clients keep c_i whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coordinator.aggregation.server import Model, ServerContext, ServerExtension, State
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.methods.spec import CorrectionSpec, Options
from edge.protocol.messages import Update
from edge.protocol.payload import BUFFERS, CONTROL, MODEL, Payload, Vector


class ScaffoldOptions(Options):
    """c_i − c is subtracted from every local gradient."""

    lean: bool = Field(default=False)
    """Whether Δc_i stays at home, since the server can tell it from the model that comes up; else it is sent, and
    charged, as in the paper."""

    def check_asynchronous(self) -> None:
        """Late models are moved before the server side sees them."""
        if self.lean:
            raise ValueError(
                "method_options.lean = true: asynchronous policies (rounds.policy) move an update to where a fresh one "
                "would be, so that the server cannot tell how its client has moved"
            )


class ScaffoldExtension(ServerExtension):
    """Keeps c, sends it, and learns from Δc_i."""

    def __init__(self, setup: ServerContext) -> None:
        super().__init__(setup)
        self.lean = ScaffoldOptions.model_validate(dict(setup.options)).lean
        sizes = setup.layout.shapes(key for key in setup.up if not key.endswith(BUFFERS))
        self.c = {key: Vector(np.zeros(size, np.float32)) for key, size in sizes.items()}
        self._begin()

    def _begin(self) -> None:
        self.sums = {key: WeightedSum() for key in self.c}
        """Of Δc_i, or with ``lean`` of θ_i/(Kη)"""
        self.visits = 0
        """That learned something since the last step"""

    def down(self, client: int) -> Payload:
        """c."""
        return {CONTROL: self.c} if self.c else {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Δc_i."""
        return {} if self.lean else {CONTROL: {key: vector.data.size for key, vector in self.c.items()}}

    def accumulate(self, reply: Update) -> None:
        """Add Δc_i, or what it is told from."""
        weight = self._weight(reply) if self.lean else 1.0
        if weight == 0.0:
            return
        self.visits += 1
        for key, total in self.sums.items():
            total.add(reply.payload[MODEL if self.lean else CONTROL][key].data, weight)

    def _weight(self, reply: Update) -> float:
        """1/(Kη); 0 for a visit that did not move."""
        train = self.setup.train
        moved = train.step_sum(int(reply.numbers["steps"])) * train.lr_in(reply.round)
        return 1 / moved if moved > 0 else 0.0

    def step(self, before: Model, after: Model) -> Model:
        """c ← c + (1/N) Σ Δc_i; the model is the method's."""
        for key, total in self.sums.items():
            if total.total is not None:
                change = self._told(total, before[key], self.c[key]) if self.lean else total.total
                self.c[key] = Vector((self.c[key].data + change / len(self.setup.samples)).astype(np.float32))
        self._begin()
        return after

    def _told(self, total: WeightedSum, before: Vector, c: Vector) -> NDArray[np.float64]:
        """Σ Δc_i = Σ (θ − θ_i)/(Kη) − c for each visit."""
        assert total.total is not None
        return total.weight * before.data.astype(np.float64) - total.total - self.visits * c.data.astype(np.float64)

    def state(self) -> State:
        """c, by key."""
        return {key: vector.data for key, vector in self.c.items()}

    def restore(self, state: State) -> None:
        self.c = {key: Vector(np.asarray(state[key], dtype=np.float32)) for key in self.c}


def whole(options: ScaffoldOptions) -> str | None:
    """Why the whole model must go down and up."""
    if not options.lean:
        return None
    return "with method_options.lean = true, scaffold's server must know where each visit starts"


SPEC = CorrectionSpec(
    name="scaffold",
    title="control variates against client drift",
    source="Karimireddy et al., ICML 2020",
    options=ScaffoldOptions,
    neutral="none; the first round is the objective alone",
    client="edge.methods.scaffold:ScaffoldCorrection",
    server=ScaffoldExtension,
    has_client_state=True,
    needs_individual_updates=True,
    needs_full_model=whole,
)
