"""The options of FedDyn, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


class FedDynOptions(Options):
    """−⟨λ_i, w⟩ + (coefficient/2)·‖w − θ‖² is added to the local objective."""

    coefficient: float = Field(default=0.1, gt=0, title="α")
    """Weight of the quadratic term, and divisor of the server's step. FedMLB's tables use 0.1, the authors' CIFAR-10
    example 0.01."""
    clipped: Literal["everything", "ce+linear"] = "everything"
    """Terms that ``train.clip`` bounds: all; or all but α·w, which the authors add to weight decay."""
