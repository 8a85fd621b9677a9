"""A method and a correction that log numbers on both sides, and send a float."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec, Traffic
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options


class TalkingOptions(Options):
    """A pull, which the server chooses by client and round."""

    pull: float = Field(default=0.1, ge=0)
    """Of client 0 in round 0."""


class TalkingServer(ServerStrategy):
    """Sends the pull as a float, and logs in every call of a round."""

    options: TalkingOptions

    def choose(self, client: int, round: int) -> Choice:
        """pull / (1 + client + round), as numpy has it."""
        return {"mu": np.float64(self.options.pull) / (1 + client + round)}

    def step(self) -> None:
        """FedAvg's step, and the length of its way."""
        before = self.model
        super().step()
        squares = [np.square(after.data - before[key].data).sum() for key, after in self.model.items()]
        self.log("drift", np.sqrt(sum(squares)))
        self.log("unknown", float("nan"))


class TalkingExtension(ServerExtension):
    """Logs the same number in every step."""

    def step(self, before: dict, after: dict) -> dict:  # type: ignore[type-arg]
        """No other model."""
        self.log("extension.blocks", len(after))
        return after


SPEC = ObjectiveSpec(
    name="talking",
    title="logs",
    source="a test",
    options=TalkingOptions,
    neutral="none",
    client="tests.plugins.talking_client:Talking",
    server=TalkingServer,
    traffic=Traffic(choices=("mu",)),
)
CORRECTION = CorrectionSpec(
    *("also-talking", "logs, too", "a test", Options, "none", "tests.plugins.talking_client:AlsoTalking"),
    server=TalkingExtension,
)
