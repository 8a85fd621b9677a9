"""The page of a sweep: its answer, clients over seeds, each row against a baseline, and the report of the runs of all
rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scenarios.experiment import sweep_tables
from scenarios.experiment.grid import grid_of
from scenarios.experiment.sweep import Sweep, plan
from tests.ledgers import made_run
from tests.scenarios.sweeps import result_of_sweep

METHODS = {"fedprox": 4, "fedavg": 0}
"""Method -> the place of its colour"""
GRID = ["method=fedprox,fedavg", "train.lr=0.05,0.1"]
ACCURACIES = {("fedprox", "0.05"): 0.2, ("fedprox", "0.1"): 0.8, ("fedavg", "0.05"): 0.3, ("fedavg", "0.1"): 0.6}


def swept(folder: Path) -> tuple[Sweep, dict[str, Any]]:
    """A sweep of two seeds, whose accuracies are 2 % apart with FedProx and 1 % with FedAvg, and its result."""
    experiment = plan(grid_of("digits", GRID), seeds=2)
    runs = []
    for row in experiment.rows:
        for seed in experiment.seeds:
            name, (method, lr) = experiment.run_name(row, seed), (row.method, str(row.settings["train.lr"]))
            scenario = f'method = "{method}"\nseed = {seed}\n[train]\nlr = {lr}\n'
            made_run(
                folder / name, (0.1, ACCURACIES[method, lr] + (0.02 if method == "fedprox" else 0.01) * seed), scenario
            )
            runs.append({"name": name, "run_dir": str(folder / name), "rounds": 2, "stopped_by": "rounds"})
    return experiment, experiment.result({"runs": runs})


def test_a_sweep_answers_first_and_reports_its_runs_by_row(tmp_path: Path) -> None:
    experiment, result = swept(tmp_path)
    page = experiment.write_page(result, tmp_path).read_text()
    first = "No row reaches 90 % with all of its seeds. 2 fedprox lr=0.1 has the highest final accuracy: 81.0 ± 12.7 %."
    assert f'<p class="answer">{first} The paired tests tell it from' in page
    assert re.findall(r'<a href="#(\w+)">', page)[:3] == ["answer", "results", "accuracy"]
    labels = ["1 fedprox lr=0.05", "2 fedprox lr=0.1", "3 fedavg lr=0.05", "4 fedavg lr=0.1"]
    assert re.findall(r"</svg>(\d [^<]*)</th><td>2</td>", page) == labels
    answer = page.partition('id="answer"')[2].partition('id="results"')[0]
    assert set(re.findall(r"var\(--series-(\d)", answer)) == {str(place) for place in METHODS.values()}
    assert [name in answer for name in ("rows-caption", "grid-caption", "a - b")] == [True, True, False]
    assert "from 1 fedprox lr=0.05" in answer


def test_rows_are_compared_with_the_one_that_is_named(tmp_path: Path) -> None:
    experiment, result = swept(tmp_path)
    for name in ("4", "fedavg lr=0.1", "method=fedavg train.lr=0.1"):
        chosen = experiment.with_baseline(name)
        assert chosen.baseline is not None
        table = next(each for each in chosen.page(result).tables if "accuracy, last" in each.title)
        assert table.header[1] == "from 4 fedavg lr=0.1"
    # -0.40 and -0.39: mean -0.395, half width 12.706 x 0.00707 / sqrt(2) = 0.0635; -0.30 in both seeds of the last.
    assert [row[:2] for row in table.texts] == [
        ["1 fedprox lr=0.05", "-39.5 ± 6.4 pp"],
        ["2 fedprox lr=0.1", "+20.5 ± 6.4 pp"],
        ["3 fedavg lr=0.05", "-30.0 ± 0.0 pp"],
    ]


def test_the_terminal_compares_the_last_accuracy_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, result = swept(tmp_path)
    experiment.show(result, tmp_path)
    shown = capsys.readouterr().out
    assert "a - b" in shown
    assert "accuracy, last" in shown
    assert "differences of accuracy, best" not in shown
    assert "whole runs" in shown  # since no row reaches the target


def test_the_answer_is_about_what_was_asked_and_says_what_the_seeds_carry() -> None:
    time, nbytes = sweep_tables.answer(sweep_tables.read(result_of_sweep()))
    assert time == (
        "2 fast has the lowest virtual time to 90 %: 20.8 ± 2.6 s. The paired tests tell it from the other row."
    )
    assert nbytes.startswith("2 fast has the lowest bytes to 90 %: ")


def test_clients_are_compared_over_seeds_in_tables_and_files() -> None:
    result = result_of_sweep(fairness=True)
    (table,) = [each for each in sweep_tables.tables(sweep_tables.read(result)) if each.title == "accuracy of clients"]
    assert table.texts == [
        ["1 slow", "80.00 ± 0.00 %", "51.0 ± 2.5 %", "10.00 ± 0.00 %"],
        ["2 fast", "80.00 ± 0.00 %", "61.0 ± 4.3 %", "10.00 ± 0.00 %"],
    ]
    numbers = sweep_tables.numbers(result)
    assert numbers.header[3:6] == ["clients_accuracy", "worst_decile", "spread"]
