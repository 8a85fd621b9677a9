"""Models and data as a worker describes them before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import ModelProfile
from edge.protocol.scratch import scratch
from scenarios.config.load import Loaded
from scenarios.run import runner
from scenarios.run.host import logging_to
from scenarios.run.setup import RunInputs


@dataclass
class Profiles:
    """The profiles of several scenarios, of which each model on each data set is described once."""

    device: str
    launcher: WorkerLauncher
    stopped: Callable[[], bool]
    _found: dict[str, ModelProfile] = field(default_factory=dict)

    def of(self, loaded: Loaded) -> ModelProfile:
        """The profile of a scenario; ScenarioError, RunFailed, PoolError, Stopped."""
        job = RunInputs(loaded).job
        key = repr((job.data, job.model, job.wrap_model, job.variants, job.initial_models, job.by_layer))
        if key not in self._found:
            with (
                scratch() as logs,
                logging_to(logs / "coordinator.log"),
                runner.probe_worker(RunInputs(loaded, self.device), self.launcher, logs, self.stopped) as pool,
            ):
                self._found[key], _ = pool.describe(data=True)
        return self._found[key]
