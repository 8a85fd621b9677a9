"""Runs that forecast series: the same for any workers and after kills, judged by pooled errors, beside baselines."""

from __future__ import annotations

import json
import math
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbr
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.better import HIGHER
from scenarios.cli.main import run_command
from scenarios.config.errors import ReportError, ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.run.run_folder import RunFolder
from scenarios.run.score import RunScore
from scenarios.studies.audit import audit
from scenarios.studies.forecast.pace import read_rounds
from scenarios.studies.replay import replay, show
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
    again = replay(Path(easy["run_dir"]), parsed(["fleet.devices={raspberry-pi-4=1.0}"]))
    assert (again.metric, again.target_accuracy, [each is not None for each in again.time_to_target_s]) == (
        *("rmse", 1000.0), [True, True]
    )  # fmt: skip
    show(again, stream := StringIO())
    assert "virtual time to rmse 1000" in stream.getvalue()
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


def without(setting: list[str], *keys: str) -> list[str]:
    """Words, and of those for the same key the last; none for these keys."""
    by_key = {word.partition("=")[0]: word for word in setting}
    return [word for key, word in by_key.items() if key not in keys]


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    assert run_command([*command, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


TARGETS = ("--target=rmse=3", "--target=rmse=0.1")
SHORT = ("data.series.window=4", "data.series.season=4", "data.series.test=0.2")
ALONE = ("--workers=1", "--quiet")
SMALL = (
    "rounds.participants=4",
    "rounds.max=4",
    'eval.metrics=["mase","mae"]',
    "train.optimizer_state=reset",
    "--workers=1",
)


def test_lower_errors_are_better_in_sweeps_comparisons_and_audits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = without(words(tmp_path, *SMALL), "method", "train.lr")
    out = (*ALONE, "--out", str(tmp_path))
    grid = (
        "method=fedavg,local",
        "train.lr=0,0.01",
        "--seeds=1",
        "--target=rmse=3",
        "--target=rmse=0.1",
        "--at=rounds=2",
    )
    swept = printed(capsys, "sweep", "digits", *setting, *grid, *out, "--report", "--run-id=swept")
    assert swept["metric"] == "rmse" and swept["targets"] == [3.0, 0.1]
    rows = {row["name"]: row for row in swept["rows"]}
    lazy, own = rows["method=fedavg train.lr=0"], rows["method=local train.lr=0.01"]
    assert own["score"]["mean"] < lazy["score"]["mean"] == lazy["best_score"]["mean"]
    assert "accuracy" not in own
    reached = {name: [each["reached"] for each in row["to_target"]] for name, row in rows.items()}
    assert reached == {name: [int(name.endswith("0.01")), 0] for name in rows}
    assert own["worst_decile"]["mean"] > own["clients_score"]["mean"]  # the largest error is the worst
    at = swept["at"]["rounds"][0]
    assert at["amount"] == 2 and set(at["score"]) == set(rows)
    page = (tmp_path / "digits" / "swept" / "report.html").read_text()
    best = min(rows.values(), key=lambda row: float(row["score"]["mean"]))
    answer = page.partition('class="answer">')[2].partition("</p>")[0]
    assert answer.startswith(
        "No row reaches rmse 0.1 with all of its seeds. 2 fedavg lr=0.01 has the lowest final rmse"
    )
    (short,) = [each for each in page.split("<table") if "rmse, last" in each][:1]
    assert f"{best['score']['mean']:.2f}" in short
    assert "<h3>RMSE</h3>" in page and "<h3>RMSE of clients</h3>" in page

    folders = [run["run_dir"] for run in swept["runs"]]
    audited = printed(capsys, "audit", *folders, "--twin", folders[0])
    assert (audited["metric"], audited["target"]) == ("rmse", None)
    scores = {run["run_dir"]: run["best_score"] for run in swept["runs"]}
    for row in audited["rows"]:
        if row["reference"] is not None:  # the worse of both is what both have reached
            assert row["reference"]["score"] == max(scores[row["runs"][0]], scores[folders[0]])

    compared = printed(capsys, "compare", "digits", *setting, "train.lr=0.01", "method=fedavg,central", *out)
    assert (compared["metric"], compared["target"]) == ("rmse", 0.01)
    assert set(compared["at_common_seconds"]["score"]) == {"fedavg", "central"}
    central = next(run for run in compared["runs"] if run["method"] == "central")
    assert central["bytes_down"] + central["bytes_up"] == 0
    assert "all data in one place, which is no federated method" in central["method_notes"][0]


def test_mase_divides_each_clients_error_by_that_of_the_naive_forecast_in_its_training_part(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    made = run_with(
        tmp_path, launcher, 1, *words(tmp_path, "rounds.max=1", 'eval.metrics=["mase","mae"]'), run_id="scaled"
    )
    rows = (tmp_path / "meters.csv").read_text().splitlines()[1:]
    series = np.array([float(row.split(",")[2]) for row in rows]).reshape(4, 60)
    # The first 36 hours are training; the first value behind each window of 12 hours and two targets is foreseen.
    naive = [np.abs(own[12:35] - own[:23]).mean() for own in series]
    ledger = Path(made["run_dir"]) / "ledger.sqlite"
    query = "SELECT value FROM evaluations WHERE metric = ? ORDER BY client"
    mase, mae = ([row[0] for row in read(ledger, query, (metric,))] for metric in ("mase", "mae"))
    assert mase == pytest.approx([error / own for error, own in zip(mae, naive, strict=True)], rel=1e-4)


def test_a_decision_seeks_the_least_cost_to_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = without(words(tmp_path, *SMALL, *SHORT), "method", "train.lr")
    command = (
        "decide",
        "digits",
        *setting,
        "train.lr=0,0.03",
        "method=fedavg",
        "--out",
        str(tmp_path),
        "--seeds=2",
        *ALONE,
    )
    found = printed(capsys, *command, "--target=rmse=4", "--cost=joules_per_device", "--draws=0", "--run-id=d")
    sought = found["objective"]
    assert (sought["metric"], sought["target"], sought["text"]) == (
        *("rmse", 4), "least energy of a device to rmse 4"
    )  # fmt: skip
    assert (found["chosen"], found["candidates"][0]["reached"]) == ("train.lr=0.03", 0)
    assert found["candidates"][1]["score"]["mean"] < found["candidates"][0]["score"]["mean"]
    recommended = load(str(tmp_path / "digits" / "d" / "recommended.toml")).scenario
    assert recommended.stop.goal == 4
    held = RunFolder(Path(found["runs"][0]["run_dir"])).environment.partition
    # The last fifth of the 43 windows of each client; the 5 before them have values in common with one.
    assert (held.validation, [sum(examples) for examples in held.histogram]) == ([8] * 4, [30] * 4)
    assert found["test"]["mean"] is not None


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("sweep", "--target=0.9x"), "--target '0.9x': must be a value of rmse, for example 4.2"),
        (("sweep", "--target=accuracy=0.9"), "its runs are judged by rmse; write rmse=4.2"),
        (("decide", "--target=mae=3"), "--target 'mae=3': its runs are judged by rmse; write rmse=4.2"),
    ],
)
def test_a_target_that_runs_do_not_have_is_refused(
    command: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = without(words(tmp_path), "train.lr", "train.loss")
    more = ("train.lr=0.1,0.2", "train.loss=mse")
    assert run_command([command[0], "digits", *setting, *more, *command[1:], "--out", str(tmp_path)]) == 2
    assert problem in capsys.readouterr().err


def test_a_loss_of_ones_own_may_be_judged_by_a_metric_that_is_to_be_high(
    tmp_path: Path, launcher: WorkerLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("train.loss=tests.plugins.expectile:ROW", 'stop.target={metric="r2",above=0.99999}', "train.lr=0.05")
    made = run_with(tmp_path, launcher, 1, *words(tmp_path, *own), run_id="own")
    folder = RunFolder(Path(made["run_dir"]))
    assert folder.score == RunScore("r2", HIGHER, False)
    scores = [row[0] for row in read(folder.ledger, "SELECT score FROM rounds ORDER BY round")]
    assert (made["metric"], made["best_score"], folder.trail.best) == ("r2", max(scores), max(scores))
    assert made["best_round"]["score"] == max(scores) > 0
    assert [each.is_evaluated for each in read_rounds(folder.folder)] == [True] * 3  # which --estimate measures by
    audited = printed(capsys, "audit", made["run_dir"])
    assert (audited["metric"], audited["better"], audited["is_share"]) == ("r2", "higher", False)


def test_an_experiment_has_one_metric(tmp_path: Path) -> None:
    of_classes, of_numbers = load("digits"), load("digits", parsed(words(tmp_path)))
    with pytest.raises(ScenarioError, match=r"b: train.loss = 'mse': its runs are judged by rmse, and those of a "):
        RunSet("sweep", "both", [PlannedRun("a", of_classes, {}), PlannedRun("b", of_numbers, {})])


def test_a_listing_has_the_metric_and_the_audit_refuses_two(
    tmp_path: Path, launcher: WorkerLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run_with(tmp_path, launcher, 1, *words(tmp_path, "rounds.max=1"), run_id="one")
    assert run_command(["ls", str(tmp_path), "--json"]) == 0
    (listed,) = [run for run in json.loads(capsys.readouterr().out)["entries"] if run["folder"].endswith("one")]
    assert (listed["accuracy"], listed["metric"], listed["score"]) == (None, "rmse", made["score"])
    of_classes = run_with(tmp_path, launcher, 1, "rounds.max=1", run_id="classes")
    with pytest.raises(ReportError, match=r"is judged by accuracy, and .* by rmse; audit compares runs at equal"):
        audit([Path(made["run_dir"]), Path(of_classes["run_dir"])])


def test_the_best_round_on_validation_windows_has_the_lowest_mean_error(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    chosen = ("eval.select=validation", "data.validation=0.2", "train.lr=0.2")
    made = run_with(tmp_path, launcher, 1, *words(tmp_path, *chosen), run_id="chosen")
    ledger = Path(made["run_dir"]) / "ledger.sqlite"
    query = "SELECT AVG(value) FROM evaluations WHERE kind = 'validation' AND metric = 'rmse' GROUP BY round"
    means = [row[0] for row in read(ledger, query)]
    best = made["best_round"]
    assert (best["selected_by"], best["round"]) == ("validation", means.index(min(means)))
    assert best["validation_score"] == pytest.approx(min(means)) and "validation_accuracy" not in best
