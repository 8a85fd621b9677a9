"""The server of a deployed scenario: a run whose visits are trained by the nodes of a Flower federation.

It is a run like every other, with a run folder, a ledger and reports; its times are measured
(`scenarios.flower.wall_clock`), its energy is not. ``rounds.csv`` in the folder has what a prediction is compared with.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
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
from edge.protocol.config import BOARDS, Job, ModelProfile
from scenarios.config import search_path
from scenarios.config.load import Loaded, load
from scenarios.flower.device_grid import DeviceSettings, GridWorkers, Nodes, tell
from scenarios.flower.export import refuse
from scenarios.run import runner
from scenarios.run.host import Host, Piece
from scenarios.run.observer import NotePrinter, RunObserver
from scenarios.run.run_summary import RunSummary
from scenarios.run.session import Session

CSV = "rounds.csv"
COLUMNS = ("round", "seconds", "bytes_down", "bytes_up")
"""Of `CSV`, and then the metric by which the run is judged"""


def server_app(scenario: Path) -> ServerApp:
    """The app of the server of a scenario's file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with search_path.allowing(True):  # modules that came with the app
            serve(load(str(scenario)), grid, context.run_config)

    return app


@dataclass
class FlowerDevices:
    """The nodes of a grid (`scenarios.run.host.RealDevices`)."""

    grid: Grid
    settings: DeviceSettings
    rules: RoundPolicy
    nodes: Nodes | None = None
    """Once they are asked"""

    def counted(self, job: Job, profile: ModelProfile, is_stopped: Callable[[], bool]) -> ModelProfile:
        """As of the base. Nodes that hold the only examples are waited for, and say how many these are."""
        if job.data.partition.kind != BOARDS:
            self.nodes = Nodes(self.grid, self.settings, job, is_stopped)
            return profile
        self.nodes = nodes = Nodes(self.grid, self.settings, job, is_stopped, profile.classes)
        nodes.join(range(job.data.clients))
        nodes.is_closed = True
        histogram, validation = np.zeros_like(profile.histogram), np.zeros_like(profile.validation_samples)
        for client, joined in nodes.joined.items():
            histogram[client], validation[client] = joined.histogram, joined.validation
        samples = histogram.sum(axis=1)
        return replace(profile, samples=samples, histogram=histogram, validation_samples=validation)

    def join(
        self, job: Job, profile: ModelProfile, fleet: Fleet, pool: Workers, is_stopped: Callable[[], bool]
    ) -> tuple[Clock, Workers]:
        """As of the base, with the nodes of all clients that have examples, or as many as the settings say."""
        assert self.nodes is not None
        self.nodes.join(np.flatnonzero(profile.samples).tolist())
        workers = GridWorkers(self.nodes, self.rules, fleet, pool)
        return workers.clock, workers


def serve(loaded: Loaded, grid: Grid, config: Mapping[str, Any]) -> RunSummary:
    """Run a scenario on the nodes of a grid; returns its summary.

    ``config``: of the app (`DeviceSettings`; ``name`` of the folder of run folders in ``out``; ``data-root`` and
    ``device`` of this machine). Errors as of `scenarios.run.runner.run`, and ScenarioError for what devices cannot do.
    """
    refuse(loaded)
    loaded = replace(loaded, name=str(config.get("name") or loaded.name))
    if root := config.get("data-root"):
        data = replace(loaded.scenario.data, root=str(root))
        loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"data": data}))
    keys = {each.name: each.name.replace("_", "-") for each in fields(DeviceSettings)}
    settings = DeviceSettings(**{name: config[key] for name, key in keys.items() if key in config})
    devices = FlowerDevices(grid, settings, loaded.scenario.rounds)
    session = Session(
        workers=1,
        device=str(config.get("device", "cpu")),
        observers=(NotePrinter(), RoundsFile()),
        out=Path(str(config.get("out", "runs"))),
    )

    def work(host: Host, launcher: WorkerLauncher, stopped: Piece) -> RunSummary:
        return runner.run(loaded, replace(host, devices=devices), launcher, stopped, stop_at_target=True)

    result = session.call([loaded], work)
    tell(f"{result['run_dir']}: {result['rounds']} rounds, {result['metric']} {result['score']}")
    return result


class RoundsFile(RunObserver):
    """Writes each committed round to `CSV` in the run folder: seconds and bytes as they were measured."""

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """The head."""
        self._path, self._metric = folder / CSV, loaded.scenario.train.score
        self._write((*COLUMNS, self._metric))

    def on_round(self, progress: RoundFinished) -> None:
        """One row; the score, such as the accuracy, is empty if the round was not evaluated."""
        row = progress.row
        score = "" if row.judged is None else row.judged
        self._write((row.round + 1, row.end_s - row.start_s, row.bytes_down, row.bytes_up, score))
        tell(f"round {row.round + 1}: {row.end_s - row.start_s:.3f} s, {self._metric} {score}")

    def _write(self, values: tuple[object, ...]) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(values)
