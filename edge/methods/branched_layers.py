"""Layers of several branches, whose weights are mixed before one ordinary pass. How they are trained is not known here.

The output of a linear map W = Σ_b α_b W_b is Σ_b α_b (W_b x) = (Σ_b α_b W_b) x: mixing the weights first makes a step
cost one pass, whatever the number of branches. `branched` replaces every convolution and every linear layer of a model.
The projections inside `torch.nn.MultiheadAttention` stay as they are, and so do layers of other kinds (normalisation,
embeddings).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from edge.protocol.options.pfedmb import BRANCH, PFedMBOptions
from edge.training.blocks import Block


class BranchWeights(nn.Module):
    """α of one layer: (B,) numbers, of which ``softmax`` gives α; without it they are α. At first all are 1/B."""

    def __init__(self, count: int, softmax: bool) -> None:
        super().__init__()
        self.softmax = softmax
        self.numbers = nn.Parameter(torch.zeros(count) if softmax else torch.full((count,), 1 / count))

    def forward(self) -> Tensor:
        """α: (B,)."""
        return torch.softmax(self.numbers, 0) if self.softmax else self.numbers


class LayerBranch(nn.Module):
    """The numbers of one branch, in a module of their own so that they have a key."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = (None if each is None else nn.Parameter(each) for each in (weight, bias))


class BranchedLayer(nn.Module):
    """A convolution or linear layer whose weight, and bias unless that is shared, is Σ_b α_b W_b.

    The first branch is the layer as it was made; the others are drawn as torch initialises such a layer, independently:
    branches that begin equal stay equal.
    """

    def __init__(self, layer: nn.Module, count: int, softmax: bool, scale: float, branch_bias: bool) -> None:
        """``scale``: factor on the initial numbers of each branch. ValueError for a layer without plain weights."""
        super().__init__()
        numbers = layer._parameters
        if numbers.get("weight") is None or not callable(getattr(layer, "reset_parameters", None)):
            raise ValueError(f"{type(layer).__name__}: its weight is computed, so that it can have no branches")
        drawn = [_drawn(layer, scale, is_first=number == 0) for number in range(count)]
        shares_bias = not branch_bias and numbers["bias"] is not None
        shared = drawn[0][1] if shares_bias else None
        for number, (weight, bias) in enumerate(drawn, 1):
            self.add_module(f"{BRANCH}{number}", LayerBranch(weight, None if shares_bias else bias))
        self.shared = LayerBranch(None, shared / scale if shared is not None else None)
        self.branch_weights = BranchWeights(count, softmax)
        del layer.weight, layer.bias  # from its parameters: they are set in each pass
        layer.weight = layer.bias = None  # type: ignore[assignment]
        self.layer = layer
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """As the layer."""
        layer, alpha = self.layer, self.branch_weights()
        branches = [getattr(self, f"{BRANCH}{number}") for number in range(1, self.count + 1)]
        weight = _mixed(alpha, [branch.weight for branch in branches])
        bias = self.shared.bias if branches[0].bias is None else _mixed(alpha, [branch.bias for branch in branches])
        layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
        try:
            y: Tensor = layer(x)
        finally:
            layer.weight = layer.bias = None  # type: ignore[assignment]  # else the graph of this pass stays in memory
        return y


def _drawn(layer: nn.Module, scale: float, is_first: bool) -> tuple[Tensor, Tensor | None]:
    if not is_first:
        layer.reset_parameters()  # type: ignore[operator]
    weight, bias = (layer._parameters[name] for name in ("weight", "bias"))
    assert weight is not None
    return scale * weight.detach(), None if bias is None else scale * bias.detach()


def _mixed(alpha: Tensor, branches: Sequence[Tensor]) -> Tensor:
    """Σ_b α_b W_b, element by element: as a matrix product it would be counted among the passes of the model."""
    total = alpha[0] * branches[0]
    for weight, numbers in zip(alpha[1:], branches[1:], strict=True):
        total = total + weight * numbers
    return total


def branched(blocks: list[Block], options: PFedMBOptions, classes: int, width: int | None) -> list[Block]:
    """The blocks with `BranchedLayer` in place of every convolution and linear layer; ``options``: pFedMB's.

    ValueError for a model without any.
    """
    count = options.branches
    scale = math.sqrt(count) if options.branch_init == "variance_preserving" else 1.0
    made: dict[nn.Module, BranchedLayer] = {}  # a layer may have several places in a model

    def replaced(module: nn.Module) -> nn.Module:
        if isinstance(module, nn.Linear | _ConvNd):
            if module not in made:
                softmax = options.alpha_param == "softmax"
                made[module] = BranchedLayer(module, count, softmax, scale, options.branch_bias)
            return made[module]
        if not isinstance(module, nn.MultiheadAttention):
            for name, child in list(module._modules.items()):  # named_children has a layer in one of its places alone
                if child is not None:
                    setattr(module, name, replaced(child))
        return module

    new = [(name, replaced(module)) for name, module in blocks]
    if not made:
        raise ValueError("the model has neither a convolution nor a linear layer")
    return new
