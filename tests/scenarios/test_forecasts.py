"""Runs that forecast series: the same for any workers and after kills, judged by pooled errors, beside baselines."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbr
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.better import HIGHER
from scenarios.cli.main import run_command
from scenarios.run.run_folder import RunFolder
from scenarios.studies.audit import audit
from tests import warm
from tests.scenarios.runs import QUICK, resumed, run_with

BEFORE_COMMIT = ("coordinator.records.store:Ledger.commit", "before", 2)


def meters(folder: Path) -> Path:
    """Four devices of 60 hours, each with a level, a daily wave of its own height and some noise."""
    rng = np.random.default_rng(0)
    rows = [
        f"m{device},{3600 * hour},{100 * device + (5 + device) * math.sin(hour * math.pi / 6) + rng.normal():.3f}"
        for device in range(4)
        for hour in range(60)
    ]
    (folder / "meters.csv").write_text("\n".join(["device,time,load", *rows]))
    return folder / "meters.csv"


def words(folder: Path, *more: str) -> list[str]:
    return [
        "method=fedper", f"data.file={meters(folder)}", "data.series.target=load", "data.series.window=12",
        "data.series.horizon=2", "data.series.season=12", "data.series.test=0.4", "model.name=mlp",
        "model.width=16", "train.loss=mse", "train.optimizer=adamw", "train.optimizer_state=keep", "train.lr=0.01",
        "train.batch=8", "rounds.participants=3", "rounds.max=3", 'stop.target={metric="rmse",below=0.01}', *more,
    ]  # fmt: skip


def test_the_score_pools_the_clients_and_neither_workers_nor_a_kill_change_it(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    setting = words(tmp_path)
    one, three = (run_with(tmp_path, launcher, workers, *setting) for workers in (1, 3))
    command = (
        "run",
        "digits",
        *QUICK,
        *setting,
        "--workers",
        "2",
        "--quiet",
        "--out",
        str(tmp_path),
        "--run-id",
        "cut",
    )
    assert warm.run(command, meddler=("kill", *map(str, BEFORE_COMMIT))).returncode == -signal.SIGKILL
    cut = RunFolder(Path(resumed(tmp_path / "digits" / "cut", launcher)["run_dir"]))
    assert one["model_sha256"] == three["model_sha256"] == (cut.summary or {})["model_sha256"]
    ledger = Path(one["run_dir"]) / "ledger.sqlite"
    scores = [row[0] for row in read(ledger, "SELECT score FROM rounds ORDER BY round")]
    assert [row[0] for row in read(ledger, "SELECT accuracy FROM rounds")] == [None] * 3
    own = read(ledger, "SELECT value, count FROM evaluations WHERE round = 2 AND metric = 'rmse' ORDER BY client")
    # Of 60 hours the last 24 are tested: 11 windows of 12 hours and two targets.
    assert [count for _, count in own] == [22] * 4
    pooled = math.sqrt(sum(value**2 * count for value, count in own) / sum(count for _, count in own))
    assert scores[-1] == pytest.approx(pooled)
    assert scores[-1] != pytest.approx(np.mean([value for value, _ in own]), rel=1e-6)
    assert (one["metric"], one["accuracy"], one["score"], one["best_score"]) == ("rmse", None, scores[-1], min(scores))
    assert one["best_round"]["score"] == min(scores)
    assert cut.trail.best == min(scores)


def test_a_target_below_ends_a_run_and_a_forecast_that_loses_to_none_says_so(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    easy = run_with(tmp_path, launcher, 1, *words(tmp_path, 'stop.target={metric="rmse",below=1000}'), run_id="easy")
    assert (easy["stopped_by"], easy["rounds"], easy["target"], easy["rounds_to_target"]) == ("target", 1, 1000.0, 1)
    lazy = run_with(tmp_path, launcher, 1, *words(tmp_path, "train.lr=0", "rounds.max=1"), run_id="lazy")
    assert list(lazy["baselines"]) == ["last value", "a season before"]
    losses = [text for text in lazy["warnings"] if text.startswith("the model loses to a forecast that needs none, ")]
    assert len(losses) == 2


def test_several_labels_from_python_have_a_target_above(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    y = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0], axis=1)
    keys: dict[str, Any] = {
        "model.name": "mlp", "train.loss": "bce", "train.lr": 0.5, "rounds.max": 10, "data.partition.kind": "iid",
        "eval.metrics": ["f1", "auroc"], "stop.target": {"metric": "f1", "above": 0.6},
    }  # fmt: skip
    run = fedbr.run("digits", method="fedavg", data=fedbr.dataset(x, y), out=tmp_path, progress=False, **keys)
    folder = RunFolder(run.folder)
    assert (folder.target, folder.score.metric, folder.score.better) == (0.6, "f1", HIGHER)
    assert run.summary["stopped_by"] == "target" and run.summary["score"] >= 0.6
    auroc = read(run.folder / "ledger.sqlite", "SELECT value, count FROM evaluations WHERE metric = 'auroc'")
    assert len(auroc) == run.summary["rounds"] and all(0.5 < value < 1 for value, _ in auroc)


def test_what_is_read_at_accuracies_refuses_other_runs(
    tmp_path: Path, launcher: WorkerLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run_with(tmp_path, launcher, 1, *words(tmp_path, "rounds.max=1"), run_id="one")
    with pytest.raises(Exception, match="is judged by rmse, and audit compares runs at equal accuracy"):
        audit([Path(made["run_dir"])])
    several = [word.replace("method=fedper", "method=fedavg,local") for word in words(tmp_path)]
    assert run_command(["compare", "digits", *several, "--out", str(tmp_path)]) == 2
    assert "train.loss = 'mse': experiments compare accuracies" in capsys.readouterr().err
    assert run_command(["ls", str(tmp_path), "--json"]) == 0
    (listed,) = [run for run in json.loads(capsys.readouterr().out)["entries"] if run["folder"].endswith("one")]
    assert (listed["accuracy"], listed["metric"], listed["score"]) == (None, "rmse", made["score"])
