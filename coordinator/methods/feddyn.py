"""FedDyn: dynamic regularisation, whose fixed point is the global optimum. A client's first step is plain.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263. The client
side is `edge.methods.feddyn`, which keeps λ_i; only the model is sent.

The server keeps h, 0 at first: h ← h − (α/N) Σ (θ_i − θ) over the clients of a round, with N the number of all clients,
so that h is the mean of all λ_i at any time. Then θ ← (the clients' mean) − h/α. The paper's mean is unweighted; here
``aggregate.weights`` applies, by default the clients' examples, which is the same if all have as many. The code of the
authors (https://github.com/alpemreacar/FedDyn) takes the unweighted mean too (``aggregate.weights = "uniform"``), and
divides a client's α by its examples relative to their mean; here α is the same for all clients, as in the paper.
"""

from __future__ import annotations

import numpy as np

from coordinator.aggregation.server import Model, ServerContext, ServerExtension, State
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.methods.spec import CorrectionSpec, Refusals, numbers_of_model
from edge.protocol.messages import Update
from edge.protocol.options.feddyn import FedDynOptions
from edge.protocol.payload import BUFFERS, MODEL, Vector


class FedDynExtension(ServerExtension):
    """Keeps h, and makes the server step."""

    options: FedDynOptions

    def __init__(self, setup: ServerContext) -> None:
        super().__init__(setup)
        sizes = setup.layout.shapes(key for key in setup.up if not key.endswith(BUFFERS))
        self.h = {key: np.zeros(size, np.float32) for key, size in sizes.items()}
        self.sums = {key: WeightedSum() for key in self.h}
        """Σ θ_i since the last step, unweighted"""

    def accumulate(self, reply: Update) -> None:
        """Add θ_i; with differential privacy h is learned of the noisy mean."""
        if self.setup.privacy is not None:
            return
        for key, total in self.sums.items():
            total.add(reply.payload[MODEL][key].data, 1.0)

    def step(self, before: Model, after: Model) -> Model:
        """Update h, then set θ = mean − h/α; buffers stay the method's."""
        stepped = dict(after)
        privacy = self.setup.privacy
        for key, total in self.sums.items():
            if privacy is not None or total.total is not None:
                if privacy is not None:  # of the noisy mean, as of so many clients
                    moved = privacy.cohort * privacy.changes[key]
                else:
                    assert total.total is not None
                    moved = total.total - total.weight * before[key].data.astype(np.float64)
                scale = self.options.coefficient / len(self.setup.samples)
                self.h[key] = (self.h[key] - scale * moved).astype(np.float32)
                stepped[key] = Vector((after[key].data - self.h[key] / self.options.coefficient).astype(np.float32))
        self.sums = {key: WeightedSum() for key in self.h}
        return stepped

    def state(self) -> State:
        """h, by key."""
        return dict(self.h)

    def restore(self, state: State) -> None:
        self.h = {key: np.asarray(state[key], dtype=np.float32) for key in self.h}


SPEC = CorrectionSpec(
    name="feddyn",
    title="dynamic regularisation",
    source="Acar et al., ICLR 2021",
    options=FedDynOptions,
    takes_losses=lambda options: True,
    neutral="none; a client's very first step is the objective's alone",
    client="edge.methods.feddyn:FedDynCorrection",
    server=FedDynExtension,
    client_state=numbers_of_model,
    individual_updates=lambda options: True,
    refusals=Refusals(
        privacy=lambda options, train: None,
        tiers="the server's gradient is a sum over all clients, of which an aggregator sees its own",
        server_optimizers=("plain",),
        # λ_i refers to the model that a client downloaded, h to the one that the server steps from.
        asynchronous=lambda options: (
            "rounds.policy: feddyn's server steps from the model that all clients of a round were sent, and "
            "asynchronous policies have no such rounds"
        ),
        partial_models=lambda options: (
            "feddyn's terms and its server step need the whole model that a visit starts from"
        ),
        corrections={
            "scaffold": "scaffold and feddyn both correct the same client drift, so each would learn from gradients "
            "that the other has corrected; join one of them"
        },
    ),
)
