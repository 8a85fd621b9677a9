"""The difference of two runs: keys, results, and the first round whose rows are not the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli.main import run_command
from scenarios.studies.run_difference import difference, verdict
from tests.scenarios.in_this_process import pool_in_this_process, run

__all__ = ["pool_in_this_process"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds."""
    return run(tmp_path_factory.mktemp("out"), "rounds.max=2")


def test_a_repeated_run_is_the_same_to_the_bit(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = run(tmp_path, "rounds.max=2")
    found = difference(str(recorded), str(again))
    assert (found.same, found.keys, found.rounds, found.first_round, found.first_model) == (
        True,
        {},
        (2, 2),
        None,
        None,
    )
    assert verdict(found) == "the scenarios are the same; the same result to the bit in all 2 rounds"
    assert run_command(["diff", str(recorded), str(again)]) == 0
    assert "accuracy, final" in capsys.readouterr().out


def test_another_fleet_has_other_times_and_the_same_models(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run(tmp_path, "rounds.max=2", "fleet.seed=1", "fleet.server.up=1 Mbit/s")
    found = difference(str(recorded), str(other))
    assert list(found.keys) == ["fleet.seed", "fleet.server.up"]
    assert (found.keys["fleet.seed"], found.first_round, found.first_model) == ((0, 1), 1, None)
    assert "end_s" in found.columns and "model_sha256" not in found.columns
    assert found.results["bytes_up"][0] == found.results["bytes_up"][1]
    assert found.results["virtual_seconds"][0] != found.results["virtual_seconds"][1]
    assert run_command(["diff", str(recorded), str(other), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["same"], printed["first_round"], printed["keys"]["fleet.seed"]) == (False, 1, [0, 1])


def test_files_differ_by_their_content_and_not_by_their_names(tmp_path: Path) -> None:
    link = tmp_path / "t.csv"

    def run_of(bits_per_second: int) -> str:
        link.write_text(f"seconds,bits_per_second\n0,{bits_per_second}\n")
        return str(run(tmp_path, "rounds.max=1", "fleet.bandwidth.kind=trace", f"fleet.bandwidth.file={link}"))

    slow, fast = run_of(1_000_000), run_of(9_000_000)
    link.rename(tmp_path / "u.csv")
    link = tmp_path / "u.csv"
    same = run_of(9_000_000)
    assert (difference(fast, same).keys, difference(fast, same).same) == ({}, True)
    ((key, values),) = difference(slow, fast).keys.items()
    assert (key, values[0]) == ("fleet.bandwidth.file", f"{tmp_path}/t.csv (f7d0d21f)")


def test_other_training_differs_in_its_models(recorded: Path, tmp_path: Path) -> None:
    found = difference(str(recorded), str(run(tmp_path, "rounds.max=2", "train.lr=0.05")))
    assert (list(found.keys), found.first_round, found.first_model) == (["train.lr"], 1, 1)
    assert verdict(found) == (
        "the scenarios differ in train.lr; the rounds differ from round 1 on "
        "(accuracy, test_loss, train_loss, model_sha256), the models from round 1 on"
    )


def test_scenarios_are_compared_by_their_keys_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "digits"\ntrain.lr = 0.25\n')
    assert run_command(["diff", "digits", str(mine)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the scenarios differ in train.lr"
    mine.write_text('extends = "digits"\n[fleet.transport]\nreconnect = "5 s"\n')
    assert run_command(["diff", "digits", str(mine), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["keys"] == {"fleet.transport.reconnect": [None, "5 s"]}
    assert run_command(["diff", "digits", "digits"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the scenarios are the same"
