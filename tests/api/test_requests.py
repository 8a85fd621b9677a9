"""One class per command: its fields are the options of the command and the arguments of the function in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import fedbr
from scenarios.api.requests import (
    CompareRequest,
    DiffRequest,
    MachineRequest,
    MeasureRequest,
)
from scenarios.cli import check, folders, recorded
from scenarios.cli.main import as_command
from scenarios.config.errors import ScenarioError
from tests import python_stub
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

CALLS = (
    (fedbr.check, check.check, MachineRequest),
    (fedbr.diff, folders.diff, DiffRequest),
    (fedbr.measure, recorded.replay, MeasureRequest),
)
BRIEF: dict[str, Any] = {"rounds.max": 1, "train.local_steps": 1, "data.clients": 6}


@pytest.mark.parametrize(("function", "command", "request_class"), CALLS, ids=[each[0].__name__ for each in CALLS])
def test_python_and_the_command_line_take_the_same(
    function: Callable[..., Any], command: Callable[..., None], request_class: type[MachineRequest]
) -> None:
    arguments, options = (inspect.signature(each).parameters for each in (function, as_command(command)))
    for field in fields(request_class):
        default = None if field.default is MISSING else field.default
        assert field.name in options, field.name
        given = arguments[field.name].default
        assert (Path(given) if isinstance(default, Path) else given) == default, field.name


def test_stubs_have_what_the_functions_take() -> None:
    for file, text in python_stub.texts().items():
        assert file.read_text() == text, "run python -m tests.python_stub"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "--workers 0: must be an integer of at least 1"),
        ({"workers": True}, "--workers True: must be an integer of at least 1"),
        ({"device": 3}, "--device 3: must be text"),
        ({"seeds": 0}, "--seeds 0: must be an integer of at least 1"),
        ({"parallel": 1.5}, "--parallel 1.5: must be an integer of at least 1"),
        ({"seed": -1}, "--seed -1: must be an integer of at least 0"),
        ({"time_limit": 3600}, "--for 3600: must be text"),
    ],
)
def test_a_request_refuses_what_its_argument_cannot_have(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        CompareRequest(**given)
    assert str(refused.value) == message
    refused.value.word_for_python()
    name = next(iter(given))
    assert str(refused.value) == f"{name} = {given[name]!r}{message[message.index(': ') :]}"


@pytest.mark.usefixtures("pool_in_this_process")
def test_amounts_settings_and_measures_are_had_from_python(tmp_path: Path) -> None:
    brief: dict[str, Any] = {"workers": 1, "out": tmp_path, **BRIEF}
    at: dict[str, Any] = {"bytes": [1e5, "50 kB"], "seconds": "1 h"}
    spent = fedbr.sweep("digits", {"method": ["fedavg", "fedprox"]}, at=at, seeds=1, **brief)
    assert [run.summary["method"] for run in spent] == ["fedavg", "fedprox"]
    read = {name: [each["amount"] for each in values] for name, values in spent.result["at"].items()}
    assert read == {"bytes": [50_000, 100_000], "seconds": [3600]}
    brief |= {"seeds": 1, "data": {"validation": 0.2}}
    tuned = fedbr.sweep("digits", {"method": ["fedavg"], "train.lr": [0.05, 0.1]}, judge="validation", **brief)
    assert [run.scenario["train"]["lr"] for run in tuned] == [0.05, 0.1]
    measured = fedbr.measure(spent[0], ["accuracy"], clients="none", workers=1)
    assert measured["models"]["global"]["accuracy"] == pytest.approx(spent[0].accuracy)


def test_names_and_keys_are_looked_up_from_python() -> None:
    assert "fedadam" in [row["name"] for row in fedbr.list("servers")]
    assert {"name": "devices", "key": "fleet.devices"} in fedbr.list()
    assert (fedbr.explain("train.lr")["kind"], fedbr.explain("sync")["kind"]) == ("key", "row")
    with pytest.raises(ScenarioError, match=r"did you mean 'train\.lr'"):
        fedbr.explain("train.lrr")
