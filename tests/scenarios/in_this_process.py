"""Real runs on the digits without worker processes: their training is done in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import Job, ModelProfile
from edge.protocol.payload import Payload
from edge.training.answering import AnsweringTrainer
from edge.training.trainer import LocalTrainer
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver
from scenarios.studies import measure, stress
from tests import toy

BOARDS = "fleet.devices={raspberry-pi-4=0.4, jetson-nano=0.3, raspberry-pi-5=0.3}"
"""Boards that take little time for the digits, so that links decide."""
SMALL = ("train.local_steps=4", "rounds.max=4", "fleet.jitter=0.2", BOARDS)


class InThisProcess(toy.Direct):
    """Stands where a run's pool of workers stands."""

    physical_bytes = 0, 0

    def __init__(self, job: Job, *_: Any, **__: Any) -> None:
        super().__init__(AnsweringTrainer(job) if job.is_untrained else LocalTrainer(job))

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        return self.site.describe(data)


@contextmanager
def training_here() -> Iterator[None]:
    """Runs have such a pool, and no fork server, whose imports take longer than they."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (runner, measure, stress):
            patch.setattr(module, "Pool", InThisProcess)
        patch.setattr(WorkerLauncher, "__enter__", lambda launcher: launcher)
        for name in ("__exit__", "adopt"):
            patch.setattr(WorkerLauncher, name, lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def pool_in_this_process() -> Iterator[None]:
    """For modules that import it: `training_here`."""
    with training_here():
        yield


def summary_of_run(
    out: Path,
    *overrides: str,
    run_id: str | None = None,
    stop_at_target: bool = True,
    observers: Sequence[RunObserver] = (),
    scenario: str | None = None,
) -> dict[str, Any]:
    """The summary of a real run, of FedAvg on the digits unless another scenario is named."""
    loaded = load(scenario or "digits", parse_all([*(() if scenario else ("method=fedavg", *SMALL)), *overrides]))
    host = Host(out, 1, "cpu", run_id, observers)
    return dict(runner.run(loaded, host, WorkerLauncher(), lambda: False, stop_at_target))


def resume(loaded: Loaded, folder: Path) -> dict[str, Any]:
    """The summary of a run that is resumed."""
    return dict(runner.resume(loaded, Host(folder.parent, 1, "cpu"), folder, WorkerLauncher(), lambda: False))


def run(out: Path, *overrides: str, stop_at_target: bool = True) -> Path:
    """The folder of a real run on the digits."""
    return Path(summary_of_run(out, *overrides, stop_at_target=stop_at_target)["run_dir"])
