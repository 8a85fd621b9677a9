"""Experiments on a data set of one's own, whose module lies in the current folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.cli import main
from tests.scenarios.in_this_process import pool_in_this_process

__all__ = ["pool_in_this_process"]

MY_SET = """
from pathlib import Path

import numpy as np

from edge.data.registry import DataSet, Decoded, Split

CLOUDS = DataSet(
    name="clouds", title="Four clouds", classes=4, shape=(6,), stored=(6,), profile="plain", source="made up",
    reader="my_clouds", kind="features",
)


def files(places):
    return (Path(__file__),)


def read(row, files):
    rng = np.random.default_rng(0)
    y = np.arange(400) % row.classes
    x = (rng.normal(size=(row.classes, 6))[y] * 3 + rng.normal(size=(400, 6))).astype(np.float32)
    return Decoded(Split(x[:320], y[:320]), Split(x[320:], y[320:]), "")
"""
WORDS = ["digits", "data.name=my_clouds:CLOUDS", "model.name=softmax", "data.clients=4", "rounds.participants=2"]
WORDS += ["rounds.max=2", "train.local_steps=2", "method=fedavg,fedprox"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_clouds.py").write_text(MY_SET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield tmp_path
    sys.modules.pop("my_clouds", None)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (["decide"], ["--target", "0.5", "--seeds", "2", "--draws", "2"]),
        (["sweep"], ["data.validation=0.2", "--seeds", "1", "--judge", "validation", "--at", "bytes=100 kB"]),
    ],
    ids=["decide", "judged"],
)
def test_every_experiment_answers_on_data_of_the_current_folder(
    folder: Path, command: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run_command([*command, *WORDS, *more, "--out", "out", "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out)


def test_runs_of_a_sweep_whose_modules_have_changed_since_are_not_taken_for_new_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", *WORDS, "--seeds", "1", "--out", "out", "--run-id", "mine"]
    assert main.run_command(command) == 0
    (folder / "my_clouds.py").write_text(MY_SET.replace("* 3 +", "* 0.3 +"))
    capsys.readouterr()
    assert main.run_command(command) == 2
    error = capsys.readouterr().err
    assert f"out/digits/mine/fedavg-seed0 was made with other modules: {folder}/my_clouds.py has changed" in error
    assert error.endswith("choose another --run-id\n")
