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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sead = 1", "mine.toml: unknown key sead, did you mean 'seeds'?"),
        ("seeds = 0", "mine.toml: seeds = 0: must be an integer above 0"),
        ("parallel = true", "mine.toml: parallel = true: must be an integer above 0"),
        ("targets = 0.9", "mine.toml: targets = 0.9: must be a list"),
        ('targets = ["a"]', 'mine.toml: targets = ["a"]: must be a list of accuracies, such as [0.9]'),
        ("grid = 1", "mine.toml: grid = 1: must be a table"),
        ("[grid]\n[zip]", "mine.toml: grid, zip: name one of the two"),
        ("[grid]\ntrain.lr = 0.1", "mine.toml: train.lr = 0.1: must be a list; one value goes to [overrides]"),
        ("[grid]\ntrain.lr = [1, 1.0]", "mine.toml: train.lr = 1: is named twice; name each value once"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        requested(written(tmp_path, f'scenario = "digits"\n{text}\n'), [])
    assert str(caught.value) == said
