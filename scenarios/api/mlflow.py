"""MLflow: a run's settings and numbers per round. Needs ``pip install 'fedbr-edge[mlflow]'``; no thread, no telemetry.

MLflow keeps folders of files, but its newest versions ask for a database unless they are told to use them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from coordinator.rounds.budget import EARLY
from scenarios.api.callbacks import Callback, CommittedRound
from scenarios.config.tables import leaves

LONGEST_VALUE = 500
"""Characters of a setting; MLflow refuses longer ones."""


class MLflow(Callback):
    """Logs each run: the scenario's keys as parameters, the fields of `CommittedRound` as metrics, rounds as steps.

    ``tracking_uri``: a folder, ``sqlite:///mlflow.db`` (with the whole of mlflow installed) or a server's address.
    A run that is resumed is a further run of MLflow; its tag ``fedbr.folder`` is the same.
    """

    def __init__(self, tracking_uri: str = "mlruns", experiment: str = "fedbr") -> None:
        self._client = MlflowClient(tracking_uri=tracking_uri)
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        self._runs: dict[Path, str] = {}
        """Folder of a run -> the run of MLflow, while it works"""

    def on_start(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        """Begin a run of MLflow."""
        name = f"{folder.resolve().parent.name}: {scenario['method']}"
        begun = self._client.create_run(self._experiment, tags={"fedbr.folder": str(folder.resolve())}, run_name=name)
        self._runs[folder] = begun.info.run_id
        settings = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in leaves(scenario)]
        for first in range(0, len(settings), 100):  # the most in one request
            self._client.log_batch(self._runs[folder], params=settings[first : first + 100])

    def on_round(self, round: CommittedRound) -> None:
        """Log a round's numbers."""
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, round.round) for name, value in round.numbers().items()]
        self._client.log_batch(self._runs[round.folder], metrics=metrics)

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """End the run of MLflow: finished, killed by the user, or failed; a later one does not touch it again."""
        ended = list(self._runs) if summary is None else [Path(summary["run_dir"])]
        stopped_by = None if summary is None else summary["stopped_by"]
        status = "FAILED" if stopped_by is None else "KILLED" if stopped_by in EARLY else "FINISHED"
        for folder in ended:
            if folder in self._runs:
                self._client.set_terminated(self._runs.pop(folder), status)
