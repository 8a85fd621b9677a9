"""The number of workers where ``--workers`` does not name one: by cores, and on GPUs by memory too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import CPU
from edge.protocol.scratch import scratch
from edge.runtime.gpu_memory import free_nbytes, gpu_workers
from scenarios.config.load import Loaded
from scenarios.run import builder, runner
from scenarios.run.host import default_workers, logging_to


def choose_workers(runs: Iterable[Loaded], device: str, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> int:
    """One worker per core; on a GPU, as many as the memory that is free has room for (`gpu_workers`).

    The largest of the runs counts. Where the driver does not tell the free memory, one per core.
    """
    free = free_nbytes(device)
    if not free:
        return default_workers()
    distinct = {repr((run.scenario.model, run.scenario.method, run.scenario.train.batch)): run for run in runs}
    largest = max(_visit_nbytes(run, launcher, stopped) for run in distinct.values())
    visits = max(run.scenario.rounds.cohort for run in distinct.values())
    return gpu_workers(free, largest, default_workers(), visits)


def _visit_nbytes(loaded: Loaded, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> int:
    """Of one visit, from a description of the model on the CPU, before any worker has a GPU."""
    train = replace(loaded.scenario.train, graphs=False, precision="fp32")
    there = replace(loaded, scenario=loaded.scenario.model_copy(update={"train": train}))
    with (
        scratch() as logs,
        logging_to(logs / "coordinator.log"),
        runner.probe_worker(there, CPU, launcher, logs, stopped) as pool,
    ):
        profile, _ = pool.describe(data=False)
    return builder.training_nbytes(there, profile)
