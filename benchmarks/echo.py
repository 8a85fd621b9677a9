"""A site whose visits take no time, or a given one: it repeats the update of the first visit with as many samples."""

from __future__ import annotations

import os
import time

import numpy as np
from msgspec import structs

from edge.protocol.config import Job
from edge.protocol.messages import Train, Update
from edge.protocol.payload import Payload, Vector
from edge.training.trainer import LocalTrainer

PACE_VARIABLE = "FEDBR_BENCHMARK_VISIT_SECONDS"
"""Seconds of sleep in each visit, if it is set: a worker with a core of its own, on any machine."""


class EchoSite(LocalTrainer):
    """Trains one visit of each number of samples."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._first: dict[int, Update] = {}
        self._of_round: dict[tuple[int, int], Payload] = {}

    def train(self, task: Train, state_in: str | None, state_out: str | None) -> Update:
        """The update of the first visit with as many samples, in the name of this client; another one in each round."""
        samples = len(self.client_indices.train[task.client])
        if samples not in self._first:
            update = super().train(task, state_in, state_out)
            self._first[samples] = structs.replace(update, payload=_plus(update.payload, 0.0))
        first, key = self._first[samples], (samples, task.round)
        if key not in self._of_round:
            self._of_round = {key: _plus(first.payload, 1e-4 * (1 + task.round % 7))} | {
                each: payload for each, payload in self._of_round.items() if each[1] == task.round
            }
        if PACE_VARIABLE in os.environ:
            time.sleep(float(os.environ[PACE_VARIABLE]))
        return structs.replace(first, client=task.client, round=task.round, payload=self._of_round[key])


def _plus(payload: Payload, number: float) -> Payload:
    """A copy with a number added to all, so that the model of the next round is another, and must be sent."""
    return {
        slot: {key: Vector(vector.data + np.float32(number)) for key, vector in named.items()}
        for slot, named in payload.items()
    }
