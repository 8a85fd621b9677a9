"""Tables on narrow terminals: whole columns go, and no number is cut or loses its unit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.report import terminal
from scenarios.report.columns import column_groups, fitting, widths
from scenarios.report.live import LiveTable
from scenarios.report.tables import of_texts


def test_columns_that_do_not_fit_stand_in_a_table_below_with_the_first_again() -> None:
    assert widths([["a", "bcd"], ["ef\nghij", ""]]) == [4, 3]
    assert column_groups([5, 10, 10, 10], width=31, gap=2) == [[0, 1, 2], [0, 3]]
    assert column_groups([5, 10, 10, 10], width=41, gap=2) == [[0, 1, 2, 3]]
    assert column_groups([5, 50, 10], width=20, gap=2) == [[0, 1], [0, 2]]
    assert column_groups([5], width=2, gap=2) == [[0]]


def test_the_least_needed_columns_go_first_and_no_more_than_must() -> None:
    assert fitting([5, 5, 5], width=17, gap=1, dispensable=(2, 1)) == [0, 1, 2]
    assert fitting([5, 5, 5], width=16, gap=1, dispensable=(1, 2)) == [0, 2]
    assert fitting([5, 5, 5], width=3, gap=1, dispensable=(1, 2)) == [0]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, "round accuracy virtual down up clients wall"),
        (40, "round accuracy virtual down wall"),
        (25, "round accuracy virtual"),
    ],
)
def test_the_live_table_keeps_units_on_narrow_terminals(
    width: int, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    show = LiveTable(["fedbr"], stream=stream, quiet=True)
    show.on_start(Path(), load("digits", parsed(["rounds.max=40"]), method="fedbr"))
    spent: dict[str, Any] = dict.fromkeys(RoundRow._fields, 0) | {"busy_s": 450.0, "model_sha256": ""}
    spent |= {"end_s": 222.6, "participants": 5, "accuracy": 0.75, "bottleneck": "server link"}
    show.on_round(RoundFinished(RoundRow(**spent), 1, 1_230_000, 4_560_000, {1: 2, 3: 3}))
    console = show._console
    with console.capture() as capture:
        console.print(show.render())
    lines = capture.get().splitlines()
    assert "…" not in capture.get()
    assert max(map(len, lines)) <= width
    assert lines[2].split() == columns.split()
    assert "3.71 min" in lines[3]


def test_a_table_of_runs_is_printed_in_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    rows = [["fedavg", "123.4 MB", "12.5 min", "450 kJ"], ["fedbr", "23.4 MB", "2.5 min", "45 kJ"]]
    terminal.print_table(of_texts("costs", ["method", "bytes, real", "virtual time", "energy"], rows), stream=stream)
    lines = [line.split("  ") for line in stream.getvalue().splitlines()]
    assert [line[0].strip() for line in lines if line[0].strip()] == ["costs", "method", "fedavg", "fedbr"] * 2
    assert "450 kJ" in stream.getvalue()
    assert "…" not in stream.getvalue()
