"""``fedbr check --plugin``: what holds of a plug-in's contract, by real runs."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.studies import conformance


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """(exit code, {finding: (holds, detail)})"""
    code = main.run_command(["check", "--plugin", *words, "--json"])
    result = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: (finding["holds"], finding["detail"]) for finding in result["findings"]}
    assert result["holds"] == all(holds for holds, _ in findings.values())
    return code, findings


@pytest.mark.usefixtures("warm_workers")
def test_a_client_side_that_depends_on_its_process_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = checked(capsys, "tests.plugins.broken:UNSEEDED")
    assert code == 3
    assert findings["1 worker"][0]
    assert findings["3 workers"] == (False, "round 1 differs")
    assert findings["resume"] == (False, "round 1 differs if the run is stopped after each round")


@pytest.mark.usefixtures("trained_here")
@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("METHOD", "method_options"),
        ("CORRECTION", "method_options"),
        ("SERVER", "server_options"),
        ("SELECTION", "rounds.selection_options"),
        ("POLICY", "rounds.policy_options"),
        ("SCHEDULE", "train.lr_schedule_options"),
        ("PARTITION", "data.partition.options"),
        ("METRIC", "eval.metric_options.optioned"),
        ("CODEC", "codec.up"),
    ],
)
def test_the_options_of_every_plug_in_point_may_be_given(
    row: str, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[object] = []

    def examine(examination: conformance.Examination, folder: Path) -> None:
        tables: Any = load(conformance.BASE, examination.overrides).scenario.model_dump()
        table: Any = reduce(lambda table, name: table[name], key.split("."), tables)
        given.append((table[0] if row == "CODEC" else table)["amount"])  # a chain of one stage

    monkeypatch.setattr(conformance.Examination, "examine", examine)
    assert main.run_command(["check", "--plugin", f"tests.plugins.optioned:{row}", f"{key}.amount=0.25"]) == 0
    assert given == [0.25]
    if row != "PARTITION":  # whose options are the function's own affair
        assert main.run_command(["check", "--plugin", f"tests.plugins.optioned:{row}", f"{key}.amuont=0.25"]) == 2
        unknown = f"unknown key {key}.amuont, did you mean '{key}.amount'?"
        message = "codec.up: optioned: no option 'amuont'; did you mean 'amount'?" if row == "CODEC" else unknown
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("trained_here")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("UNPRICED", "but its LaterPayload foresees {'model': {'conv1': 160, "),
        ("UNFORESEEN", "but the spec of tests.plugins.broken:UNFORESEEN predicts 8.63601e+07"),
    ],
)
def test_other_bytes_or_flops_than_priced_are_found(
    name: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, findings = checked(capsys, f"tests.plugins.broken:{name}")
    assert (code, list(findings)) == (3, ["1 worker"])
    holds, detail = findings["1 worker"]
    assert not holds
    assert problem in detail


@pytest.mark.usefixtures("trained_here")
def test_a_codec_is_tried_by_its_frames_before_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = checked(capsys, "tests.plugins.optioned:CODEC", "rounds.max=2")
    assert code == 0
    assert list(findings)[:4] == ["frames", "malformed", "mean", "1 worker"]
    # sign: a mean magnitude and a bit a number, of 3,112 of them
    assert findings["frames"] == (True, "9 vectors come back finite, and the same; 393 bytes for 3,112 numbers")
    assert findings["absence"] == (True, "states of 5 clients change with visits alone"), "residuals"
    code, findings = checked(capsys, "tests.scenarios.studies.test_codec_conformance:DISHONEST")
    assert (code, list(findings)) == (3, ["frames", "malformed", "mean"])
