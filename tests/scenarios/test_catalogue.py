"""``fedbr list`` and ``fedbr doctor``: what can be named, and what this machine has."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from edge.config import PartitionConfig
from scenarios import catalogue, cli, doctor
from scenarios.load import ScenarioError
from scenarios.schema import Partition


def named(what: str, name: str) -> catalogue.Row:
    return next(row for row in catalogue.rows(what) if row["name"] == name)


def test_a_method_is_listed_with_its_options_defaults_and_meanings() -> None:
    row = named("methods", "fedbr")

    assert row["keeps"] == "All but the last block, which arrives in every visit."
    assert row["weights"] == "uniform"
    assert row["options"][1] == {
        "name": "period",
        "default": 3,
        "meaning": "tau: every period + 1 rounds the whole model goes down; 0 sends it in every round.",
    }
    assert all(option["meaning"] for option in row["options"])


def test_clients_of_fedavg_keep_nothing() -> None:
    assert named("methods", "fedavg")["keeps"] == "nothing"


def test_a_correction_says_what_it_joins() -> None:
    assert named("methods", "fedprox")["joins"] == "any objective, as in fedmlb+fedprox"


def test_every_kind_of_partition_is_listed() -> None:
    kinds = get_args(Partition.model_fields["kind"].annotation)

    assert [row["name"] for row in catalogue.rows("partitions")] == list(kinds)
    assert kinds == get_args(get_type_hints(PartitionConfig)["kind"])
    for row in catalogue.rows("partitions"):
        assert {key.rpartition(".")[2] for key in row["options"]} <= set(Partition.model_fields)


def test_assumed_keeps_the_rows_that_rest_on_an_assumption() -> None:
    every, assumed = catalogue.rows("devices"), catalogue.rows("devices", assumed=True)

    assert assumed == [row for row in every if row["assumed"]]
    assert 0 < len(assumed) < len(every)


def test_an_unknown_word_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="list 'device': did you mean 'devices'"):
        catalogue.rows("device")


@pytest.mark.parametrize("what", catalogue.KINDS)
def test_each_list_is_shown_to_people_and_as_json(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.guarded(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    stream = io.StringIO()
    catalogue.show(what, catalogue.rows(what), stream)
    lines = stream.getvalue().splitlines()

    assert [row["name"] for row in rows] == [line.split("  ")[0] for line in lines if line and line[0] != " "]
    assert what == "scenarios" or max(map(len, lines)) <= 80


def test_the_doctor_says_what_a_run_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.guarded(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["cores"] >= 1
    assert found["versions"]["torch"][0].isdigit()
    assert found["data"]["digits"] is not None
    assert found["sockets"]["problem"] is None
    assert {name for name, _ in doctor.rows(found)} >= {"cores", "memory", "GPUs", "free disk here", "open files"}


def test_a_folder_too_deep_for_a_socket_is_a_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()

    assert doctor.socket_problem(deep) == "its path is too long for a socket; set TMPDIR to a shorter folder"


def test_a_cache_that_is_not_there_weighs_nothing(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"12345")

    assert doctor.folder_nbytes(tmp_path) == 5
    assert doctor.folder_nbytes(tmp_path / "absent") == 0
