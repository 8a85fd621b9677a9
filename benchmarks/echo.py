"""A trainer whose visits take a given time: workers with a core of their own each, on any machine."""

from __future__ import annotations

import os
import time

from edge.protocol.messages import Train, Update
from edge.training.answering import AnsweringTrainer

PACE_VARIABLE = "FEDBR_BENCHMARK_VISIT_SECONDS"
"""Seconds of sleep in each visit"""


class PacedTrainer(AnsweringTrainer):
    """Answers after a pause, without training."""

    def train(self, task: Train, state_in: str | None, state_out: str | None) -> Update:
        """The answer to a visit."""
        time.sleep(float(os.environ[PACE_VARIABLE]))
        return super().train(task, state_in, state_out)
