"""The trainer of workers on another machine than the run's: a user's own module may be missing there."""

from __future__ import annotations

from edge.protocol.config import Job
from edge.training.blocks import load_dotted
from edge.training.trainer import LocalTrainer


class NodeTrainer(LocalTrainer):
    """A trainer that cannot be made without the modules of its method, so that the machine leaves before it works."""

    def __init__(self, job: Job) -> None:
        """ImportError for a module that is missing."""
        super().__init__(job)
        for name in (job.objective, *job.corrections, *job.options_types):
            load_dotted(name)
