"""A table is made of values with one unit and precision per column; each medium has the same texts and best values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds import amounts
from edge.protocol.better import HIGHER, LOWER
from scenarios.report import readings, tables, terminal
from scenarios.report.columns import BYTES, COUNT, FLOPS, PERCENT, POINTS, SECONDS, Quantity, cells
from scenarios.report.html import ExperimentAnswer, write_experiment
from scenarios.report.readings import Reading, until, within
from scenarios.report.tables import Number, Table, TableColumn, csv_text
from scenarios.run.progress import ProgressPoint, Trail

COSTS = Table(
    "costs",
    [
        TableColumn("method"),
        TableColumn("accuracy", PERCENT, HIGHER),
        TableColumn("down", BYTES, LOWER, over="bytes"),
        TableColumn("up", BYTES, over="bytes", unit_of="down"),
        TableColumn("ended by", is_left=True),
    ],
    [
        ["fedavg", Number(0.77221, 0.0125), 2e6, 500_000.0, "rounds"],
        ["a|b", Number(0.77223, 0.0130), 1.5e6, None, "budget & time"],
        ["fedbr", Number(None, missing="1 of 2"), 1e6, 20.0],
    ],
    ["a_note"],
)


def test_a_column_has_one_unit_and_precision_which_another_may_share() -> None:
    assert COSTS.texts == [
        ["fedavg", "77.2 ± 1.2 %", "2.0 MB", "0.5 MB", "rounds"],
        ["a|b", "77.2 ± 1.3 %", "1.5 MB", "–", "budget & time"],
        ["fedbr", "1 of 2", "1.0 MB", "< 0.1 MB", ""],
    ]
    assert COSTS.spans == [("", 1), ("", 1), ("bytes", 2), ("", 1)]


def test_the_best_of_a_column_is_marked_and_so_is_a_cell_that_reads_as_it() -> None:
    table = Table(
        "", [TableColumn(""), TableColumn("accuracy", PERCENT, HIGHER)], [["a", 0.77221], ["b", 0.77223], ["c", 0.5]]
    )
    assert [row[1] for row in table.cells] == [("77.22 %", True), ("77.22 %", True), ("50.00 %", False)]
    alone = replace(table, rows=table.rows[:1])
    assert alone.cells == [[("a", False), ("77.22 %", False)]]
    assert [best for *_, (_, best) in (row[:3] for row in COSTS.cells)] == [False, False, True]


def test_markdown_latex_and_pages_have_the_same_texts(tmp_path: Path) -> None:
    assert tables.markdown([COSTS]).splitlines() == [
        "## Costs",
        "",
        "| method | accuracy | down | up | ended by |",
        "| --- | ---: | ---: | ---: | --- |",
        "| fedavg | 77.2 ± 1.2 % | 2.0 MB | 0.5 MB | rounds |",
        "| a\\|b | **77.2 ± 1.3 %** | 1.5 MB | – | budget & time |",
        "| fedbr | 1 of 2 | **1.0 MB** | < 0.1 MB |  |",
        "",
        "a_note",
    ]
    assert tables.latex([COSTS]).splitlines() == [
        r"\begin{table*}",
        r"\centering",
        r"\caption{costs. a\_note}",
        r"\label{tab:costs}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lrrrl}",
        r"\toprule",
        r" &  & \multicolumn{2}{c}{bytes} &  \\",
        r"\cmidrule(lr){3-4}",
        r"method & accuracy (\%) & down (MB) & up (MB) & ended by \\",
        r"\midrule",
        r"fedavg & 77.2 $\pm$ 1.2 & 2.0 & 0.5 & rounds \\",
        r"a$|$b & \textbf{77.2 $\pm$ 1.3} & 1.5 & – & budget \& time \\",
        r"fedbr & 1 of 2 & \textbf{1.0} & $<$ 0.1 &  \\",
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
    ]
    text = write_experiment(tmp_path / "study.html", "Study", ExperimentAnswer("Lead.", tables=[COSTS]), []).read_text()
    assert '<th colspan="2" class="span">bytes</th>' in text
    assert '<td>a|b</td><td class="best">77.2 ±\u00a01.3\u00a0%</td><td>1.5\u00a0MB</td><td>–</td>' in text
    assert '<td class="best">1.0\u00a0MB</td>' in text
    assert '<p class="note">a_note</p>' in text


def test_csv_has_numbers_in_si_units_and_the_ends_of_intervals() -> None:
    table = Table(
        "",
        [TableColumn("method"), TableColumn("accuracy, final", PERCENT, key="accuracy"), TableColumn("time", SECONDS)],
        [["fedavg", Number(0.75, 0.25, 0.125), 90.0], ["=fedbr", Number(0.5), None]],
    )
    assert tables.numbers(table).splitlines() == [
        "method,accuracy_mean,accuracy_deviation,accuracy_low,accuracy_high,time",
        "fedavg,0.75,0.125,0.5,1.0,90.0",
        "'=fedbr,0.5,,,,",
    ]


@pytest.mark.parametrize(
    ("width", "header"),
    [(80, "method      accuracy    down        up  ended by"), (45, "method      accuracy    down        up")],
)
def test_a_narrow_terminal_is_printed_without_dispensable_columns(
    width: int, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [*COSTS.columns[:4], replace(COSTS.columns[4], dispensable=1)]
    stream = io.StringIO()
    terminal.print_table(replace(COSTS, columns=columns), stream=stream)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines[1:3] == ["costs", header]
    assert lines[-1] == "a_note"


# --- spreadsheets: a name is text there, whatever it begins with -----------------------------------------------------


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\tx", "\r=1"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(text: str) -> None:
    table = csv_text(["run", "loss"], [[text, -0.5], ["plain=1", None]])
    assert list(csv.reader(StringIO(table, newline=""))) == [["run", "loss"], [f"'{text}", "-0.5"], ["plain=1", ""]]


# --- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantity", "values", "texts"),
    [
        (SECONDS, [53.7, 83.4], ["53.7 s", "83.4 s"]),
        (SECONDS, [0.0, 83.4, None], ["0.00 min", "1.39 min", "–"]),
        (BYTES, [7.8e6, 8.64e6], ["7.80 MB", "8.64 MB"]),
        (BYTES, [5e5, 1e6, 2e6], ["0.5 MB", "1.0 MB", "2.0 MB"]),
        (BYTES, [20, 5e6, 44.88e6], ["< 0.01 MB", "5.00 MB", "44.88 MB"]),
        (SECONDS, [2e-6, 3600.0], ["< 1 s", "3,600 s"]),
        (FLOPS, [2.5e15, 3e12], ["2,500 TFLOP", "3 TFLOP"]),
        (PERCENT, [0.7713, 0.7, None], ["77.13 %", "70.00 %", "–"]),
        (COUNT, [12, 1400], ["12", "1,400"]),
        (POINTS, [-0.031, -1e-9], ["-3.10 pp", "0.00 pp"]),
        (SECONDS, [], []),
        (SECONDS, [None], ["–"]),
    ],
)
def test_amounts_of_a_column_have_the_unit_of_their_median_and_equal_decimals(
    quantity: Quantity, values: Sequence[float | None], texts: list[str]
) -> None:
    assert cells(quantity, values) == texts


@pytest.mark.parametrize(
    ("quantity", "values", "halves", "texts"),
    [
        (COUNT, [20.333], [3.795], ["20.3 ± 3.8"]),
        (BYTES, [509e3], [1e6], ["509 (0 to 1,509) kB"]),
        (SECONDS, [6.67, 5.5], [2.68, 5.1], ["6.7 ± 2.7 s", "5.5 ± 5.1 s"]),
        (PERCENT, [0.4833], [1.3059], ["48 (0 to 100) %"]),
        (PERCENT, [0.8713, 0.8898, None], [0.0695, 0.0174, None], ["87.1 ± 7.0 %", "89.0 ± 1.7 %", "–"]),
        # A group of one seed has no interval, and the decimals of the others'.
        (PERCENT, [0.8713, 0.8898], [0.0037, None], ["87.13 ± 0.37 %", "88.98 %"]),
        # The interval of equal seeds is rounding.
        (PERCENT, [0.814286, 0.830357], [1e-15, 0.113], ["81 ± 0 %", "83 ± 11 %"]),
    ],
)
def test_a_mean_is_as_precise_as_its_interval(
    quantity: Quantity, values: Sequence[float | None], halves: Sequence[float | None], texts: list[str]
) -> None:
    assert cells(quantity, values, halves) == texts


# --- readings ---------------------------------------------------------------------------------------------------------


def trail(*accuracies: float | None) -> Trail:
    """A run with 10 s, 1 kB, 1.2 kB nominal and 2 J to a round."""
    best = [max([0.0, *filter(None, accuracies[: index + 1])]) for index in range(len(accuracies))]
    return Trail(
        ProgressPoint(count, 10.0 * count, 1000 * count, 1200.0 * count, accuracy, best[count - 1], 2.0 * count)
        for count, accuracy in enumerate(accuracies, start=1)
    )


RUN = trail(0.2, 0.6, None, 0.5)


@pytest.mark.parametrize(
    ("reading", "heading", "value"),
    [
        (readings.ACCURACY, "accuracy, final", 0.5),
        (readings.BEST, "accuracy, best", 0.6),
        (readings.total_of(amounts.VIRTUAL_SECONDS), "virtual time", 40.0),
        (until(amounts.BYTES, 0.55), "bytes to 55 %", 2000.0),
        (until(amounts.ENERGY, 0.1), "energy to 10 %", 2.0),
        (until(amounts.ROUNDS, 0.7), "rounds to 70 %", None),
        (within(amounts.BYTES, 3500.0), "accuracy at 3.5 kB", 0.6),
        (within(amounts.VIRTUAL_SECONDS, 60.0), "accuracy at 1 min", 0.5),
        (within(amounts.ROUNDS, 1.0), "accuracy at 1 rounds", 0.2),
        (within(amounts.BYTES, 10.0), "accuracy at 10 B", None),
    ],
)
def test_a_reading_is_a_number_of_a_run(reading: Reading[Any], heading: str, value: float | None) -> None:
    assert (reading.heading, reading.value(RUN)) == (heading, value)
