"""Clients and classes of a user's file keep their names: in notes, records, tables, figures and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import fedbr
from scenarios.report import client_figures, result_tables
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import grouped, open_runs
from tests.observers import Listener
from tests.scenarios.in_this_process import pool_in_this_process, summary_of_run

__all__ = ["pool_in_this_process"]


def test_a_run_of_a_file_knows_its_clients_and_classes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, notes = tmp_path / "cams.csv", list[str]()
    rows = [
        f"{name},{('day', 'night')[place % 2]},{place % 2 + place / 99}"
        for name in ("gate", "yard")
        for place in range(10)
    ]
    file.write_text("\n".join(["client,label,light", *rows]) + "\n")
    words = (
        f"data.file={file}",
        "model.name=mlp",
        "rounds.max=1",
        "rounds.participants=2",
        "eval.metrics=['class-accuracy']",
    )
    result: dict[str, Any] = summary_of_run(
        tmp_path / "runs", *words, run_id="run", observers=[Listener(on_note=notes.append)]
    )
    assert notes == [
        "data: cams.csv: 20 examples, classes by column label, 2 clients by column client, features light",
        "data: 0.2 of each client's examples are the test set (data.reading.test)",
    ]
    assert result["data"] == "arrays (read from cams.csv)"
    folder = Path(result["run_dir"])
    partition = json.loads((folder / "environment.json").read_text())["partition"]
    assert (partition["client_names"], partition["class_names"]) == (["gate", "yard"], ["day", "night"])
    (run,) = open_runs([folder])
    assert {row[0] for row in result_tables.energy_of_clients(run).rows} == {"client gate", "client yard"}
    assert fedbr.Run(folder).visits.column("client_name").to_pylist() == ["gate", "yard"]
    figure = client_figures.partition(ShownRuns(grouped([run])))
    assert figure is not None
    labels = [
        [tick.get_text() for tick in axis.get_ticklabels()] for axis in (figure.axes[1].xaxis, figure.axes[1].yaxis)
    ]
    assert labels == [["gate", "yard"], ["day", "night"]]
    plt.close(figure)
