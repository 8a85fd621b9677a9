"""FedAlign, client side: the last stage's Lipschitz constant is aligned with that of a narrower stage.

Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR 2022,
https://arxiv.org/abs/2111.14213. The spec is `coordinator.methods.fedalign`.

With f_(L−1) and f_L the maps before and after block L, the last one before the head, and f_S = L_ω(f_(L−1)) those of
its first channels, as far as the width ω goes, applied to the first channels of f_(L−1):

    X_F = f_(L−1)·f_Lᵀ/(h·w)      X_S = first channels of f_(L−1)·f_Sᵀ/(h·w)      one matrix per example  (Eq. 6, 7)
    ℓ = mean (‖X_S‖₂ − ‖X_F‖₂)²                                                                               (Eq. 8)

over places, where larger maps f_(L−1) are pooled to the places of f_L. All but f_S is fixed, so that the gradient of ℓ
reaches the first channels of block L alone. Norms are those of a power iteration from a vector of ones; it multiplies
by X and by Xᵀ in turn, so that X·Xᵀ is never made. The division by h·w, the pooling, and that f_(L−1) is fixed are
those of the authors' code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.protocol.options.fedalign import FedAlignOptions, alignment_flops
from edge.protocol.options.gradaug import channels
from edge.protocol.payload import Payload, step_flops
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import ClientUpdate, VisitContext
from edge.training.heads import cut_head
from edge.training.sgd import clip
from edge.training.slimmable import slimmable, slimmed

LEAST_NORM = 1e-12
"""Norms up to this, and differences of norms, count as 0 and have no gradient."""


def aligned(blocks: list[Block], options: FedAlignOptions, classes: int, width: int | None) -> list[Block]:
    """The slimmable blocks, of which the one before the head ends in maps: a ``wrap_model``.

    ValueError for a model without narrower sub-networks, or without maps or features before its last two blocks.
    """
    cut = cut_head(slimmable(blocks, options, classes, width))
    if len(cut.trunk) > 1:
        name, before = cut.trunk[-2]
        if isinstance([*before.modules()][-1], nn.Flatten):
            raise ValueError(
                f"the block {name} flattens its maps, of which the next one's narrower form needs channels"
            )
    return [*cut.trunk, (cut.name, nn.Sequential(*cut.joint, *cut.head))]


class FedAlignUpdate(ClientUpdate):
    """One visit under FedAlign, without client state."""

    options: FedAlignOptions

    capturable = True
    """Steps depend on options alone; guards are computed where the numbers are."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the received model."""
        super().begin(net, down, state, visit)
        self.last = len(net) - 2
        self.weight, self.width = float(self.options.weight), float(self.options.width)
        self.limit = float(self.options.clip) if not visit.train.clip else 0.0

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """CE + μ·ℓ, scaled as ``align_scale`` says."""
        before = net.run(x, 0, self.last)
        after = net.run(before, self.last, self.last + 1)
        cross_entropy = self.record_loss(F.cross_entropy(net.run(after, self.last + 1), y))
        if not self.weight:
            return cross_entropy
        difference = self.difference(net, before.detach(), after.detach())
        return cross_entropy + self.weight * self.scaled(difference, cross_entropy.detach())

    def difference(self, net: BlockModel, before: Tensor, after: Tensor) -> Tensor:
        """ℓ of these maps before and after block L, both fixed."""
        first = before[:, : channels(before.shape[1], self.width, self.options.multiple)]
        with slimmed(net.modules, self.width):
            slim = net.run(first, self.last, self.last + 1, counted=False)
        self._count(net, before, after)
        with torch.autocast(before.device.type, enabled=False):
            maps = places(before.float(), after.shape[2:])  # (batch, C1, h·w)
            with torch.no_grad():
                whole = self.norm(maps, places(after.float()))
            narrow = self.norm(maps[:, : first.shape[1]], places(slim.float()))
            return F.mse_loss(narrow, whole)

    def norm(self, before: Tensor, after: Tensor) -> Tensor:
        """(batch,): spectral norms of the transmitting matrices of (batch, C1, h·w) and (batch, C2, h·w)."""
        matrix = torch.bmm(before, after.transpose(1, 2)) / before.shape[2]  # (batch, C1, C2)
        return spectral_norm(matrix, self.options.iterations)

    def scaled(self, difference: Tensor, cross_entropy: Tensor) -> Tensor:
        """ℓ, or what has its direction and the value of the cross-entropy; 0 where ℓ is."""
        value = difference.detach()
        if self.options.align_scale == "paper":
            return difference
        differs = value > LEAST_NORM**2
        return torch.where(differs, cross_entropy / torch.where(differs, value, 1.0), 0.0) * difference

    def _count(self, net: BlockModel, before: Tensor, after: Tensor) -> None:
        block = self.visit.variants[self.width, 1.0][self.last : self.last + 1]
        given, made = ((*maps.shape[1:], 1, 1)[:3] for maps in (before, after))
        matrices = alignment_flops(given, made, self.width, self.options.multiple, self.options.iterations)
        net.add_flops(len(before) * (step_flops(block) + matrices))

    def correct(self, net: BlockModel) -> None:
        """Clip the gradient of both terms, unless ``train.clip`` does."""
        if self.limit:
            clip([net.grad], self.limit)


def places(maps: Tensor, size: torch.Size | None = None) -> Tensor:
    """Maps (batch, channels, h, w) as (batch, channels, h·w), pooled to ``size`` if that is another; features have one
    place."""
    if maps.dim() == 4 and size is not None and maps.shape[2:] != size:
        maps = F.adaptive_avg_pool2d(maps, list(size) or [1, 1])  # type: ignore[arg-type]  # torch has no type for it
    return maps.flatten(2) if maps.dim() == 4 else maps.unsqueeze(2)


def spectral_norm(matrices: Tensor, iterations: int) -> Tensor:
    """The largest singular values of (batch, a, b), by power iteration: (batch,), at most the true ones.

    0, without a gradient, where a product is at most `LEAST_NORM` long.
    """
    # Rows times contiguous matrices: a matrix times a column takes 14 times as long on a CPU (torch 2.15).
    transposed = matrices.transpose(1, 2).contiguous()
    vectors = matrices.new_full((len(matrices), 1, matrices.shape[1]), 1 / math.sqrt(matrices.shape[1]))
    for _ in range(iterations):
        product = torch.bmm(torch.bmm(vectors, matrices), transposed)  # (batch, 1, a)
        squares = product.square().sum(dim=2, keepdim=True)
        is_alive = squares > LEAST_NORM**2
        lengths = torch.where(is_alive, squares, 1.0).sqrt()
        vectors = product / lengths
    return torch.where(is_alive, lengths.sqrt(), 0.0).flatten()
