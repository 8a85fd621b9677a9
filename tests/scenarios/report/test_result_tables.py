"""The report's tables of results, from the ledgers of runs."""

from __future__ import annotations

from pathlib import Path

from scenarios.report.result_tables import costs, results
from scenarios.report.run_reader import open_runs
from tests.ledgers import made_run


def test_results_of_runs_have_a_row_each_with_the_best_of_what_can_be_compared_marked(tmp_path: Path) -> None:
    folders = [
        made_run(tmp_path / method, accuracies, f'method = "{method}"\n')
        for method, accuracies in {"fedavg": (0.5, 0.6), "fedprox": (0.8, 0.7)}.items()
    ]
    table = results(open_runs(folders), 0.7, {}, nominal=False)
    assert table.spans == [
        *(("", 1), ("Accuracy", 2), ("Length", 1), ("To 70 %", 2)),
        *(("Device work", 1), ("Energy", 1), ("This machine", 1), ("", 1)),
    ]
    assert [row[:6] for row in table.cells] == [
        [
            *(("fedavg", False), ("60.00 %", False), ("60.00 %", False), ("2", False)),
            *(("not reached", False), ("not reached", False)),
        ],
        [("fedprox", False), ("70.00 %", True), ("80.00 %", True), ("2", False), ("10 s", True), ("1 kB", True)],
    ]


def test_costs_are_compared_with_those_of_fedavg_by_round(tmp_path: Path) -> None:
    folders = [
        made_run(tmp_path / "fedavg", (0.5,), 'method = "fedavg"\n'),
        made_run(tmp_path / "fedprox", (0.5, 0.5), 'method = "fedprox"\n'),
    ]
    table, base = costs(open_runs(folders), nominal=True)
    assert base is not None
    assert base.method == "fedavg"
    # A round has 1000 bytes, real and nominal, and 1 MFLOP.
    assert table.texts == [
        ["fedavg", "1 kB", "1 kB", "1.000", "1 MFLOP", "1 MFLOP", "1.000", "0", "0", "0", "0"],
        ["fedprox", "2 kB", "2 kB", "1.000", "2 MFLOP", "2 MFLOP", "1.000", "+0.0 %", "+0.0 %", "+0.0 %", "+0.0 %"],
    ]
