"""pFedMe, client side: a personal model θ is trained near w, and w moves towards it after each minibatch.

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020,
https://arxiv.org/abs/2006.08848, Algorithm 1; symbols and rates as in `coordinator.methods.pfedme`.

θ starts from w at the start of a visit. The upload is w, and the client state θ, in a slot of its own, from which no
training starts: it is evaluated. Running statistics are part of both: θ's are those of its forward passes, and w's move
towards them as its parameters do, by ηλ (at most 1) after each minibatch.
"""

from __future__ import annotations

from edge.protocol.options.pfedme import PFedMeOptions
from edge.protocol.payload import BUFFERS, MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext, mean

PERSONAL = "personal"
"""The slot of θ in the client state."""


class PFedMeUpdate(ClientUpdate):
    """One visit under pFedMe; the trained model is θ."""

    options: PFedMeOptions

    capturable = True
    """w is scratch, and λ an option; w moves between steps, which are captured alone."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start θ from w."""
        super().begin(net, down, state, visit)
        self.w = net.scratch("pfedme: w").copy_(net.flat)
        self.pull = net.scratch("pfedme: θ - w")
        self.w_statistics = net.buffers.clone()

    def correct(self, net: BlockModel) -> None:
        """Add λ(θ − w) to the gradient."""
        net.grad.add_(self.pull.copy_(net.flat).sub_(self.w), alpha=self.options.lam)

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """K steps of θ per minibatch, then one of w."""
        part = self.options.lam * self.options.outer_lr
        for x, y in batches():
            if self.options.reset:
                net.flat.copy_(self.w)
                net.buffers.copy_(self.w_statistics)
            for _ in range(self.options.inner_steps):
                step(self.loss, x, y)
            # w − ηλ(w − θ); exactly w for 0, and exactly θ for 1
            self.w.lerp_(net.flat, part)
            self.w_statistics.lerp_(net.buffers, min(part, 1.0))

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Upload w, and keep θ; blocks that are not downloaded are kept of w."""
        sent = dict.fromkeys(visit.up + visit.keep)
        statistics = [key for key in net.layout.sizes if key.endswith(BUFFERS)]
        personal = net.views(net.layout.sizes) | net.dump(statistics)
        net.buffers.copy_(self.w_statistics)
        w = net.views([key for key in sent if not key.endswith(BUFFERS)], of=self.w)
        w |= net.views([key for key in statistics if key in sent])
        kept = {MODEL: {key: w[key] for key in visit.keep}} if visit.keep else {}
        return {MODEL: {key: w[key] for key in visit.up}}, {**kept, PERSONAL: personal}, {"loss": mean(self.losses)}

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load θ; the model of a visit that begins now, if there is no θ yet."""
        if PERSONAL in state:
            net.load(state[PERSONAL])
        else:
            self.begin(net, down, state, visit)
