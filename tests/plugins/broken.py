"""Methods that break their contract, each in one way."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.aggregation.server import Download, ServerStrategy
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.base import Options


class LateServer(ServerStrategy):
    """Its download is not of the shapes that it names."""

    def download(self, client: int, round: int) -> Download:
        """All but the last block."""
        return Download(client, {}, build=lambda: self.select(self.setup.down[:-1]))

    def download_shapes(self, client: int, round: int, choice: Mapping[str, int]) -> Mapping[str, Mapping[str, int]]:
        """All blocks."""
        return {"model": self.setup.layout.shapes(self.setup.down)}


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
