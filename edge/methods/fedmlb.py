"""FedMLB, client side: multi-level branched regularisation.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022,
https://arxiv.org/abs/2207.06936

The local objective adds, to the cross-entropy of the main path, cross-entropy and KL terms of hybrid pathways that run
local blocks first and blocks of the frozen received model after them (see `edge.training.pathways`). lambda1 = lambda2
= 0 or no pathways is FedAvg.
"""

from __future__ import annotations

from torch import Tensor

from edge.protocol.options.fedmlb import FedMLBOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext
from edge.training.pathways import PathwayLoss, global_to_local, local_to_global


class FedMLBUpdate(ClientUpdate):
    """One visit under FedMLB, without client state."""

    options: FedMLBOptions

    capturable = True
    """The frozen model's address is fixed, and steps depend on options alone."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the received model and freeze a copy of it, with the parts that are never exchanged."""
        super().begin(net, down, state, visit)
        self.frozen = net.freeze()
        blocks = len(net)
        pathways = self.options.pathways
        self.pathways = list(range(1, blocks)) if pathways is None else sorted(pathways)
        self.objective = PathwayLoss(
            lambda1=self.options.lambda1,
            lambda2=self.options.lambda2,
            temperature=self.options.temperature,
            divisor=float(blocks - 1) if self.options.norm == "all" else None,
            detach=self.options.detach_hybrid_target,
            kl_t2=self.options.kl_t2,
        )

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """All pathways on the same batch, the local prefix computed once."""
        features = net.features(x)
        main, form = features[-1], self.visit.pathways
        if self.options.order == "LG":
            hybrids = local_to_global(self.frozen, features, self.pathways, form)
        else:
            hybrids = global_to_local(net, self.frozen, x, main, self.pathways, form)
        loss, cross_entropy = self.objective(main, hybrids, y)
        self.record_loss(cross_entropy)
        return loss
