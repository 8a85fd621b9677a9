"""The options of DepthFL, one object for both of its sides, and what both foresee of its exits."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options

STEM = "stem"
"""Name of a first block that has no exit: it is part of the depth of the next one"""


class DepthFLOptions(Options):
    """Σ_i CE(z_i, y) + α(t)·Σ_i 1/(d − 1) Σ_{j≠i} KL(σ(z_j) ‖ σ(z_i)) over the d exits of a client's part, whose logits
    are z_1 to z_d; the teacher z_j of each divergence is fixed."""

    exits: Literal["convolutional", "linear", "none"] = Field(default="convolutional")
    """Classifiers of the blocks. convolutional: behind maps, two depthwise separable convolutions for each later block
    with convolutions, the first of stride 2, which make as many channels, then a linear layer of the means over places:
    as in the author's code, which also has attention. linear: the means and the linear layer alone, with few weights
    and FLOPs; a shallow exit of a small model then hardly learns. none: FedAvg, for which all clients must hold the
    whole model (submodel.rate = 1)."""
    distil: bool = Field(default=True)
    """Whether exits learn from each other; false is the paper's DepthFL (FedAvg)."""
    ramp: int = Field(default=300, ge=0, title="T")
    """Rounds until the divergences weigh as much as the cross-entropies: α(t) = exp(−5(1 − t/T)²) in rounds t = 0, 1,
    .., and 1 from T on; 0: from the first round on. 300 in the author's code."""


def ramped(round: int, ramp: int) -> float:
    """α of a round."""
    return math.exp(-5 * (1 - min(round, ramp) / ramp) ** 2) if ramp else 1.0
