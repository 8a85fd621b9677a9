"""The log of a worker is read on terminals; what it quotes may come from another machine."""

from __future__ import annotations

import pytest

from edge.runtime.log import log, log_error


def test_control_characters_are_written_out_and_lines_stay(capsys: pytest.CaptureFixture[str]) -> None:
    log("one\ntwo \x1b[2J\r")
    assert capsys.readouterr().err == "one\ntwo \\x1b[2J\\r\n"


def test_a_traceback_that_quotes_control_characters_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("a\x07b")
    except ValueError:
        log_error()
    assert capsys.readouterr().err.endswith("\nValueError: a\\x07b\n")
