"""FedAvg whose uploads are in a slot of their own, as a method with several models has them."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.aggregation.server import GLOBAL, ServerStrategy
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.messages import Update
from edge.protocol.options.base import Options

SLOT = "theta"
"""As long as ``model``, so that messages have the same length."""


class OwnSlotServer(ServerStrategy):
    """The slot is a new version of the global model."""

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """The uploaded blocks, in that slot."""
        return {SLOT: self.setup.layout.shapes(self.setup.up)}

    def targets(self, update: Update) -> Mapping[str, str]:
        """The global model."""
        return {SLOT: GLOBAL}


SPEC = ObjectiveSpec(
    name="own-slot",
    title="FedAvg in a slot of its own",
    source="a test",
    options=Options,
    neutral="always",
    client="tests.plugins.own_slot_client:OwnSlotUpdate",
    server=OwnSlotServer,
)
