"""What a run says of its partition: clients that are left out of means, and validation splits that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.data.partition_registry import PartitionRow
from scenarios.report import html
from tests.brief import brief_figures
from tests.observers import Listener
from tests.scenarios.in_this_process import pool_in_this_process, summary_of_run

__all__ = ["pool_in_this_process"]

TEN_EACH = PartitionRow(
    "ten-each",
    "ten examples for each client; test examples for the last one",
    lambda labels, ids, clients, classes, rng, options: [np.arange(10 * k, 10 * k + 10) for k in range(clients)],
    lambda train, parts, test, *_: [*([] for _ in parts[1:]), [0, 1, 2]],
)


def run(out: Path, notes: list[str], *overrides: str) -> dict[str, Any]:
    watch = Listener(on_note=notes.append)
    return summary_of_run(out, "rounds.max=1", "eval.on=clients", *overrides, run_id="run", observers=[watch])


@pytest.mark.long
def test_a_run_counts_the_clients_that_means_leave_out_and_its_report_shows_who_holds_what(tmp_path: Path) -> None:
    notes: list[str] = []
    ten_each = ("data.clients=3", "rounds.participants=2", f"data.partition.kind={__name__}:TEN_EACH")
    result = run(tmp_path, notes, *ten_each, "data.validation=0.2", "data.validation_by=class")
    assert notes == ["2 of 3 clients have no test examples, left out of means over clients"]
    assert result["clients_left_out"] == 2
    assert result["evaluation"]["spread"] == 0, "of one client"
    recorded = json.loads((Path(result["run_dir"]) / "environment.json").read_text())["partition"]
    # The set is sorted by no class: 8 of each client's 10 examples remain, 2 are held out.
    assert list(map(sum, recorded["histogram"])) == [8, 8, 8]
    assert (recorded["validation"], recorded["test"]) == ([2, 2, 2], [0, 0, 3])
    with brief_figures("partition", "client_values"):
        page = html.build([Path(result["run_dir"])], tmp_path / "report.html", "Three clients").read_text()
    assert "Clients without test examples: 2 of 3." in page
    assert "Left out, without examples to be evaluated on: 2 of the clients." in page
