"""SCAFFOLD: control variates correct client drift in local gradients. The first round is the objective's alone.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
https://arxiv.org/abs/1910.06378. The client side is `edge.methods.scaffold`.

The server sends c, 0 at first, beside the model; clients send Δc_i, and c ← c + (1/N) Σ Δc_i over the clients of a
round, with N the number of all clients. So c is the mean of all c_i at any time, whatever the aggregation weights. It
covers uploaded parameters only: other blocks are private, and have no common gradient. The paper's η_g is the server
optimizer's.

Models are averaged by ``aggregate.weights``, by default in proportion to the clients' examples; the paper's mean is
unweighted (``aggregate.weights = "uniform"``). The authors published no code. That of FedDyn's authors takes the
unweighted mean of the models, and weighs Δc_i, and c in the clients' steps, by the examples.

Asynchronous policies discount the models of late updates, but not their Δc_i, since clients keep c_i undiscounted.

With aggregators (``fleet.tiers``) each is such a server for the N_j clients that belong to it: its visits download c_j
beside its model, and c_j ← c_j + (1/N_j) Σ Δc_i. At a meeting c ← c + Σ (N_j/N) (c_j − c) over the aggregators whose
models arrive, and these go on with c; the others go on with c and what they had added to theirs. So c is the mean of
all c_i whenever all has arrived. In between, with m_j the mean of the c_i of an aggregator's clients, c_j − c_i =
(m_j − c_i) + (c − m_j at the meeting): a correction of the client towards its aggregator, and one of the aggregator
towards all that stays until the next meeting. These are the two of Fang et al., Hierarchical Federated Learning with
Multi-Timescale Gradient Correction, NeurIPS 2024, https://arxiv.org/abs/2409.18448, in terms of c_i.
"""

from __future__ import annotations

import numpy as np

from coordinator.aggregation.server import Model, ServerContext, ServerExtension, State
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.methods.spec import CorrectionSpec, Refusals, numbers_of_model
from edge.protocol.messages import Update
from edge.protocol.options.scaffold import ScaffoldOptions
from edge.protocol.payload import BUFFERS, CONTROL, MODEL, Payload, Vector


class ScaffoldExtension(ServerExtension):
    """Sends c, and updates it from Δc_i."""

    options: ScaffoldOptions

    def __init__(self, setup: ServerContext) -> None:
        super().__init__(setup)
        sizes = setup.layout.shapes(key for key in setup.up if not key.endswith(BUFFERS))
        self.c = {key: Vector(np.zeros(size, np.float32)) for key, size in sizes.items()}
        self._begin()

    def _begin(self) -> None:
        self.sums = {key: WeightedSum() for key in self.c}
        """Sums of Δc_i, or with ``lean`` of θ_i/(Kη)"""
        self.visits = 0
        """Visits with at least one step since the last server step"""

    def down(self, client: int) -> Payload:
        """c."""
        return {CONTROL: self.c} if self.c else {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Δc_i."""
        return {} if self.options.lean else {CONTROL: {key: vector.data.size for key, vector in self.c.items()}}

    def accumulate(self, reply: Update) -> None:
        """Add Δc_i, or with ``lean`` θ_i/(Kη); with differential privacy, and so with ``lean``, c is learned of the
        noisy mean."""
        weight, train = 1.0, self.setup.train
        if self.setup.privacy is not None:
            return
        if self.options.lean:
            moved = train.step_sum(int(reply.numbers["steps"])) * train.lr_in(reply.round)
            if moved <= 0:  # a visit without steps
                return
            weight = 1 / moved
        self.visits += 1
        for key, total in self.sums.items():
            total.add(reply.payload[MODEL if self.options.lean else CONTROL][key].data, weight)

    def step(self, before: Model, after: Model) -> Model:
        """c ← c + (1/N) Σ Δc_i; the model stays the method's."""
        c = dict(self.c)  # visits under way hold the one before
        privacy, train = self.setup.privacy, self.setup.train
        for key in self.sums if privacy is not None else ():
            assert privacy is not None and train.local_steps is not None
            moved = train.step_sum(train.local_steps) * train.lr_in(privacy.steps)
            change = -privacy.cohort * (privacy.changes[key] / moved + self.c[key].data)
            c[key] = Vector((self.c[key].data + change / self.setup.client_count).astype(np.float32))
        for key, total in self.sums.items():
            if total.total is not None:
                change = total.total
                if self.options.lean:  # Σ Δc_i = Σ (θ − θ_i)/(Kη) − c for each visit
                    start, own = (vector.data.astype(np.float64) for vector in (before[key], self.c[key]))
                    change = total.weight * start - total.total - self.visits * own
                c[key] = Vector((self.c[key].data + change / self.setup.client_count).astype(np.float32))
        self.c = c
        self._begin()
        return after

    def carried(self) -> Payload:
        """c."""
        return self.down(0)

    def carry(self, vectors: Payload) -> None:
        self.c = dict(vectors.get(CONTROL, {}))

    def state(self) -> State:
        """c, by key."""
        return {key: vector.data for key, vector in self.c.items()}

    def restore(self, state: State) -> None:
        self.c = {key: Vector(np.asarray(state[key], dtype=np.float32)) for key in self.c}


SPEC = CorrectionSpec(
    name="scaffold",
    title="control variates against client drift",
    source="Karimireddy et al., ICML 2020",
    options=ScaffoldOptions,
    takes_losses=lambda options: True,
    neutral="none; the first round is the objective alone",
    client="edge.methods.scaffold:ScaffoldCorrection",
    server=ScaffoldExtension,
    client_state=numbers_of_model,
    individual_updates=lambda options: True,
    needs_step_sum=True,
    refusals=Refusals(
        privacy=lambda options, train: (
            None
            if options.lean and train.local_steps is not None
            else "clients send control variates, and noise is on models alone; choose method_options.lean = true and "
            "train.local_steps, so that the server computes them from the noisy mean"
        ),
        partial_models=lambda options: (
            "with method_options.lean = true, scaffold's server must know the model that each visit starts from"
            if options.lean
            else None
        ),
        # Late models are rebased before the server side gets them.
        asynchronous=lambda options: (
            "method_options.lean = true: asynchronous policies (rounds.policy) rebase updates to the current model, so "
            "that the server cannot compute a client's own change"
            if options.lean
            else None
        ),
    ),
)
