"""FedPer as a user's method, outside of the packages: the last blocks of the model are private.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from coordinator.methods.spec import ObjectiveSpec, Options


class FedPerOptions(Options):
    """The last blocks are neither downloaded nor uploaded; each client keeps its own."""

    layers: int = Field(default=1, ge=0, title="K_P")
    """Number of private blocks. 0 is FedAvg; all of them is local training alone."""

    def check(self, blocks: int) -> None:
        """The model has that many blocks."""
        if self.layers > blocks:
            raise ValueError(f"method_options.layers = {self.layers}: the model has {blocks} blocks")


def exchanged(options: FedPerOptions) -> str:
    """All but the private blocks."""
    return f"without-last:{options.layers}"


SPEC = ObjectiveSpec(
    name="fedper",
    title="private last blocks",
    source="Arivazhagan, Aggarwal, Singh and Choudhary, 2019",
    options=FedPerOptions,
    neutral="layers = 0",
    down=exchanged,
    up=exchanged,
    evaluated="clients",
)
LAYERS = replace(SPEC, name="fedper-layers", by_layer=lambda options: True)
