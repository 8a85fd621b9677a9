"""``fedbr sweep``, and ``fedbr compare`` over several seeds: what they make, keep, write and print."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedbr
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.experiment import compare
from scenarios.experiment.executors import InTurn, make_runs
from scenarios.experiment.grid import grid_of
from scenarios.run.host import Host
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import never

SHORT = ("rounds.max=1", "train.local_steps=2")
GRID = ("method=fedavg,fedprox", "train.lr=0.05,0.1", *SHORT)


@dataclass(frozen=True)
class Swept:
    """A sweep of one seed, and the same sweep with one more seed."""

    out: Path
    first: dict[str, Any]
    whole: dict[str, Any]
    made_at: dict[str, int]
    """Run -> the time of its ledger after the first command"""

    @property
    def folder(self) -> Path:
        return Path(self.whole["folder"])


def printed(*words: str) -> dict[str, Any]:
    """What a command line prints with ``--json``."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main.run_command([*words, "--workers", "2", "--json"]) == 0
    return dict(json.loads(text.getvalue()))


def ledgers(folder: str) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in Path(folder).glob("*/ledger.sqlite")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Swept:
    out = tmp_path_factory.mktemp("sweeps")
    sweep = ("sweep", "digits", *GRID, "--target", "0.01", "--out", str(out))
    first = printed(*sweep, "--seeds", "1")
    made_at = ledgers(first["folder"])
    return Swept(out, first, printed(*sweep, "--seeds", "2", "--report"), made_at)


def test_warnings_of_runs_are_told_once_with_the_runs_that_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pool_in_this_process: None
) -> None:
    words = ["digits", "rounds.deadline=1 ms", *SHORT, "--workers", "1", "--out", str(tmp_path), "--json"]
    late = "no visit has counted (5 late), so that the model is the one that the run began with"
    for command, grid, names, shown in (
        (
            "sweep",
            ["method=fedavg", "rounds.policy=sync,deadline", "--seeds", "2", "--report"],
            ["fedavg-policy-deadline-seed0", "fedavg-policy-deadline-seed1"],
            "fedavg-policy-deadline-seed0, fedavg-policy-deadline-seed1",
        ),
        (
            "compare",
            ["rounds.policy=deadline", "method=fedavg,fedprox", "--no-report"],
            ["fedavg", "fedprox"],
            "all 2 runs",
        ),
    ):
        assert main.run_command([command, *words, *grid]) == 0
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert result["warnings"] == [{"warning": late, "runs": names}]
        assert err == f"fedbr: warning: {shown}: {late}\n"
    (page,) = tmp_path.glob("digits/sweep-*/report.html")
    assert f"<strong>Warning:</strong> fedavg-policy-deadline-seed0, fedavg-policy-deadline-seed1: {late}." in (
        page.read_text(encoding="utf-8")
    )
    swept = fedbr.sweep(
        "digits", {"rounds.policy": ["sync"]}, seeds=1, out=tmp_path / "py", progress=False,
        rounds={"max": 1}, train={"local_steps": 2},
    )  # fmt: skip
    assert swept.result["warnings"] == []


def test_one_more_seed_makes_only_what_is_missing_without_a_run_id(swept: Swept) -> None:
    assert len(swept.first["runs"]) == 4
    assert swept.first["folder"] == swept.whole["folder"]
    assert set(ledgers(swept.whole["folder"])) == {
        f"{method}-lr-{lr}-seed{seed}" for method in ("fedavg", "fedprox") for lr in ("0.05", "0.1") for seed in (0, 1)
    }
    assert ledgers(swept.whole["folder"]).items() >= swept.made_at.items()


