"""Errors for the user: fields for programs, and one text for the command line and one for Python."""

from __future__ import annotations

import pytest

from scenarios.config.errors import COMMAND_LINE, PYTHON, Argument, ReportError, ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all


@pytest.mark.parametrize(
    ("words", "key", "why", "choice"),
    [
        ("train.lrr=1", "train.lrr", "unknown key train.lrr, did you mean 'train.lr'?", "train.lr"),
        (
            "train.precision=fp8",
            "train.precision",
            "train.precision = 'fp8': must be one of fp32, bf16, tf32",
            "bf16",
        ),
        ("server_options.lrr=1", "server_options.lrr", "unknown key server_options.lrr (known here: none)", None),
        ("data.clients=0", "data.clients", "data.clients = 0: input should be greater than or equal to 1", None),
    ],
)
def test_an_invalid_value_is_refused_with_key_reason_choices_and_source(
    words: str, key: str, why: str, choice: str | None
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load("digits", parse_all([words]))
    error = caught.value
    assert (error.key, error.why, error.source) == (key, why, COMMAND_LINE)
    assert str(error) == f"command line: {why}"
    assert (choice in error.choices) == (choice is not None)
    with pytest.raises(ScenarioError) as caught:
        load("digits", parse_all([words]), origin=PYTHON)
    assert (str(caught.value), caught.value.source) == (why, PYTHON)


def test_whoever_shows_an_error_words_its_arguments() -> None:
    error = ScenarioError(
        Argument("targets", "2", option="target"), ": is above 1; leave out ", Argument("run_id"), source=COMMAND_LINE
    )
    assert str(error) == "command line: --target 2: is above 1; leave out --run-id"
    error.word_for_python()
    assert (str(error), error.source) == ("targets = 2: is above 1; leave out run_id", PYTHON)
    report = ReportError("make it again with ", Argument("run_id"))
    report.word_for_python()
    assert (type(report), str(report)) == (ReportError, "make it again with run_id")
