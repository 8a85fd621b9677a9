"""A server side whose state is in no checkpoint."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from coordinator.aggregation.server import ServerStrategy
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.base import Options
from edge.protocol.payload import Vector


class ForgetfulOptions(Options):
    """Shrinks the model in some steps."""

    amount: float = Field(default=0.1, ge=0, le=0.5)
    """Share of the model that is lost."""
    period: int = Field(default=2, ge=1)
    """In one of so many steps."""


class Periodic(ServerStrategy):
    """Counts its steps, and forgets the count when it is restored. After a whole period it is as at its start."""

    options: ForgetfulOptions
    steps = 0

    def step(self) -> None:
        """FedAvg's step; the last of a period shrinks the model."""
        super().step()
        self.steps = (self.steps + 1) % self.options.period
        if self.steps == 0:
            factor = np.float32(1 - self.options.amount)
            model = {key: Vector(vector.data * factor) for key, vector in self.model.items()}
            self.models = {"global": model}


SPEC = ObjectiveSpec(
    name="periodic",
    title="a state that comes back",
    source="a test",
    options=ForgetfulOptions,
    neutral="amount = 0",
    server=Periodic,
)
