"""Hybrid pathways through a local and a frozen global model, and their joint loss.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022,
https://arxiv.org/abs/2207.06936

With M blocks, local network L and frozen received model G, pathway m in 1..M-1 runs
    LG:  local blocks 1..m, then global blocks m+1..M    (the method)
    GL:  global blocks 1..m, then local blocks m+1..M    (the ablation of Table 4)
FedMLB uses all or any subset of them, FedBR the last alpha.

The logits of all pathways of a step are one tensor (pathways, batch, classes). There are two forms, which execute the
same passes and differ in the order of sums (``train.pathways``): ``each`` runs one pathway after the other; ``sweep``
goes once through the blocks, with all pathways that have reached a block as one larger batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.training.block_model import BlockModel

PathwayForm = Literal["each", "sweep"]


def local_to_global(
    frozen: BlockModel, features: Sequence[Tensor], pathways: Sequence[int], form: PathwayForm = "each"
) -> Tensor:
    """Logits (pathways, batch, classes) of the LG pathways, in ascending order.

    ``features`` are the local model's block outputs, computed once. Gradients flow through the frozen blocks into the
    local prefix.
    """
    return _logits(frozen, {m: features[m - 1] for m in pathways}, features[-1], form)


def global_to_local(
    net: BlockModel, frozen: BlockModel, x: Tensor, main: Tensor, pathways: Sequence[int], form: PathwayForm = "each"
) -> Tensor:
    """Logits (pathways, batch, classes) of the GL pathways, in ascending order.

    The global prefix is computed once per batch ``x``, without gradient. ``main`` are the main path's logits.
    """
    prefix: dict[int, Tensor] = {}
    with torch.no_grad():
        for block in range(max(pathways, default=0)):
            x = frozen.run(x, block, block + 1)
            prefix[block + 1] = x
    return _logits(net, {m: prefix[m] for m in pathways}, main, form)


def _logits(net: BlockModel, entries: Mapping[int, Tensor], main: Tensor, form: PathwayForm) -> Tensor:
    """``entries``: for each pathway m the input of block m, counted from 0; ``main`` (batch, classes) for its shape."""
    if not entries:
        return main.new_empty((0, *main.shape))
    if form == "each":
        return torch.stack([net.run(x, m) for m, x in entries.items()])
    return _sweep(net, entries).view(len(entries), *main.shape)


def _sweep(net: BlockModel, entries: Mapping[int, Tensor]) -> Tensor:
    """(pathways * batch, classes), pathway after pathway."""
    batch = len(next(iter(entries.values())))
    front: list[Tensor] = []  # pathways under way, several of them in one tensor
    for block in range(min(entries), len(net)):
        if block in entries:
            front.append(entries[block])
        # A block with batch statistics must not get the examples of two pathways in one batch.
        batches = (
            [x for joined in front for x in torch.split(joined, batch)]
            if net.uses_batch_stats(block)
            else _joined(front)
        )
        front = [net.run(x, block, block + 1) for x in batches]
    return torch.cat(front)


def _joined(front: Sequence[Tensor]) -> list[Tensor]:
    """The fewest batches of which each needs gradients for all of its examples or for none."""
    batches = []
    for _, group in groupby(front, lambda x: x.requires_grad and torch.is_grad_enabled()):
        tensors = list(group)
        batches.append(tensors[0] if len(tensors) == 1 else torch.cat(tensors))
    return batches


@dataclass(frozen=True)
class PathwayLoss:
    """CE(z_L, y) + λ1/D Σ CE(z_m, y) + λ2/D Σ KL(σ_T(z_m) ‖ σ_T(z_L)), FedMLB Eq. 5-7.

    CE uses temperature 1. Without pathways it is the first term.
    """

    lambda1: float
    lambda2: float
    temperature: float
    divisor: float | None
    """D; None: the number of pathways."""
    kl: Literal["hybrid-local", "local-hybrid", "symmetric"] = "hybrid-local"
    """Reference distribution first; hybrid-local in the paper."""
    detach: bool = False
    """Whether the KL's hybrid side is a constant; in the published code it has gradients."""
    kl_t2: bool = False
    """Whether KL is multiplied by T²."""
    hybrid_ce: bool = True
    """Whether pathways have cross-entropy terms."""

    def __call__(self, main: Tensor, hybrids: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(the whole objective, its first term).

        ``main``: (batch, classes) logits; ``hybrids``: (pathways, batch, classes) logits; ``y``: (batch,).
        """
        log_main, pathways = F.log_softmax(main, dim=-1), len(hybrids)
        total = cross_entropy = F.nll_loss(log_main, y)
        if not pathways:
            return total, cross_entropy
        log_hybrids = F.log_softmax(hybrids, dim=-1)
        # The terms below are means over pathways: times pathways / D, they are sums over D.
        scale = 1.0 if self.divisor is None else pathways / self.divisor
        if self.hybrid_ce:
            hybrid_cross_entropy = F.nll_loss(log_hybrids.flatten(0, 1), y.repeat(pathways))
            total = total + self.lambda1 * scale * hybrid_cross_entropy
        tempered = (log_hybrids, log_main) if self.temperature == 1 else self.tempered(hybrids, main)
        return total + self.lambda2 * scale * self.divergence(*tempered), cross_entropy

    def tempered(self, hybrids: Tensor, main: Tensor) -> tuple[Tensor, Tensor]:
        """log σ_T of hybrid and main logits."""
        return F.log_softmax(hybrids / self.temperature, dim=-1), F.log_softmax(main / self.temperature, dim=-1)

    def divergence(self, log_hybrids: Tensor, log_main: Tensor) -> Tensor:
        """KL between tempered distributions, mean over pathways and batch.

        ``log_hybrids``: (pathways, batch, classes); ``log_main``: (batch, classes). Both sides stay logarithms
        (log_target): a softmax that underflows would give NaN gradients.
        """
        if self.detach:
            log_hybrids = log_hybrids.detach()
        if self.kl == "hybrid-local":
            value = _kl(log_hybrids, log_main)
        elif self.kl == "local-hybrid":
            value = _kl(log_main, log_hybrids)
        else:
            value = 0.5 * (_kl(log_hybrids, log_main) + _kl(log_main, log_hybrids))
        examples = log_hybrids.shape[:-1].numel()
        return value * (self.temperature**2 if self.kl_t2 else 1.0) / examples


def _kl(log_reference: Tensor, log_other: Tensor) -> Tensor:
    return F.kl_div(log_other, log_reference, log_target=True, reduction="sum")
