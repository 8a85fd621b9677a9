"""Logs: the end of what is printed, however much was printed before, and no control characters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.runtime.bounded_log import TAIL_NBYTES, BoundedLog
from edge.runtime.log import log


def copied(path: Path, *texts: bytes, most: int) -> bytes:
    """A log after these texts were printed."""
    output, printed = os.pipe()
    log = BoundedLog(output, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), most)
    for text in texts:
        os.write(printed, text)
        assert log.copy()
        assert not log.copy()
    os.close(printed)
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([b"one\n", b"two\n"], b"one\ntwo\n"),
        ([b"0123456789"], b"0123456789"),
        ([b"0123456789", b"abc"], b"0123456789\n[0 bytes are left out: a log has at most 8000000]\nabc"),
        ([b"01234567", b"89abc"], b"0123456789\n[0 bytes are left out: a log has at most 8000000]\nabc"),
    ],
)
def test_a_log_has_the_beginning_and_the_end(tmp_path: Path, texts: list[bytes], expected: bytes) -> None:
    assert copied(tmp_path / "log", *texts, most=10) == expected


def test_the_middle_is_left_out_and_an_old_log_has_only_the_room_that_is_left(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before")
    text = copied(tmp_path / "log", b"0123456789", b"a" * 50_000, b"b" * 50_000, most=10)
    assert text.startswith(b"before0123\n[%d bytes are left out" % (6 + 100_000 - TAIL_NBYTES))
    assert text.endswith(b"]\n" + b"a" * (TAIL_NBYTES - 50_000) + b"b" * 50_000)


# --- control characters -----------------------------------------------------------------------------------------------


def test_control_characters_are_written_out_and_lines_stay(capsys: pytest.CaptureFixture[str]) -> None:
    log("one\ntwo \x1b[2J\r")
    assert capsys.readouterr().err == "one\ntwo \\x1b[2J\\r\n"
