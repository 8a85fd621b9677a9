"""FjORD, client side: each local step trains a part of a drawn width, nested in the client's own.

Horvath et al., FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout, NeurIPS
2021, https://arxiv.org/abs/2102.13451, section 3. The spec is `coordinator.methods.fjord`.

The narrower networks are views of the client's own numbers. Their gradient is 0 elsewhere, and the optimiser is that of
the client's own network: clipping, weight decay, momentum and corrections act on all of it in every step, as in the
reference implementation of two of the authors (Flower's baseline fjord).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.options.fjord import WIDTHS, FjordOptions, draw_rates
from edge.protocol.payload import step_flops
from edge.protocol.submodels import RATE
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, NarrowerPart, Step


class FjordUpdate(ClientUpdate):
    """One visit of a client that has a part of the model, without client state."""

    options: FjordOptions

    capturable = False
    """Steps draw widths."""

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Train for all local epochs, each step at its rate."""
        parts = self.visit.narrower()
        if not parts:
            super().train(net, batches, step)
            return
        own = float(self.visit.choice[RATE])
        drawn = draw_rates(self.visit.rng(WIDTHS), [own, *parts], self.visit.plan.steps)
        for (x, y), rate in zip(batches(), drawn, strict=True):
            if rate == own:
                step(self.loss, x, y)
            elif self.options.distil:
                step.backward(self.loss, x, y)
                step.backward(partial(self.distilled, part=parts[rate]), x, y)
                step.apply()
            else:
                step(partial(self.narrower_loss, part=parts[rate]), x, y)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of the client's own network, whose predictions are kept for narrower ones."""
        logits = net.run(x)
        self.taught = torch.log_softmax(logits.detach(), 1)
        return self.record_loss(F.cross_entropy(logits, y))

    def narrower_loss(self, net: BlockModel, x: Tensor, y: Tensor, part: NarrowerPart) -> Tensor:
        """The cross-entropy of a narrower network."""
        return self.record_loss(F.cross_entropy(self.logits(net, x, part), y))

    def distilled(self, net: BlockModel, x: Tensor, y: Tensor, part: NarrowerPart) -> Tensor:
        """(1 - α)·CE of a narrower network, and α·KL of the last `loss`'s predictions to its own."""
        logits, weight = self.logits(net, x, part), self.options.distil
        predicted = torch.log_softmax(logits, 1)
        divergence = F.kl_div(predicted, self.taught, reduction="batchmean", log_target=True)
        return weight * divergence + (1 - weight) * F.nll_loss(predicted, y)

    def logits(self, net: BlockModel, x: Tensor, part: NarrowerPart) -> Tensor:
        """Those of a narrower network, with its FLOPs counted."""
        net.add_flops(len(x) * step_flops(part.flops))
        return net.run_through(part.modules, x)
