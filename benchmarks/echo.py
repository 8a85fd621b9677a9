"""A site whose visits take no time: it repeats the update of the first visit with as many samples."""

from __future__ import annotations

from dataclasses import replace

from edge.protocol.config import Job
from edge.protocol.messages import Train, Update
from edge.protocol.payload import Vector
from edge.training.trainer import LocalTrainer


class EchoSite(LocalTrainer):
    """Trains one visit of each number of samples."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._updates: dict[int, Update] = {}

    def train(self, task: Train, state_in: str | None, state_out: str | None) -> Update:
        """The update of the first visit with as many samples, in the name of this client."""
        samples = len(self.client_indices.train[task.client])
        if samples not in self._updates:
            update = super().train(task, state_in, state_out)
            payload = {
                slot: {key: Vector(vector.data.copy()) for key, vector in named.items()}
                for slot, named in update.payload.items()
            }
            self._updates[samples] = replace(update, payload=payload)
        return replace(self._updates[samples], client=task.client, round=task.round)
