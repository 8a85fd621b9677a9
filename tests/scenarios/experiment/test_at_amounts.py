"""``fedbr sweep --at``: accuracy at amounts, read off one run per row and seed."""

from __future__ import annotations

import csv
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.amounts import BYTES, NOMINAL_BYTES, VIRTUAL_SECONDS
from edge.protocol.better import Better
from scenarios.cli import main
from scenarios.experiment.at_amounts import at_of
from scenarios.experiment.grid import grid_of
from scenarios.experiment.sweep import plan
from scenarios.run.progress import ProgressPoint, Trail
from scenarios.run.run_folder import RunFolder
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

# Three rounds of 100 bytes, of which the second was not evaluated and the third fell back.
RUN = Trail(
    (
        ProgressPoint(1, 2.0, 100, 90.0, 0.6, 0.6),
        ProgressPoint(2, 3.0, 200, 160.0, None, 0.6),
        ProgressPoint(3, 5.0, 300, 230.0, 0.5, 0.6),
    )
)


# --- reading a run ----------------------------------------------------------------------------------------------------


def test_a_run_within_limits_ends_with_the_last_evaluated_round_that_all_of_them_allow() -> None:
    assert RUN.within({BYTES: 300}).final == 0.5
    assert RUN.within({BYTES: 299}).final == 0.6
    assert RUN.within({VIRTUAL_SECONDS: 4.9}).evaluated == RUN[0]
    assert RUN.within({NOMINAL_BYTES: 230}).final == 0.5
    assert RUN.within({BYTES: 99}).final is None
    assert RUN.within({BYTES: 300, VIRTUAL_SECONDS: 3.0}) == RUN[:2]
    assert Trail().within({BYTES: 99}) == ()


def test_a_target_is_reached_by_the_first_round_within_the_limits_that_is_as_good() -> None:
    assert RUN.until(0.5) == RUN[0]
    assert RUN.until(0.7) is None
    assert RUN.until(0.6, {BYTES: 99}) is None
    errors = Trail(replace(point, better=Better.LOWER) for point in RUN)
    assert errors.until(0.5) == errors[2]
    assert errors.until(0.4) is None
    assert RUN.until(None) is None


# --- the words --------------------------------------------------------------------------------------------------------


def test_amounts_have_units_and_are_sorted() -> None:
    assert at_of(["bytes=2 MB, 1 MiB", 'seconds="15 min"']) == {"bytes": [1_048_576, 2_000_000], "seconds": [900.0]}
    assert at_of({"seconds": [2, "1 s"], "rounds": 5}) == {"seconds": [1.0, 2.0], "rounds": [5.0]}


# --- a study ----------------------------------------------------------------------------------------------------------

# A round of FedAvg moves 617,230 B: five visits, each a model of 61,352 B with its header down and up.
WORDS = ["digits", "method=fedavg,fedbr", "--at", "bytes=700 kB,1.5 MB", "--seeds", "2", "--workers", "1", "--report"]


def study(out: Path, *more: str) -> int:
    return main.run_command(["sweep", *WORDS, "--out", str(out), "--run-id", "a", *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Path:
    """The folder of a study of two methods and two seeds."""
    out = tmp_path_factory.mktemp("runs")
    assert study(out, "train.local_steps=2", "--json") == 0
    return out / "digits" / "a"


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "study.json").read_text()))


def test_a_run_per_method_and_seed_ends_with_the_largest_budget(made: Path) -> None:
    assert [run["name"] for run in result_of(made)["runs"]] == [
        "fedavg-seed0", "fedbr-seed0", "fedavg-seed1", "fedbr-seed1",
    ]  # fmt: skip
    for run in result_of(made)["runs"]:
        points = RunFolder(Path(run["run_dir"])).trail
        assert run["stopped_by"] == "budgets"
        assert points[-1].nbytes >= 1_500_000 > points[-2].nbytes


def test_accuracies_are_those_of_the_ledger(made: Path) -> None:
    result = result_of(made)
    for at in result["at"]["bytes"]:
        for row, cell in at["accuracy"].items():
            method = row.removeprefix("method=")
            for seed, value in enumerate(cell["values"]):
                db = sqlite3.connect(made / f"{method}-seed{seed}" / "ledger.sqlite")
                rows = db.execute(
                    """SELECT accuracy FROM (SELECT round, accuracy, SUM(bytes_down + bytes_up) OVER (ORDER BY round)
                    AS total FROM rounds) WHERE total <= ? ORDER BY round DESC LIMIT 1""",
                    [at["amount"]],
                ).fetchall()
                db.close()
                assert [(value,)] == rows
            assert cell["mean"] == pytest.approx(sum(cell["values"]) / 2)
            assert cell["used_up"] == [True, True]


def test_the_tables_hold_every_reading_and_a_curve_per_method_and_axis_and_fit_a_terminal(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (made / "at.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (made / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2
    assert rows[0] | {"accuracy": ""} == {
        "row": "method=fedavg", "seed": "0", "name": "bytes", "amount": "700000.0", "accuracy": "", "round": "1",
        "used_up": "True",
    }  # fmt: skip
    assert {(point["method"], point["kind"]) for point in points} == {
        ("1 fedavg", "bytes"), ("2 fedbr", "bytes"), ("1 fedavg", "time"), ("2 fedbr", "time"),
    }  # fmt: skip
    assert "<svg" in (made / "report.html").read_text()
    grid = grid_of("digits", ["method=fedavg,fedbr", "train.local_steps=2"])
    plan(grid, 2, at={"bytes": [7e5, 1.5e6]}).show(result_of(made), made / "report.html")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith(("700 kB", "1.5 MB"))] == ["700 kB", "1.5 MB"]
    assert lines[-1] == f"report: {made / 'report.html'}"
    answer = max(index for index, line in enumerate(lines) if not line)
    assert max(len(line) for line in lines[:answer]) <= 80


def test_a_budget_that_is_not_reached_is_marked_and_a_method_that_fails_is_named_and_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["digits", "rounds.max=1", "method_options.lambda1=1e29", "method=fedmlb,fedavg", "--seeds", "1"]
    words += ["--at", "seconds=1 us,1 h", "--out", str(tmp_path), "--run-id", "a", "--workers", "1", "--quiet"]
    assert main.run_command(["sweep", *words]) == 3
    captured = capsys.readouterr()
    lines = captured.out.splitlines()

    assert captured.err.startswith("fedbr: fedmlb-seed0 failed: ")
    assert "without the runs that are missing: fedmlb-seed0" in lines
    assert next(line for line in lines if line.startswith("1 us")).split()[-1] == "-"
    assert next(line for line in lines if line.startswith("1 h")).endswith(" % *")
    assert any(line.startswith("* not used up: a run ended before, by rounds") for line in lines)
