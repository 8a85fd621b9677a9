"""pFedMe: clients train personal models near the global one, which moves towards them (Moreau envelopes).

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020,
https://arxiv.org/abs/2006.08848, Algorithm 1. The client side is `edge.methods.pfedme`.

Symbols: θ personal model, w global model and its local version, K inner steps per minibatch, λ pull of θ towards w, η_p
rate of the inner steps, η that of w, β server mix, S cohort. Per minibatch, K steps of
θ ← θ − η_p(∇f(θ) + λ(θ − w)), then w ← w − ηλ(w − θ). The server sets w to (1 − β)w + β·(mean of the cohort's w).
Running statistics of BatchNorm, of which the paper says nothing, are part of w: with λ = 0 or β = 0 they stay too. They
are moved at most to those of θ and to the mean, since a variance beyond could be negative.

``train.lr``, with its schedule, is η_p: the rate of SGD on minibatches, as of every method. Clipping, weight decay and
momentum of ``train`` act on inner steps, where the pull is part of the gradient. The authors' code has η_p = 0.09, and
a weight decay that the paper lacks: that is ``train.weight_decay = 0.001``. Inner steps diverge if λ·η_p reaches 2.

Personal models stay on the clients; they are evaluated. A client that never took part has the global model. In the
paper and its code (https://github.com/CharlieDinh/pFedMe) all clients train in each round, and the server averages
those of the cohort; so each evaluated θ is trained from the newest w. Here the cohort alone trains, and θ is that of
the client's last visit. The code weighs clients by their examples: ``aggregate.weights = "size"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coordinator.aggregation.server import (
    GLOBAL,
    Download,
    LaterPayload,
    Model,
    Models,
    ServerContext,
    ServerExtension,
    ServerStrategy,
    State,
)
from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, trained
from coordinator.methods.spec import Costs, ModelEvaluation, ObjectiveSpec, Refusals, numbers_of_model
from edge.protocol.options.pfedme import PFedMeOptions
from edge.protocol.payload import BUFFERS, Payload, Vector


class PFedMeServer(ServerStrategy):
    """Moves by β; knows which clients have a personal model, which then need not be sent one to be evaluated."""

    options: PFedMeOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.step_scale = self.options.beta
        self.statistics_part = min(self.options.beta, 1.0)
        """The part of the way to the mean that running statistics move"""
        self.is_personal = np.zeros(len(setup.samples), bool)
        """(clients,)"""

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """These clients have a personal model now."""
        self.is_personal[[dispatch.client for dispatch in dispatches]] = True

    def step(self) -> None:
        """Move parameters by β, and running statistics by at most 1."""
        before = self.model
        super().step()
        if self.statistics_part < 1:
            moved: Model = {}
            for key, vector in self.model.items():
                if key.endswith(BUFFERS):
                    start = before[key].data
                    way = vector.data.astype(np.float64) - start
                    moved[key] = Vector((start + self.statistics_part * way).astype(np.float32))
            self.models = {GLOBAL: self.model | moved}

    def evaluation_model(self, client: int) -> Payload | LaterPayload:
        """Nothing for a client that has a personal model."""
        return {} if self.is_personal[client] else super().evaluation_model(client)

    def state(self) -> State:
        """Also the clients that have a personal model."""
        return super().state() | {"is_personal": self.is_personal.copy()}

    def restore(self, models: Models, state: State) -> None:
        """Also the clients that have a personal model."""
        super().restore(models, state)
        self.is_personal = np.asarray(state["is_personal"], bool).copy()


def compute(context: ComputeContext) -> Compute:
    """K ordinary training steps per minibatch, one after the other; steps of w are no passes, and not counted."""
    once = fedavg_passes(context.blocks)
    repeated = trained(context, context.options.inner_steps * once)
    stored = trained(context, once).stored_forwards
    return replace(repeated, steps=context.options.inner_steps * context.plan.steps, stored_forwards=stored)


SPEC = ObjectiveSpec(
    name="pfedme",
    title="personal models near a global one",
    source="Dinh, Tran and Nguyen, NeurIPS 2020",
    options=PFedMeOptions,
    takes_losses=lambda options: True,
    neutral="inner_steps = 1 and lam * outer_lr = 1",
    client="edge.methods.pfedme:PFedMeUpdate",
    server=PFedMeServer,
    weights="uniform",
    client_state=numbers_of_model,
    costs=Costs(compute=compute),
    evaluation=ModelEvaluation(on="clients"),
    refusals=Refusals(
        server_optimizers=("plain",),
        corrections={
            "scaffold": "scaffold's control variates are changes of the trained model, but pfedme uploads another one",
        },
    ),
)
