"""The server of a deployed scenario: a run whose visits are trained by the nodes of a Flower federation.

It is a run like every other, with a run folder, a ledger and reports; its times are measured
(`scenarios.flower.wall_clock`), its energy is not. ``rounds.csv`` in the folder has what a prediction is compared with.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Workers
from costmodel.clock import Clock
from costmodel.fleet.fleet import Fleet
from edge.protocol.config import Job, ModelProfile
from scenarios.config.load import Loaded, load
from scenarios.flower.device_grid import DeviceSettings, GridWorkers
from scenarios.flower.export import refuse
from scenarios.run import runner
from scenarios.run.host import Host, Piece
from scenarios.run.observer import NotePrinter, RunObserver
from scenarios.run.session import Session

CSV = "rounds.csv"
COLUMNS = ("round", "seconds", "bytes_down", "bytes_up", "accuracy")
_log = logging.getLogger("fedbr.flower")


def server_app(scenario: Path) -> ServerApp:
    """The app of the server of a scenario's file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        serve(load(str(scenario)), grid, context.run_config)

    return app


@dataclass(frozen=True)
class FlowerDevices:
    """The nodes of a grid (`scenarios.run.host.RealDevices`)."""

    grid: Grid
    settings: DeviceSettings
    rules: RoundPolicy

    def join(
        self, job: Job, profile: ModelProfile, fleet: Fleet, pool: Workers, is_stopped: Callable[[], bool]
    ) -> tuple[Clock, Workers]:
        """As of the base, with the nodes of all clients that have examples, or as many as the settings say."""
        workers = GridWorkers(self.grid, self.settings, self.rules, job, fleet, pool, is_stopped)
        workers.join(np.flatnonzero(profile.samples).tolist())
        return workers.clock, workers


def serve(loaded: Loaded, grid: Grid, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a scenario on the nodes of a grid; returns its summary.

    ``config``: of the app (`DeviceSettings`; ``out``, the folder for run folders; ``data-root``, ``device``). Errors as
    of `scenarios.run.runner.run`, and ScenarioError for what devices cannot do.
    """
    refuse(loaded)
    if root := config.get("data-root"):
        data = replace(loaded.scenario.data, root=str(root))
        loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"data": data}))
    given = {name: config[key] for name in (each.name for each in fields(DeviceSettings)) if (key := name.replace("_", "-")) in config}
    devices = FlowerDevices(grid, DeviceSettings(**given), loaded.scenario.rounds)
    session = Session(
        workers=1,
        device=str(config.get("device", "cpu")),
        observers=(NotePrinter(), RoundsFile()),
        out=Path(str(config.get("out", "runs"))),
    )

    def work(host: Host, launcher: WorkerLauncher, stopped: Piece) -> dict[str, Any]:
        return runner.run(loaded, replace(host, devices=devices), launcher, stopped, stop_at_target=True)

    result = session.call([loaded], work)
    _log.info("%s: %d rounds, accuracy %s", result["run_dir"], result["rounds"], result["accuracy"])
    return result


class RoundsFile(RunObserver):
    """Writes each committed round to `CSV` in the run folder: seconds and bytes as they were measured."""

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """The head."""
        self._path = folder / CSV
        self._write(COLUMNS)

    def on_round(self, progress: RoundFinished) -> None:
        """One row; the accuracy is empty if the round was not evaluated."""
        row = progress.row
        accuracy = "" if row.accuracy is None else row.accuracy
        self._write((row.round + 1, row.end_s - row.start_s, row.bytes_down, row.bytes_up, accuracy))
        _log.info("round %d: %.3f s, accuracy %s", row.round + 1, row.end_s - row.start_s, accuracy or "not evaluated")

    def _write(self, values: tuple[object, ...]) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(values)