def test_the_result_has_a_row_per_cell_and_tests_of_all_pairs(swept: Swept) -> None:
    result = swept.whole
    assert [row["settings"] for row in result["rows"]] == [
        {"method": method, "train.lr": lr} for method in ("fedavg", "fedprox") for lr in ("0.05", "0.1")
    ]
    assert result["axes"] == {"method": ["fedavg", "fedprox"], "train.lr": ["0.05", "0.1"]}
    first = result["rows"][0]
    accuracies = {run["name"]: run["accuracy"] for run in result["runs"]}
    assert first["accuracy"]["values"] == [accuracies[f"fedavg-lr-0.05-seed{seed}"] for seed in (0, 1)]
    assert first["to_target"][0]["reached"] == 2
    assert {len(group["pairs"]) for group in result["tests"]} == {6}
    assert first["runs"] == ["fedavg-lr-0.05-seed0", "fedavg-lr-0.05-seed1"]


def test_a_file_finds_the_runs_of_the_command_line_and_a_terminal_has_room_for_their_tables(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'scenario = "digits"\nseeds = 2\ntargets = [0.01]\n[grid]\nmethod = ["fedavg", "fedprox"]\n'
        "train.lr = [0.05, 0.1]\n[overrides]\nrounds.max = 1\ntrain.local_steps = 2\n"
    )
    before = ledgers(swept.whole["folder"])
    assert main.run_command(["sweep", str(file), "--out", str(swept.out), "--workers", "2", "-q", "--report"]) == 0
    assert ledgers(swept.whole["folder"]) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "accuracy"
    assert max(len(line) for line in lines[:-1]) <= 80
    assert lines[-1] == f"report: {swept.folder / 'report.html'}"


def test_a_comparison_over_seeds_takes_up_that_of_one_seed_and_has_its_statistics(tmp_path: Path) -> None:
    alone = compare.plan(grid_of("digits", ["method=fedavg,fedprox", *SHORT]), run_id="c")
    done = make_runs(alone.run_set, Host(tmp_path, 1, "cpu"), InTurn(WorkerLauncher()), never)
    found = alone.result(done)
    assert [row["seeds"] for row in found["rows"]] == [[0], [0]]
    before = ledgers(done["folder"])
    words = ("compare", "digits", "method=fedavg,fedprox", *SHORT, "--out", str(tmp_path), "--run-id", "c")
    several = printed(*words, "--seeds", "2", "--no-report")
    assert ledgers(done["folder"]).items() >= before.items()
    assert [run["name"] for run in several["runs"]] == ["fedavg", "fedprox", "fedavg-seed1", "fedprox-seed1"]
    assert [(row["method"], row["seeds"]) for row in several["rows"]] == [("fedavg", [0, 1]), ("fedprox", [0, 1])]
    assert several["target_accuracy"] == 0.9
    assert several.keys() - {"folder"} == found.keys() - {"folder"}
    assert "fedprox" in (Path(done["folder"]) / "sweep.md").read_text()
    assert json.loads((Path(done["folder"]) / "compare.json").read_text())["study"] == "compare"
    assert not (Path(done["folder"]) / "report.html").exists()


def test_an_experiment_says_first_how_many_runs_it_has_and_how_long_they_take_if_that_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("sweep", "digits", "method=fedavg", "train.lr=0.1,0.05", "rounds.max=4", "train.local_steps=1")
    options = ("--seeds", "1", "--out", str(tmp_path), "--workers", "1", "--no-report")
    assert main.run_command([*words, *options]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "fedbr: 2 runs, at most 8 rounds; the duration is known after the first, and --estimate measures it"
    assert main.run_command([*words, *options, "seed=7"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(
        f"fedbr: 2 runs, at most 8 rounds; about .+ here at the pace of earlier runs in {tmp_path}", first
    )
    made = sorted(tmp_path.rglob("ledger.sqlite"))
    assert main.run_command([*words, *options, "--estimate", "--json", "seed=9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["rounds"] for run in found["estimate"]["runs"]] == [4, 4]
    # 617,230 bytes a round with five visits.
    assert [run["nbytes"] for run in found["estimate"]["runs"]] == [4 * 617_230, 4 * 617_230]
    assert found["estimated_seconds"] > 0
    assert sorted(tmp_path.rglob("ledger.sqlite")) == made
