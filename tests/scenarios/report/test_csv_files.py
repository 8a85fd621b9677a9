"""Tables for spreadsheets: what a run's or method's name holds is text there, whatever it begins with."""

from __future__ import annotations

import csv
from io import StringIO

import numpy as np
import pytest

from scenarios.report import bands
from scenarios.report.csv_files import csv_text


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\tx", "\r=1"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(text: str) -> None:
    table = csv_text(["run", "loss"], [[text, -0.5], ["plain=1", None]])
    assert list(csv.reader(StringIO(table, newline=""))) == [["run", "loss"], [f"'{text}", "-0.5"], ["plain=1", ""]]


def test_a_band_of_a_method_with_such_a_name_is_written_so_too() -> None:
    band = bands.Band("=x", "bytes", np.array([0.0, 1.0]), np.array([np.nan, 0.5]), np.array([np.nan, 0.0]))
    assert bands.csv([band]).splitlines() == [
        "method,kind,amount,mean,deviation",
        "'=x,bytes,0.0,,",
        "'=x,bytes,1.0,0.5,0.0",
    ]
