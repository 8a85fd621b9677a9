"""Sweeps as TOML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.experiment.grid import Grid, axis_of
from scenarios.experiment.sweep import plan
from scenarios.experiment.sweep_file import SweepFile, is_sweep_file, requested

FILE = """
scenario = "digits"
seeds = 2
parallel = 4
targets = [0.8, 0.9]

[grid]
method = ["fedavg", "fedbr"]
train.lr = [0.05, 0.1]

[overrides]
rounds.max = 2
fleet.networks = { wifi-4 = 1.0 }
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_asks_for_what_the_command_line_asks_for(tmp_path: Path) -> None:
    asked = requested(written(tmp_path, FILE), [])
    assert asked == SweepFile(
        Grid(
            "digits",
            (axis_of("method", ["fedavg", "fedbr"]), axis_of("train.lr", [0.05, 0.1])),
            {"rounds.max": 2, "fleet.networks": {"wifi-4": 1.0}},
        ),
        2,
        4,
        (0.8, 0.9),
    )
    common = ("rounds.max=2", "fleet.networks={wifi-4 = 1.0}")
    words = requested("digits", ["method=fedavg,fedbr", "train.lr=0.05,0.1", *common])
    of_file, of_words = (plan(each.grid, 2).run_set for each in (asked, words))
    assert (of_file.run_id, [run.name for run in of_file.runs]) == (
        of_words.run_id,
        [run.name for run in of_words.runs],
    )


def test_words_replace_what_the_file_says_of_their_keys(tmp_path: Path) -> None:
    asked = requested(written(tmp_path, FILE), ["train.lr=0.2", "rounds.max=3,4"])
    assert [axis.key for axis in asked.grid.axes] == ["method", "rounds.max"]
    assert asked.grid.overrides == {"fleet.networks": {"wifi-4": 1.0}, "train.lr": 0.2}


def test_a_scenario_file_is_none_and_a_scenario_beside_the_file_is_found(tmp_path: Path) -> None:
    own = written(tmp_path, 'extends = "digits"\n', "own.toml")
    assert not is_sweep_file(own)
    assert not is_sweep_file("digits")
    asked = requested(written(tmp_path, 'scenario = "own.toml"\n[zip]\ntrain.lr = [0.1]\n'), [])
    assert (asked.grid.scenario, asked.grid.zipped) == (own, True)


def test_a_decision_has_its_candidates_and_what_it_looks_for_in_a_table(tmp_path: Path) -> None:
    file = tmp_path / "which.toml"
    file.write_text(
        'scenario = "digits"\n[overrides]\nrounds.max = 4\n[decide]\ntarget = 1\nbudget = { bytes = "5 MB" }\n'
        'candidates = [{ method = "fedavg", train.lr = 0.05 }, { codec.up = "none" }]\n'
    )
    found = requested(str(file), ["train.batch=8,16"])
    assert found.decide == {"target": 1, "budget": {"bytes": "5 MB"}}
    # Each listed candidate with each point of the axes.
    assert found.grid.points == [
        {"method": "fedavg", "train.lr": 0.05, "train.batch": 8},
        {"method": "fedavg", "train.lr": 0.05, "train.batch": 16},
        {"codec.up": "none", "train.batch": 8},
        {"codec.up": "none", "train.batch": 16},
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("targte = 0.9", "which.toml: unknown key decide.targte, did you mean 'decide.target'?"),
        ("target = true", "which.toml: decide.target = true: must be a number"),
        ('budget = "5 MB"', 'which.toml: decide.budget = "5 MB": must be a table'),
        ("candidates = [1]", "which.toml: decide.candidates = [1]: must be text"),
    ],
)
def test_a_table_that_no_decision_has_is_refused(table: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "which.toml"
    file.write_text(f'scenario = "digits"\n[decide]\n{table}\n')
    with pytest.raises(ScenarioError) as refused:
        requested(str(file), [])
    assert str(refused.value) == message


"""Sweep of the example -> its runs with one seed"""


def test_rows_may_be_listed_and_are_combined_with_the_grid(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'scenario = "digits"\njudge = "validation"\nat = { bytes = ["2 MB", 1e6] }\n'
        'rows = [{ method = "fedavg" }, { method = "fedprox", method_options.mu = 0.5 }]\n'
        "[grid]\ntrain.lr = [0.05, 0.1]\n[overrides]\ndata.validation = 0.2\n"
    )
    asked = requested(str(file), [])
    planned = plan(asked.grid, 1, at=asked.at, judge=asked.judge or "test")
    assert [row.name for row in planned.rows] == [
        "method=fedavg train.lr=0.05",
        "method=fedavg train.lr=0.1",
        "method=fedprox method_options.mu=0.5 train.lr=0.05",
        "method=fedprox method_options.mu=0.5 train.lr=0.1",
    ]
    assert (planned.at, planned.judge) == ({"bytes": [1e6, 2e6]}, "validation")
    assert {run.loaded.scenario.eval.split for run in planned.run_set.runs} == {"validation"}
