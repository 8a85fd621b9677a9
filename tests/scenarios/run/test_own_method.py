"""The figure of a method of the user's own comes from its run's record: its code is not imported to read a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordinator.methods import fedbr
from coordinator.methods.registry import Method
from coordinator.methods.spec import MethodFigure, MethodMap, Records
from coordinator.records.schema import MethodTable, RoundRow
from coordinator.records.store import Commit, Ledger
from scenarios.config.errors import ReportError
from scenarios.report import html
from scenarios.report.method_figures import figures_of
from scenarios.report.run_reader import open_runs
from scenarios.run import own_method
from tests.brief import brief_figures
from tests.ledgers import made_run

SCENARIO = 'method = "gone:SPEC"\nseed = 0\n'
FIGURE = MethodFigure("Ranks", "chosen ranks", "rank", "r", "ranks", {"gain": "mean gain"}, "gains", ("gain", "gained"))


class RankRow(NamedTuple):
    round: int
    client: int
    rank: int
    gain: float


def recorded_run(folder: Path, record: dict[str, Any]) -> Path:
    """A run of one round whose method has the table ``ranks``."""
    made_run(folder, [], SCENARIO)
    (folder / "ledger.sqlite").unlink()
    ledger = Ledger(folder / "ledger.sqlite", "genesis", MethodTable("ranks", RankRow))
    row = RoundRow(0, 0.0, 1.0, 2, 0.5, None, 1.0, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0, 0.0, None, "", "ab")
    ledger.commit(Commit(row, method_rows=[RankRow(0, 0, 3, 0.5), RankRow(0, 1, 4, 0.0)]))
    ledger.close()
    (folder / "environment.json").write_text(json.dumps({"blocks": [], "partition": {}, **record}))
    return folder


def test_a_methods_figure_is_drawn_as_its_run_recorded_it(tmp_path: Path) -> None:
    spec = replace(fedbr.SPEC, name="gone", records=Records(table=MethodTable("ranks", RankRow), figure=FIGURE))
    record = own_method.record(Method("gone:SPEC", spec, ()))
    assert own_method.record(Method("fedbr", fedbr.SPEC, ())) == {}
    folder = recorded_run(tmp_path / "run", json.loads(json.dumps(record)))
    (run,) = open_runs([folder])
    assert figures_of([run]) == {"ranks": FIGURE}
    assert run.shows_nominal
    with brief_figures("ranks"):
        page = html.from_folder(folder).read_text()
    assert "chosen ranks" in page
    assert "r = 3" in page


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"table": "ranks; DROP"}, "'ranks; DROP' is no name of a table"),
        ({"table": "visits"}, "'visits' is no name of a table"),
        ({"figure": {**vars(FIGURE), "counted": 'rank" FROM x'}}, "is no name of a table or column"),
        ({"figure": 7}, r"own_method\.figure: "),
        ({"map": {**vars(MethodMap("", "", ("rank",), "", "gain", "")), "periods": 10**9}}, "must be from 1 to 12"),
    ],
)
def test_a_record_that_no_run_has_written_is_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    record = {"own_method": {"nominal": False, "table": "ranks", "figure": None, "map": None} | changed}
    (run,) = open_runs([recorded_run(tmp_path / "run", record)])
    with pytest.raises(ReportError, match=why):
        figures_of([run])
