"""Hybrid pathways through a local and a frozen global model, and the loss that ties them together.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022,
https://arxiv.org/abs/2207.06936

With M blocks, local network L and frozen received model G, pathway m in 1..M-1 runs
    LG:  local blocks 1..m, then global blocks m+1..M    (the method)
    GL:  global blocks 1..m, then local blocks m+1..M    (the ablation of Table 4)
FedMLB uses all or any subset of them, FedBR the last alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.blocks import Net


def local_to_global(frozen: Net, features: Sequence[Tensor], pathways: Sequence[int]) -> list[Tensor]:
    """Logits of the LG pathways. ``features`` are the local model's block outputs, computed once.

    Gradients flow through the frozen blocks into the local prefix.
    """
    return [frozen.run(features[m - 1], m) for m in pathways]


def global_to_local(net: Net, frozen: Net, x: Tensor, pathways: Sequence[int]) -> list[Tensor]:
    """Logits of the GL pathways; the global prefix is computed once per batch, without gradient."""
    prefix: dict[int, Tensor] = {}
    with torch.no_grad():
        for block in range(max(pathways, default=0)):
            x = frozen.run(x, block, block + 1)
            prefix[block + 1] = x
    return [net.run(prefix[m], m) for m in pathways]


@dataclass(frozen=True)
class PathwayLoss:
    """CE(z_L, y) + λ1/D Σ CE(z_m, y) + λ2/D Σ KL(σ_T(z_m) ‖ σ_T(z_L)), FedMLB Eq. 5-7.

    CE uses temperature 1. Without pathways only the first term is left.
    """

    lambda1: float
    lambda2: float
    temperature: float
    divisor: float | None
    """D; None is the number of pathways used."""
    kl: Literal["hybrid-local", "local-hybrid", "symmetric"] = "hybrid-local"
    """Reference distribution first; the paper's is hybrid-local."""
    detach: bool = False
    """Whether the KL's hybrid side is a constant; the published code lets gradients through it."""
    kl_t2: bool = False
    """Whether KL is multiplied by T²."""
    hybrid_ce: bool = True
    """Whether pathways have cross-entropy terms."""

    def __call__(self, cross_entropy: Tensor, main: Tensor, hybrids: Sequence[Tensor], y: Tensor) -> Tensor:
        """The whole objective. ``main`` and each of ``hybrids``: (batch, classes) logits; ``y``: (batch,)."""
        if not hybrids:
            return cross_entropy
        divisor = float(len(hybrids)) if self.divisor is None else self.divisor
        total = cross_entropy
        if self.hybrid_ce:
            total = total + self.lambda1 / divisor * sum_in_order([F.cross_entropy(z, y) for z in hybrids])
        return total + self.lambda2 / divisor * sum_in_order([self.divergence(z, main) for z in hybrids])

    def divergence(self, hybrid: Tensor, main: Tensor) -> Tensor:
        """KL between the tempered distributions, mean over the batch.

        Both sides stay logarithms (log_target): a softmax that underflows would give NaN gradients.
        """
        log_main = F.log_softmax(main / self.temperature, dim=1)
        log_hybrid = F.log_softmax((hybrid.detach() if self.detach else hybrid) / self.temperature, dim=1)
        if self.kl == "hybrid-local":
            value = _kl(log_hybrid, log_main)
        elif self.kl == "local-hybrid":
            value = _kl(log_main, log_hybrid)
        else:
            value = 0.5 * (_kl(log_hybrid, log_main) + _kl(log_main, log_hybrid))
        return value * self.temperature**2 if self.kl_t2 else value


def sum_in_order(terms: Sequence[Tensor]) -> Tensor:
    """The sum of scalars, first to last."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _kl(log_reference: Tensor, log_other: Tensor) -> Tensor:
    return F.kl_div(log_other, log_reference, log_target=True, reduction="batchmean")
