"""SCAFFOLD, client side: every gradient is corrected by what all clients' gradients are and this client's are not.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.

Local step: y ← y − η(g_i(y) − c_i + c), K times from x. Then c_i⁺ = c_i − c + (x − y)/(Kη), and Δc_i = c_i⁺ − c_i goes
up. The client keeps c_i, which is 0 before its first visit. x is where the visit starts: the model that came down, or,
under FedBR, that joined with the client's own first blocks; g_i is the gradient of whatever the objective is.

η is this visit's. With momentum, (x − y)/η is no sum of K gradients: K is then `TrainConfig.step_sum`. Weight decay is
part of c_i, and so is what clipping left of the corrected gradients. A visit without a step, or with η = 0, learns
nothing: c_i stays. Blocks that do not go up are the client's own, and are not corrected.
"""

from __future__ import annotations

import torch

from edge.protocol.payload import CONTROL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext


class ScaffoldCorrection(GradientCorrection):
    """Adds c − c_i to every gradient."""

    capturable = True
    """What is added is scratch, and the same in every step of a visit."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Take c from the server and c_i from the last visit; remember where training starts."""
        common, own = down.get(CONTROL, {}), state.get(CONTROL, {})
        self.keys = tuple(common)
        self.start = net.scratch("scaffold: start").copy_(net.flat)
        self.own = net.scratch("scaffold: c_i").zero_()
        net.load({key: own[key] for key in self.keys if key in own}, into=self.own)
        self.shift = net.scratch("scaffold: c - c_i").zero_()
        net.load(common, into=self.shift)
        self.shift.sub_(self.own)

    def correct(self, net: BlockModel) -> None:
        """Add c − c_i to the gradient."""
        net.grad.add_(self.shift)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Keep c_i⁺, and send Δc_i unless the server can tell it (``lean``)."""
        moved = visit.step_sum * visit.lr
        if moved > 0:
            now = torch.sub(self.start, net.flat, out=self.start).div_(moved).sub_(self.shift)
        else:
            now = self.start.copy_(self.own)
        change = torch.sub(now, self.own, out=self.own)
        kept = {CONTROL: net.views(self.keys, of=now)}
        return {} if self.options["lean"] else {CONTROL: net.views(self.keys, of=change)}, kept, {}
