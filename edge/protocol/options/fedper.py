"""The options of FedPer, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class FedPerOptions(Options):
    """The last blocks are neither downloaded nor uploaded; each client keeps its own."""

    layers: int = Field(default=1, ge=0, title="K_P")
    """Number of private last blocks. 0 is FedAvg; all of them is local training alone."""

    def check(self, blocks: int) -> None:
        """The model has that many blocks."""
        if self.layers > blocks:
            raise ValueError(
                f"method_options.layers = {self.layers}: the model has {blocks} blocks; choose 0 to {blocks}"
            )
