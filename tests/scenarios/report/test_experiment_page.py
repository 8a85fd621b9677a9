"""The page of an experiment: its answer in a sentence, figures and tables of rows, and the report of their runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenarios.report import columns, readings, result_tables, run_reader
from scenarios.report.html import ExperimentAnswer, write_experiment
from scenarios.report.readings import Reading
from scenarios.report.run_reader import RecordedRun
from scenarios.report.tables import of_texts
from scenarios.run.progress import Mean
from tests.ledgers import made_run

SCENARIO = 'method = "{}"\nseed = {}\n[train]\nlr = {}\n[data]\nname = "digits"\n'
ACCURACIES = {"slow": (0.50, 0.52), "fast": (0.80, 0.81), "other": (0.81, 0.79)}
MEANS = {row: Mean.of(values) for row, values in ACCURACIES.items()}


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, list[Path]]:
    """Rows of two seeds, which differ in their learning rate or method."""
    return {
        row: [
            made_run(tmp_path / f"{row}-{seed}", (0.1, accuracy), SCENARIO.format(method, seed, lr))
            for seed, accuracy in enumerate(ACCURACIES[row])
        ]
        for row, method, lr in (("slow", "fedavg", 0.01), ("fast", "fedavg", 0.1), ("other", "fedprox", 0.1))
    }


def test_a_page_answers_first_and_then_reports_the_runs_of_each_row(
    rows: dict[str, list[Path]], tmp_path: Path
) -> None:
    accuracy: Reading[RecordedRun] = readings.ACCURACY.of(lambda run: run.trail)
    by_group = run_reader.of_rows(rows | {"never made": []})
    assert [(group.label, [run.label for run in group.runs]) for group in by_group] == [
        (row, [f"{row}, seed 0", f"{row}, seed 1"]) for row in rows
    ]
    means = {group.label: accuracy.over_seeds(group.runs) for group in by_group}
    table = result_tables.differences("accuracy", columns.POINTS, "slow", {"slow": None, "fast": None}, 1000)
    answer = ExperimentAnswer(
        result_tables.best_row(accuracy, means, {}), {"scenario": "digits", "seeds": "0, 1"}, (), [table]
    )
    page = write_experiment(tmp_path / "report.html", "digits: lr", answer, by_group, 0.7).read_text()
    assert '<p class="answer">fast has the highest final accuracy: 80 ± 6 %.' in page
    assert page.index('id="answer"') < page.index('id="results"') < page.index('id="accuracy"')
    assert re.findall(r'<a href="#(\w+)">', page)[:3] == ["answer", "results", "accuracy"]
    assert "<h3>Differences of accuracy, paired over seeds</h3>" in page
    assert re.findall(r"<dt>(seeds?|scenario)</dt><dd>(.*?)</dd>", page) == [("scenario", "digits"), ("seeds", "0, 1")]
    assert re.findall(r"</svg>(\w+)</th><td>2</td>", page) == list(rows)  # the table of groups, each with its line
    assert "<summary>Visits of each run; none was wasted</summary>" in page


@pytest.mark.parametrize(
    ("means", "p_values", "sentence"),
    [
        (
            MEANS,
            {("slow", "fast"): 0.3, ("fast", "other"): 0.01, ("slow", "other"): 0.001},
            "fast has the highest final accuracy: 80 ± 6 %. The paired tests tell it from 1 of 2 others.",
        ),
        (
            MEANS,
            {("slow", "fast"): 0.3, ("fast", "other"): None},
            "fast has the highest final accuracy: 80 ± 6 %. The paired tests tell it from no other row (smallest p "
            "after Holm: 0.300).",
        ),
        (
            {"a": Mean.of([0.5, 0.5]), "b": Mean.of([0.75, 0.75])},
            {("a", "b"): 0.02},
            "b has the highest final accuracy: 75.00 ± 0.00 %. The paired tests tell it from the other row.",
        ),
        ({"a": Mean.of([0.5]), "b": Mean.of([0.25])}, {}, "a has the highest final accuracy: 50.00 %."),
        ({"a": Mean.of([0.5, None])}, {}, "No row has a final accuracy for all of its seeds."),
    ],
)
def test_the_answer_says_which_row_is_best_and_what_cannot_be_told_from_it(
    means: dict[str, Mean], p_values: dict[tuple[str, str], float | None], sentence: str
) -> None:
    assert result_tables.best_row(readings.ACCURACY, means, p_values) == sentence


# --- the page around them --------------------------------------------------------------------------------------------


def page(tmp_path: Path, *lengths: int) -> str:
    """An experiment without runs whose tables have these numbers of rows."""
    tables = [of_texts(f"table {index}", ["method", "x"], [["fedavg", "1"]] * n) for index, n in enumerate(lengths)]
    answer = ExperimentAnswer("Lead.", {"seeds": "0"}, tables=tables)
    return write_experiment(tmp_path / "study.html", "Study", answer, []).read_text()


def test_a_table_of_more_than_twelve_rows_is_folded_unless_it_is_the_first(tmp_path: Path) -> None:
    text = page(tmp_path, 13, 12, 13)
    assert text.count('<details class="fold">') == 1
    assert text.index("<h2>table 2</h2>") < text.index('<details class="fold">') < text.index("(13 rows)")
