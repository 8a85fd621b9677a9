"""What runs of a Flower app have beside other runs: the process of the ServerApp, and a recorder of its rounds."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from coordinator.records.store import Commit, Ledger
from coordinator.rounds import app_rounds
from coordinator.rounds.app_rounds import AppRounds
from coordinator.rounds.budget import LARGEST_INTEGER, Budget
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import environment
from coordinator.workers.task import Workers
from costmodel.clock import Clock
from edge.protocol import app_records
from edge.protocol.config import Job, ModelProfile
from edge.protocol.home import shared
from edge.protocol.options.flower_app import FlowerAppOptions
from edge.protocol.payload import PASS_TYPES, Layout
from scenarios.config.load import Loaded
from scenarios.run.app_folder import FlowerApp
from scenarios.run.child_process import ChildProcess

PROCESS = "scenarios.flower.server_process"
EXECUTOR = "edge.flower.client_app:ClientAppExecutor"
LOG = "server-app.log"
TURN_SECONDS = 0.1
"""Longest wait for a question between two checks for a stop"""
END_SECONDS = 5.0


class ServerAppProcess:
    """The process of a run's ServerApp, as a context; whatever it prints goes into its log.

    ``folder``: of the recorded replies; ``writes``: whether messages are put there for workers.
    """

    def __init__(
        self,
        app: FlowerApp,
        seed: int,
        folder: Path,
        log: Path,
        check_stop: Callable[[], None] = lambda: None,
        writes: bool = True,
    ) -> None:
        self._check_stop, self._log = check_stop, log
        self._file = self._log.open("ab")
        self._process = ChildProcess(PROCESS, env=environment(), errors=self._file)
        self._questions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process.channel.listen(self._questions.put)
        self._process.channel.send(
            {
                "app": str(app.folder),
                "server_app": app.server_app,
                "run_config": dict(app.run_config),
                "seed": seed,
                "messages": str(folder),
                "writes": writes,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end(END_SECONDS, with_group=True)
        self._file.close()

    def question(self) -> dict[str, Any]:
        """As of `coordinator.rounds.app_rounds.ServerApp`; Stopped if the user has asked to stop meanwhile."""
        while True:
            has_ended = self._process.has_ended()  # before the last look: what it has sent by then is there
            with suppress(queue.Empty):
                question = self._questions.get(timeout=TURN_SECONDS)
                if question is not None:
                    if question["do"] == "error":
                        with self._log.open("a", encoding="utf-8") as log:
                            log.write(question["traceback"])
                    return question
                has_ended = True
            if has_ended:  # a process that it has forked may have the channel still
                raise RunFailed(f"the ServerApp's process has ended; its output is in {shared(str(self._log))}")
            self._check_stop()

    def answer(self, answer: dict[str, Any]) -> None:
        self._process.channel.send(answer)


class LedgerRecorder:
    """Commits the rounds of an app; those that a resumed run has committed before must be the same."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._known, self._began = ledger, ledger.rounds(), time.monotonic()

    def commit(self, ended: app_rounds.EndedAppRound) -> None:
        row, record = ended.row, ended.record
        if row.round < len(self._known):
            before = self._known[row.round]
            names = [name for name in row._fields if getattr(row, name) != getattr(before, name)]
            if names:
                raise RunFailed(
                    f"round {row.round + 1}: the app's run differs from the committed one in {names[0]}: "
                    f"{getattr(row, names[0])!r} instead of {getattr(before, names[0])!r}"
                )
            return
        now = time.monotonic()
        wall_seconds, self._began = now - self._began, now
        payloads = record.payloads
        self._ledger.commit(
            Commit(
                row,
                record.visits,
                payloads,
                evaluations=record.evaluations,
                conditions=record.conditions,
                logged=record.logged,
                wall_seconds=wall_seconds,
                stopped_by=ended.stopped_by,
            )
        )


def rounds_of(
    loaded: Loaded,
    clock: Clock,
    server: ServerAppProcess,
    folder: Path,
    recorder: app_rounds.AppRecorder,
    target: float | None,
    workers: Workers | None = None,
    on_round: Callable[[RoundFinished], None] = lambda progress: None,
    check_stop: Callable[[], None] = lambda: None,
    on_failure: Callable[[str], None] = lambda text: None,
) -> AppRounds:
    """The rounds of an app, without ``workers`` those of a replay. ``target``: the accuracy that ends them."""
    scenario, options = loaded.scenario, loaded.options
    assert isinstance(options, FlowerAppOptions), options
    # The app decides how many rounds there are.
    budget = Budget(scenario.budget, LARGEST_INTEGER, target, scenario.stop.patience, scenario.fleet.price)
    clients = scenario.data.clients
    return AppRounds(
        options,
        clients,
        clock,
        server,
        workers,
        folder,
        recorder,
        budget,
        on_round,
        check_stop,
        on_failure=on_failure,
    )


def worker_job(job: Job, app: FlowerApp, folder: Path) -> Job:
    """The job of workers that run a ClientApp."""
    values = {
        "app": str(app.folder),
        "client_app": app.client_app,
        "messages": str(folder / app_records.FOLDER),
        "run_config": dict(app.run_config),
    }
    return replace(job, options_values=values)


def described(app: FlowerApp, clients: int) -> ModelProfile:
    """The profile of a model and data of which nothing is known but whose they are."""
    return ModelProfile(
        layout=Layout(()),
        family="conv",
        flops=np.zeros((0, PASS_TYPES)),
        activations=np.zeros(0),
        data_sha256=app.sha256,
        data_source=str(app.folder),
        classes=0,
        test_count=0,
        samples=np.zeros(clients, np.int64),
        histogram=np.zeros((clients, 0), np.int64),
        test_samples=np.zeros(clients, np.int64),
    )


def warnings(rounds: AppRounds) -> list[str]:
    """What a user should know of the errors and times of an app's run."""
    shown = []
    if rounds.failed:
        (error, message), *others = rounds.failures.items()
        more = f"; the log has {len(others)} others" if others else ""
        shown.append(
            f"the ClientApp answered {rounds.failed} of {len(rounds.exchanges)} messages with an error; the first: "
            f"{message}: {error}{more}"
        )
    if rounds.calibrated:
        shown.append(
            f"{rounds.calibrated} replies computed nothing in torch: their device time is this host's CPU seconds, "
            "which another run may measure otherwise"
        )
    return shown
