"""Flower apps of tests, and runs of them."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from tests.scenarios.runs import never

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"
PROJECT = """
[project]
name = "probe"
version = "1.0.0"

[tool.flwr.app.components]
serverapp = "probe.server_app:app"
clientapp = "probe.client_app:app"

[tool.flwr.app.config]
rounds = 1
"""
CLIENT = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(msg: Message, context: Context):
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)

@app.evaluate()
def evaluate(msg: Message, context: Context):
    return Message(RecordDict({"metrics": MetricRecord({"eval_acc": 0.5, "num-examples": 1})}), reply_to=msg)
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.zeros(10)]), num_rounds=context.run_config["rounds"])
"""
STILL = ("stop.target_accuracy=1.0", "fleet.jitter=0.0", "fleet.devices={raspberry-pi-4=1}", "fleet.networks={lte=1}")
"""A fleet in which all clients are the same."""


def write_app(folder: Path, client: str = CLIENT, server: str = SERVER, project: str = PROJECT) -> Path:
    """A folder with an app."""
    (folder / "probe").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(project)
    for name, text in (("__init__", ""), ("client_app", client), ("server_app", server)):
        (folder / "probe" / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


@dataclass
class Apps:
    """Runs apps in a folder of their own."""

    folder: Path
    launcher: WorkerLauncher

    def run(self, app: Path, *overrides: str, workers: int = 2, run_id: str = "run") -> dict[str, Any]:
        """The summary of a run of an app."""
        loaded = load("digits", parse_all([f"method=flower:{app}", *STILL, *overrides]))
        return dict(runner.run(loaded, Host(self.folder, workers, "cpu", run_id), self.launcher, never, True))

    def play(self, *overrides: str, client: str = CLIENT, server: str = SERVER, **how: Any) -> dict[str, Any]:
        """The summary of a run of an app that a test has written."""
        app = self.folder / "app"
        return self.run(app if app.exists() else write_app(app, client, server), *overrides, **how)


def said(result: dict[str, Any]) -> list[Any]:
    """What the ServerApp of a run has printed as lines of JSON after the word ``said``."""
    log = Path(result["run_dir"]) / "logs" / "server-app.log"
    return [json.loads(line.removeprefix("said ")) for line in log.read_text().splitlines() if line.startswith("said ")]
