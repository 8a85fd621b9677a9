"""FjORD, client side: each local step trains a part of a drawn width, nested in the client's own.

Horvath et al., FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout, NeurIPS
2021, https://arxiv.org/abs/2102.13451, section 3. The spec is `coordinator.methods.fjord`.

The narrower networks are views of the client's own numbers. Their gradient is 0 elsewhere, and the optimiser is that of
the client's own network: clipping, weight decay, momentum and corrections act on all of it in every step, as in the
reference implementation of two of the authors (Flower's baseline fjord).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.options.fjord import WIDTHS, FjordOptions, draw_rates
from edge.protocol.payload import step_flops
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, NarrowerPart, Step
from edge.training.sgd import Loss


class FjordUpdate(ClientUpdate):
    """One visit of a client that has a part of the model, without client state."""

    options: FjordOptions

    capturable = True
    """Each rate has a loss of its own name."""

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Train for all local epochs, each step at its rate."""
        parts = self.visit.narrower()
        if not parts:
            super().train(net, batches, step)
            return
        losses: dict[float, Loss] = {self.visit.variant.share: self.loss}
        losses |= {rate: self.narrower_loss(part, rate) for rate, part in parts.items()}
        step_rates = draw_rates(self.visit.rng(WIDTHS), [*losses], self.visit.plan.steps)
        for (x, y), rate in zip(batches(), step_rates, strict=True):
            step(losses[rate], x, y)

    def narrower_loss(self, part: NarrowerPart, rate: float) -> Loss:
        """The loss of a step at a rate below the client's own.

        The cross-entropy of the narrower network; or with ``distil`` that of the client's own network, and beside it
        (1 - α)·CE of the narrower one and α·KL from the own one's predictions, which are fixed.
        """
        weight, cost = self.options.distil, step_flops(part.flops)

        def loss(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
            net.add_flops(len(x) * cost)
            predicted = torch.log_softmax(net.run_through(part.modules, x), 1)
            if not weight:
                return self.record_loss(F.nll_loss(predicted, y))
            log_probabilities = torch.log_softmax(net.run(x), 1)
            divergence = F.kl_div(predicted, log_probabilities.detach(), reduction="batchmean", log_target=True)
            taught = weight * divergence + (1 - weight) * F.nll_loss(predicted, y)
            return self.record_loss(F.nll_loss(log_probabilities, y)) + taught

        loss.__name__ = f"loss at rate {rate!r}"
        return loss
