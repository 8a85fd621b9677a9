"""The options of FedAvg+FitNet, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options, check_inner


class FedAvgFitNetOptions(Options):
    """CE(z_L, y) + β/|H| Σ_{m in H} mean((f_L^m − f_G^m)²), f^m being the output of block m."""

    weight: float = Field(default=1.0, ge=0, title="β")
    """Weight of the squared differences; a grid to search is {0.01, 0.1, 1, 10}. 0 is FedAvg."""
    layers: tuple[int, ...] | None = Field(default=None, title="H")
    """Blocks in 1..M-1 that are compared; by default all; an empty list is FedAvg."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the numbers of one example's output; examples are averaged."""

    def check(self, blocks: int) -> None:
        """Layers must lie in 1..M-1 and be distinct."""
        check_inner("method_options.layers", "layer", self.layers or (), blocks)
