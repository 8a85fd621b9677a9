"""FedDyn, client side: a linear and a quadratic term make every client's optimum agree with the global one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263

The local objective is f_i(w) − ⟨λ_i, w⟩ + (α/2)‖w − θ‖², θ being the downloaded model and α the option
``coefficient``. After training λ_i ← λ_i − α(θ_i − θ), the client state; it is 0 before the first visit. For a client
that solves its problem exactly, it is the gradient of f_i at θ_i. The authors' code stores −λ_i/α instead.

By default both terms are inside the clipped gradient. In the authors' code, α‖w‖²/2 is added to weight decay and so is
never clipped, while the rest of the square, −α⟨θ, w⟩, is clipped with the loss: ``clipped = "ce+linear"``.
"""

from __future__ import annotations

import torch

from edge.protocol.options.feddyn import FedDynOptions
from edge.protocol.payload import MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext, added_by_codec

KEPT = "feddyn"
"""Slot of λ_i."""


class FedDynCorrection(GradientCorrection):
    """Adds −λ_i + α(w − θ) to every gradient."""

    options: FedDynOptions

    capturable = True
    """All vectors are scratch, and steps depend on options alone."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load λ_i of the last visit; copy θ."""
        self.start = net.scratch("feddyn: start").copy_(net.flat)
        self.moved = net.scratch("feddyn: moved")
        self.linear = net.scratch("feddyn: lambda").zero_()
        net.load(state.get(KEPT, {}), into=self.linear)
        self.weight = float(self.options.coefficient)
        self.all_clipped = self.options.clipped == "everything"

    def correct(self, net: BlockModel) -> None:
        """Add the clipped terms."""
        if self.all_clipped:
            # w − θ is exactly 0 in the first step, which α·w − α·θ would not be.
            net.grad.add_(torch.sub(net.flat, self.start, out=self.moved), alpha=self.weight)
        else:
            net.grad.sub_(self.start, alpha=self.weight)
        net.grad.sub_(self.linear)

    def correct_unclipped(self, net: BlockModel) -> None:
        """Add α·w, unless it is clipped."""
        if not self.all_clipped:
            net.grad.add_(net.flat, alpha=self.weight)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Store λ_i − α(θ_i − θ); no further upload, since the server has θ and gets θ_i."""
        self.linear.sub_(torch.sub(net.flat, self.start, out=self.moved), alpha=self.weight)
        return {}, {KEPT: net.views(net.layout.names, of=self.linear)}, {}

    def encoded(self, net: BlockModel, visit: VisitContext, decoded: Payload) -> Payload:
        """λ_i with the θ_i that the server decodes, so that h stays the mean of all λ_i."""
        self.linear.sub_(added_by_codec(net, net.flat, decoded.get(MODEL, {})), alpha=self.weight)
        return {KEPT: net.views(net.layout.names, of=self.linear)}
