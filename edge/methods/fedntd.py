"""FedNTD, client side: distillation from the received model over all classes but the true one.

Lee, Jeong, Shin, Bae and Yun, Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022, https://arxiv.org/abs/2106.03097; FedMLB's tables call it FedLS-NTD.

a·CE(z_L, y) + β·T²·KL(σ_T(z̃_G) ‖ σ_T(z̃_L)), where z̃ are logits without that of the true class: C − 1 of C. With two
classes a single logit is left, and the divergence is 0. β = 0 and a = 1 is FedAvg.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edge.methods.distillation import DistillationUpdate
from edge.protocol.options.fedntd import FedNTDOptions


class FedNTDUpdate(DistillationUpdate):
    """One visit under FedNTD, without client state."""

    options: FedNTDOptions

    capturable = True

    def __init__(self, options: FedNTDOptions) -> None:
        super().__init__(options)
        self.ce_weight = options.ce_weight

    def seen(self, logits: Tensor, y: Tensor) -> Tensor:
        """The logits of the other classes, in order: (batch, classes - 1)."""
        others = torch.arange(logits.shape[1] - 1, device=logits.device).expand(len(y), -1)
        # Classes from the true one on are shifted by one. Not by a mask, since its length would wait for the device.
        return logits.gather(1, others + (others >= y[:, None]))
