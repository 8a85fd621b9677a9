"""The options of pFedMB, one object for both of its sides, and the keys of branched layers.

Each branch of a layer ``block/path`` has a key of its own, ``block/path.branch1`` to ``block/path.branchB``, and so do
the layer's branch weights, ``block/path.branch_weights``; a block that is itself a layer has ``block/branch1`` ...
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from edge.protocol.options.base import Options
from edge.protocol.payload import LAYER

ALPHA = "alpha"
"""The slot of uploaded branch weights: layer -> (B,)"""
BRANCH = "branch"
WEIGHTS = "branch_weights"
ALL_LAYERS = "all layers"
"""In place of a layer's name where all layers share one set of branch weights"""

FLOPS_PER_NUMBER = 4
"""Per step and number of a branch: a multiplication and an addition for its mixture, and two for its gradient."""


class PFedMBOptions(Options):
    """pFedMB's hyperparameters and the details its paper leaves open."""

    branches: int = Field(default=5, ge=1, le=100, title="B")
    """Branches of each layer. With one, no weights are trained or sent: 1 is FedAvg."""
    shared_alpha: bool = False
    """Whether all layers have the same branch weights (the paper's experiment with pairs of clients)."""
    alpha_param: Literal["softmax", "project", "clip_renorm", "free"] = "softmax"
    """How α stays on the simplex: as softmax of the trained numbers; projected after each step; negative weights set to
    0 and the rest divided by its sum; or not at all."""
    aggregation: Literal["alpha", "plain"] = "alpha"
    """Weights of the mean of a branch: n_i α_i (a negative α counts as 0), or n_i."""
    alpha_epochs: int | None = Field(default=None, ge=0, title="E_α")
    """Local epochs that train α, in every visit before W; by default as many as train W. 0: α stays 1/B."""
    alpha_lr: float | None = Field(default=None, gt=0, title="η_α")
    """Step size of α, with the schedule of train.lr; by default train.lr. SGD without momentum, decay or clipping."""
    branch_init: Literal["literal", "variance_preserving"] = "literal"
    """Branches begin as independent layers; or multiplied by √B, so that their mean has a layer's variance."""
    branch_bias: bool = True
    """Whether biases have branches too; else one bias is shared."""
    fine_tuning: Literal["both", "weights"] = "both"
    """Phases of an adaptation before an evaluation (eval.adapt): each with all of its epochs, or W alone."""


class BranchedKeys(NamedTuple):
    """The keys of one branched layer."""

    weights: str
    """Of its branch weights, as they are trained"""
    branches: tuple[str, ...]
    """Of its branches, first to last"""


def branched_keys(keys: Collection[str]) -> dict[str, BranchedKeys]:
    """Layer -> its keys, in model order; empty for a model without branches. ``keys``: of the model."""
    found = {}
    for key in keys:
        if key.endswith((LAYER + WEIGHTS, "." + WEIGHTS)):
            prefix = key.removesuffix(WEIGHTS)
            names = (f"{prefix}{BRANCH}{number}" for number in range(1, len(keys)))
            branches = []
            for name in names:
                if name not in keys:
                    break
                branches.append(name)
            found[prefix[:-1]] = BranchedKeys(key, tuple(branches))
    return found


def weighted_layers(keys: Collection[str], shared: bool) -> dict[str, BranchedKeys]:
    """The layers whose branch weights are trained and sent; ``shared``: one for all, named `ALL_LAYERS`."""
    layers = branched_keys(keys)
    if not shared or not layers:
        return layers
    first = next(iter(layers.values()))
    return {ALL_LAYERS: first}


def mixing_flops(sizes: Mapping[str, int]) -> int:
    """FLOPs of a step beside its passes: of the mixtures and their gradients. ``sizes``: key -> numbers."""
    branches = (key for layer in branched_keys(sizes).values() for key in layer.branches)
    return FLOPS_PER_NUMBER * sum(sizes[key] for key in branches)
