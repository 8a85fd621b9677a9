"""The page around figures and tables: folds, colours and what it says of other machines."""

from __future__ import annotations

from pathlib import Path

from scenarios.report.html import ExperimentAnswer, render, write_experiment
from scenarios.report.tables import of_texts


def page(tmp_path: Path, *lengths: int) -> str:
    """An experiment without runs whose tables have these numbers of rows."""
    tables = [of_texts(f"table {index}", ["method", "x"], [["fedavg", "1"]] * n) for index, n in enumerate(lengths)]
    answer = ExperimentAnswer("Lead.", {"seeds": "0"}, tables=tables)
    return write_experiment(tmp_path / "study.html", "Study", answer, []).read_text()


def test_a_table_of_more_than_twelve_rows_is_folded_unless_it_is_the_first(tmp_path: Path) -> None:
    text = page(tmp_path, 13, 12, 13)
    assert text.count('<details class="fold">') == 1
    assert text.index("<h2>table 2</h2>") < text.index('<details class="fold">') < text.index("(13 rows)")


def test_only_screens_are_dark_as_the_system_or_the_reader_says(tmp_path: Path) -> None:
    text = page(tmp_path)
    dark = [line for line in text.splitlines() if "color-scheme: dark;" in line]
    assert [line.partition("{")[0].strip() for line in dark] == [
        "@media screen and (prefers-color-scheme: dark)",
        "@media screen",
    ]
    assert ':root:not([data-theme="light"])' in dark[0]
    assert ':root[data-theme="dark"]' in dark[1]


def test_the_footer_promises_equal_records_on_one_kind_of_processor_only(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "the same virtual record on the same kind of processor" in text
    portable = render("base.html.j2", title="Runs", portable=True)
    assert "the same virtual record and the same model on every x86-64 processor with AVX2" in portable
    assert "kind of processor" not in portable
    assert "on every host." not in text
