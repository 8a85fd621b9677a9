"""The product's own `edge.training.trainer.LocalTrainer`, in a worker that is sampled while it works (`sampler`)."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.engine_parts.sampler import FOLDER_VARIABLE, Sampler, shared_array
from edge.protocol.config import Job
from edge.training.trainer import LocalTrainer


class SampledSite(LocalTrainer):
    """A site whose process says where its time goes."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        Sampler(shared_array(Path(os.environ[FOLDER_VARIABLE]))).start()
