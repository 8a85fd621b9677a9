"""A process that describes the shipped scenario, once it is told to, and notes in a file what it builds.

`tests.edge.data.test_decoded_cache` forks them from a process that has imported this module, and with it torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edge.data import partitioning, scikit_learn
from edge.runtime.descendants import end_with_parent
from edge.training import counts
from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.run.setup import RunInputs


def work(folder: Path, stuck: str, told: Connection) -> None:
    """Describe with the cache in ``folder`` when something comes over ``told``, and send the hash of the data back.

    ``stuck``: the function that takes a minute longer.
    """

    def noted(place: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(place, name)

        def build(*args: Any) -> Any:
            with (folder / "log").open("a") as file:
                file.write(f"{name}\n")
            if name == stuck:
                time.sleep(60)
            return real(*args)

        setattr(place, name, build)

    noted(counts, "flops_per_example")
    noted(scikit_learn, "read")
    noted(partitioning, "partition_data")
    end_with_parent(os.getppid())
    trainer = LocalTrainer(replace(RunInputs(load("digits", {})).job, cache=str(folder / "cache")))
    told.send("ready")
    told.recv()
    told.send(trainer.describe(True)[0].data_sha256)
