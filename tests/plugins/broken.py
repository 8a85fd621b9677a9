"""Methods that break their contract, each in one way."""

from __future__ import annotations

from coordinator.aggregation.server import LaterPayload, ServerStrategy
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options


class LateServer(ServerStrategy):
    """Its download is not of the shapes that it names."""

    def payload(self, client: int, round: int, choice: Choice) -> LaterPayload:
        """All but the last block, though all are foreseen."""
        foreseen = {"model": self.setup.layout.shapes(self.setup.down)}
        return LaterPayload(foreseen, lambda: self.select(self.setup.down[:-1]))


UNSEEDED = ObjectiveSpec(
    name="unseeded",
    title="draws from the process",
    source="a test",
    options=Options,
    neutral="none",
    client="tests.plugins.broken_client:Unseeded",
)
UNPRICED = ObjectiveSpec(
    name="unpriced", title="another download", source="a test", options=Options, neutral="none", server=LateServer
)
UNFORESEEN = ObjectiveSpec(
    name="unforeseen",
    title="computes more",
    source="a test",
    options=Options,
    neutral="none",
    client="tests.plugins.broken_client:Unforeseen",
)
