"""The options of IFCA, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options

CLUSTER = "cluster"
"""Cluster j is model, and slot of a download, ``cluster{j}``."""
SHARED = "shared"
"""Model and slot of the blocks that all clusters share"""


class IFCAOptions(Options):
    """Each client trains one of k models."""

    models: int = Field(default=2, ge=1, le=100, title="k")
    """Number of models; 1 is FedAvg. Tune it, within {2, 3, 5, 10}."""
    shared: int = Field(default=0, ge=0)
    """Number of first blocks that all clusters share; 0: none."""

    balanced_init: float = Field(default=0.0, ge=0, le=1)
    """The initial models are drawn anew, at most 50 times, until each is the best for this fraction of the clients, or
    else are the most balanced draw (the authors' code: 0.35 for two models, 0.1 for four). As there, this comes before
    the first round, and takes neither bytes nor virtual time."""

    def check(self, blocks: int) -> None:
        """At least one block is a cluster's own, and each cluster can have its fraction."""
        if self.balanced_init * self.models > 1:
            raise ValueError(
                f"method_options.balanced_init = {self.balanced_init:g}: {self.models} models cannot each be the best "
                f"for it; choose at most {1 / self.models:.3g}"
            )
        if self.shared >= blocks:
            raise ValueError(
                f"method_options.shared = {self.shared}: the model has {blocks} blocks, of which clusters need one; "
                f"choose at most {blocks - 1}"
            )
