"""FedNova: clients' changes are divided by their numbers of local steps before they are averaged.

Wang, Liu, Liang, Joshi and Poor, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020, https://arxiv.org/abs/2007.07481. The client side, which counts the steps, is `edge.methods.fednova`.

θ ← θ − τ_eff Σ p_i d_i with d_i = (θ − θ_i)/a_i equals τ_eff Σ p_i/a_i times the step from θ to the mean of the θ_i
with weights p_i/a_i. The server optimizer gets the mean of this scaled step.

With ``train.nesterov``, a_i is that of Nesterov's steps; the authors' code (https://github.com/JYWa/FedNova) takes that
of plain momentum there. It also adds a proximal term after momentum, and here the term is part of the gradient before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator.aggregation.server import ServerContext, ServerExtension, ServerStrategy
from coordinator.methods.spec import ObjectiveSpec, Refusals
from edge.protocol.messages import Update
from edge.protocol.options.fednova import FedNovaOptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import BUFFERS


class FedNovaServer(ServerStrategy):
    """Averages normalised changes; a client without steps has weight 0."""

    options: FedNovaOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.counts = self.options.effective_steps
        if self.counts == "auto":
            is_proximal = isinstance(self.options, FedProxOptions) and self.options.mu > 0
            self.counts = "steps" if is_proximal else "normalisers"
        self.unit = 0.0
        """The first normaliser since the last step, and the unit of the others: if all are equal, weights are
        bit-identical to FedAvg's"""
        self.totals = np.zeros(3)
        """Since the last step, over clients of weight n_i: Σ n_i; Σ n_i unit/a_i; Σ n_i a_i/unit or Σ n_i K_i/unit"""

    def weight(self, reply: Update, model: str, key: str) -> float:
        """n_i unit/a_i for parameters, n_i for buffers, which are not sums of steps."""
        normaliser = reply.numbers["normaliser"]
        if not normaliser:
            return 0.0
        return super().weight(reply, model, key) * (1.0 if key.endswith(BUFFERS) else self.unit / normaliser)

    def accumulate(self, reply: Update) -> None:
        """Also add to the totals of this step's factor."""
        normaliser, weight = reply.numbers["normaliser"], self.setup.weight_of(reply.client)
        if normaliser:
            self.unit = self.unit or normaliser
            steps = normaliser if self.counts == "normalisers" else reply.numbers["steps"]
            self.totals += weight, weight * (self.unit / normaliser), weight * (steps / self.unit)
        super().accumulate(reply)

    def step(self) -> None:
        """A step of τ_eff Σ p_i/a_i times the distance to the mean."""
        total, inverse, steps = self.totals
        if total:
            self.step_scale = float(steps / total * (inverse / total))
        super().step()
        self.unit, self.totals = 0.0, np.zeros(3)


SPEC = ObjectiveSpec(
    name="fednova",
    title="normalised averaging",
    source="Wang, Liu, Liang, Joshi and Poor, NeurIPS 2020",
    options=FedNovaOptions,
    takes_losses=lambda options: True,
    neutral="the same number of steps at every client (train.local_steps)",
    client="edge.methods.fednova:FedNovaUpdate",
    server=FedNovaServer,
    reports=("normaliser",),
    individual_updates=lambda options: True,
    needs_step_sum=True,
    refusals=Refusals(tiers="an aggregator's weights are of normalised updates, and do not compare with another's"),
)
