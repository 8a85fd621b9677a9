"""Lists of runs, differences and data frames from Python. Runs are made in this process, or by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import fedbr
from tests.ledgers import made_run
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

FEDAVG = 'method = "fedavg"\nseed = 3\n'
BRIEF: dict[str, Any] = {"train.local_steps": 1, "rounds.max": 2, "rounds.participants": 2, "data.clients": 4}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> fedbr.RunCollection:
    """A sweep of two cells over two seeds."""
    out = tmp_path_factory.mktemp("out")
    grid = {"train.lr": [0.05, 0.1]}
    return fedbr.sweep("digits", grid, seeds=2, targets=[0.05], out=out, workers=1, method="fedavg", **BRIEF)


def test_ls_gives_runs_as_objects_and_as_a_data_frame(swept: fedbr.RunCollection, tmp_path: Path) -> None:
    single = made_run(tmp_path / "digits" / "single", (0.5,), FEDAVG)
    several = Path(shutil.copytree(swept.folder, tmp_path / "digits" / "sweep"))
    found = fedbr.ls(tmp_path)
    assert {entry.folder: (entry.kind, entry.state) for entry in found} == {
        single: ("run", "finished"),
        several: ("sweep", "finished"),
    }
    frame = found.to_pandas().set_index("folder")
    assert len(frame) == 5
    assert frame.loc[str(single), ["method", "seed", "rounds", "state", "run_set"]].tolist()[:4] == [
        *("fedavg", 3, 1, "finished")
    ]
    assert frame["run_set"].value_counts().to_dict() == {str(several): 4}
    assert fedbr.ls(single)[0].rounds == 1


def test_diff_takes_runs_folders_and_scenarios(swept: fedbr.RunCollection) -> None:
    first, second = swept[0], swept[1]
    assert fedbr.diff(first, str(first.folder)).same
    found = fedbr.diff(first, second)
    assert (found.same, found.first_round) == (False, 1)
    assert list(fedbr.diff("digits", {"extends": "digits", "train": {"lr": 0.5}}).keys) == ["train.lr"]


# --- data frames of sweeps --------------------------------------------------------------------------------------------


def test_a_sweep_is_a_data_frame_with_a_row_per_run(swept: fedbr.RunCollection) -> None:
    frame = swept.to_pandas()
    assert frame[["train.lr", "seed"]].to_numpy().tolist() == [[0.05, 0], [0.05, 1], [0.1, 0], [0.1, 1]]
    assert frame["run"].tolist() == [f"fedavg-lr-{lr}-seed{seed}" for lr in ("0.05", "0.1") for seed in (0, 1)]
    assert frame["accuracy"].tolist() == [run.accuracy for run in sorted(swept, key=lambda run: run.folder.name)]
    assert frame["rounds"].tolist() == [2, 2, 2, 2]
    assert {"virtual_seconds", "bytes_up", "joules", "model_sha256", "bytes_to_0.05"} <= set(frame.columns)
    opened = fedbr.open(swept.folder)
    assert isinstance(opened, fedbr.RunCollection)
    assert opened.to_pandas().equals(frame)


def test_its_cells_are_a_data_frame_with_means_and_intervals(swept: fedbr.RunCollection) -> None:
    runs, cells = swept.to_pandas(), swept.to_pandas(by="cell")
    assert cells["train.lr"].tolist() == [0.05, 0.1]
    assert cells["seeds"].tolist() == [2, 2]
    expected = runs.groupby("train.lr")["virtual_seconds"].mean().tolist()
    assert cells["virtual_seconds_mean"].tolist() == pytest.approx(expected, rel=1e-12)
    assert (cells["accuracy_low"] <= cells["accuracy_mean"]).all()
    with pytest.raises(fedbr.ScenarioError, match="by = 'seed': must be 'run' or 'cell'"):
        swept.to_pandas(by="seed")  # type: ignore[arg-type]


# --- callbacks of several runs ----------------------------------------------------------------------------------------


def test_a_sweep_and_a_comparison_tell_callbacks_of_the_rounds_of_each_run(tmp_path: Path) -> None:
    rounds: list[tuple[str, int]] = []

    def note(round: fedbr.CommittedRound) -> None:
        rounds.append((round.folder.name, round.round))

    fedbr.sweep("digits", {"train.lr": [0.05, 0.1]}, seeds=1, out=tmp_path, workers=1, on_round=note, **BRIEF)
    assert rounds == [(f"fedbr-lr-{lr}-seed0", number) for lr in ("0.05", "0.1") for number in (1, 2)]
    rounds.clear()
    fedbr.compare("digits", ["fedavg", "fedprox"], out=tmp_path, workers=1, on_round=[note], **BRIEF)
    assert rounds == [(method, number) for method in ("fedavg", "fedprox") for number in (1, 2)]


def test_a_callback_stops_a_sweep_and_the_same_call_goes_on(tmp_path: Path) -> None:
    def sweep(**options: Any) -> fedbr.RunCollection:
        return fedbr.sweep("digits", {"train.lr": [0.05, 0.1]}, seeds=1, out=tmp_path, workers=1, **BRIEF, **options)

    stopped = sweep(on_round=lambda round: False)
    assert [run.stopped_by for run in stopped] == ["user"]
    assert stopped.missing == ["fedbr-lr-0.1-seed0"]
    assert [run.stopped_by for run in sweep()] == ["rounds", "rounds"]
