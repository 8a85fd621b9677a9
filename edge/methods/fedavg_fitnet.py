"""FedAvg+FitNet, client side: the outputs of local blocks are pulled to those of the received model.

Romero et al., FitNets: Hints for Thin Deep Nets, ICLR 2015, https://arxiv.org/abs/1412.6550; the baseline of Kim, Kim
and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2. Both models have one shape, so no regressor is needed.

CE(z_L, y) + β/|H| Σ_{m in H} mean((f_L^m − f_G^m)²), f^m being the output of block m and H any of 1..M-1, by default
all. β = 0 or no layers is FedAvg.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.methods.distillation import DistillationUpdate
from edge.protocol.options.fedavg_fitnet import FedAvgFitNetOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext


class FedAvgFitNetUpdate(DistillationUpdate):
    """One visit under FedAvg+FitNet, without client state."""

    options: FedAvgFitNetOptions

    capturable = True

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Freeze the received model, if there are outputs to compare."""
        layers = self.options.layers
        self.layers = list(range(1, len(net))) if layers is None else sorted(layers)
        if not self.layers:
            self.weight = 0.0
        super().begin(net, down, state, visit)

    def compared(self, net: BlockModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy, and the mean over layers of squared differences, each a mean or a sum per example."""
        features = net.features(x)
        gaps, teacher = [], x
        for block in range(max(self.layers)):
            with torch.no_grad():
                teacher = self.teacher.run(teacher, block, block + 1)
            if block + 1 in self.layers:
                local = features[block]
                mean = F.mse_loss(local.float(), teacher.float())  # in float32, since differences are small
                gaps.append(mean if self.options.reduction == "mean" else mean * local[0].numel())
        return F.cross_entropy(features[-1], y), torch.stack(gaps).mean()
