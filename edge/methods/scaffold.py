"""SCAFFOLD, client side: every gradient is corrected by the difference of the global and the client's control variate.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.

Local step: y ← y − η(g_i(y) − c_i + c), K times from x. Then c_i⁺ = c_i − c + (x − y)/(Kη), and Δc_i = c_i⁺ − c_i is
uploaded. The client state is c_i, 0 before the first visit. x is the start of the visit: the downloaded model or, under
FedBR, that model joined to the client's first blocks; g_i is the gradient of the objective, whichever it is.

η is that of this visit. With momentum, (x − y)/η is no sum of K gradients: K is then `TrainConfig.step_sum`. Weight
decay and clipping of the corrected gradients are part of c_i. A visit without a step, or with η = 0, does not change
c_i. Blocks that are not uploaded are not corrected. Where a codec changes the upload, the client keeps c_i⁺ as it
follows from what the server decodes.
"""

from __future__ import annotations

import torch

from edge.protocol.options.scaffold import ScaffoldOptions
from edge.protocol.payload import CONTROL, MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext, added_by_codec


class ScaffoldCorrection(GradientCorrection):
    """Adds c − c_i to every gradient."""

    options: ScaffoldOptions

    capturable = True
    """The added vector is scratch, and the same in every step of a visit."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load c of the server and c_i of the last visit; copy the starting point."""
        server, client = down.get(CONTROL, {}), state.get(CONTROL, {})
        self.keys = tuple(server)
        self.start = net.scratch("scaffold: start").copy_(net.flat)
        self.client_control = net.scratch("scaffold: c_i").zero_()
        net.load({key: client[key] for key in self.keys if key in client}, into=self.client_control)
        self.shift = net.scratch("scaffold: c - c_i").zero_()
        net.load(server, into=self.shift)
        self.shift.sub_(self.client_control)

    def correct(self, net: BlockModel) -> None:
        """Add c − c_i to the gradient."""
        net.grad.add_(self.shift)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Store c_i⁺, and upload Δc_i unless the server can derive it (``lean``)."""
        step_lr = visit.step_sum * visit.lr  # K η
        if step_lr > 0:
            control = torch.sub(self.start, net.flat, out=self.start).div_(step_lr).sub_(self.shift)
        else:
            control = self.start.copy_(self.client_control)
        change = torch.sub(control, self.client_control, out=self.client_control)
        state = {CONTROL: net.views(self.keys, of=control)}
        return {} if self.options.lean else {CONTROL: net.views(self.keys, of=change)}, state, {}

    def encoded(self, net: BlockModel, visit: VisitContext, decoded: Payload) -> Payload:
        """c_i⁺ as the server knows it, so that c stays the mean of all c_i: what a codec has changed of Δc_i, or with
        ``lean`` of y/(Kη), it has changed of c_i⁺."""
        step_lr = visit.step_sum * visit.lr  # K η
        if self.options.lean and step_lr > 0:
            named = {key: vector for key, vector in decoded.get(MODEL, {}).items() if key in self.keys}
            self.start.sub_(added_by_codec(net, net.flat, named).div_(step_lr))
        elif not self.options.lean:
            self.start.add_(added_by_codec(net, self.client_control, decoded.get(CONTROL, {})))
        return {CONTROL: net.views(self.keys, of=self.start)}
