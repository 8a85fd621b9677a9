"""Rounds that were measured on real devices come from a file of anyone's: what is no such file is refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.experiment.measured import read


def endless(file: Path) -> None:
    file.write_text("round,seconds\n")
    os.truncate(file, 10**12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, ": is a device or a pipe, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), ": is a device or a pipe, not a file"),
        (lambda file: None, ": cannot be read: No such file or directory"),
        (endless, ": is larger than 64,000,000 bytes"),
        (lambda file: file.write_bytes(b"\xff"), ": is no CSV file: 'utf-8' codec can't decode byte 0xff"),
        (lambda file: file.write_text("round,second\n"), ": has no column 'seconds'; did you mean 'second'?"),
        (
            lambda file: file.write_text("round,seconds\n1,1e300\n"),
            ", line 2: round '1', seconds '1e300': rounds count",
        ),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(make: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    make(file)
    with pytest.raises(ScenarioError) as caught:
        read(file)
    assert str(caught.value).startswith(f"--measured {file}{said}")
