"""The report's tables of results: which cells are the best of their column."""

from __future__ import annotations

from pathlib import Path

from scenarios.report.columns import PERCENT
from scenarios.report.result_tables import ReportColumn, headline
from scenarios.report.run_reader import RecordedRun, open_runs
from tests.ledgers import made_run


def test_a_cell_that_reads_as_the_best_one_does_is_marked_too(tmp_path: Path) -> None:
    accuracies = (0.77221, 0.77223, 0.5)
    folders = [
        made_run(tmp_path / f"seed{seed}", (accuracy,), f'method = "fedavg"\nseed = {seed}\n')
        for seed, accuracy in enumerate(accuracies)
    ]
    table = headline(open_runs(folders), [ReportColumn("Accuracy", "final", RecordedRun.final, PERCENT, max)])
    cells = [row for _, row, _ in table["rows"]]
    assert cells == [[("77.22 %", True)], [("77.22 %", True)], [("50.00 %", False)]]
