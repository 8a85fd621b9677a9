"""The files of ``examples/data``, one of each form, as runs and fleets have them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedbr
from coordinator.records.store import read
from tests.observers import Listener
from tests.scenarios.in_this_process import pool_in_this_process, summary_of_run

__all__ = ["pool_in_this_process"]
FILES = Path(__file__).parents[2] / "examples" / "data"
MACHINES = ("data.reading.client=machine", "data.reading.label=state", "data.reading.missing=mean", "model.name=mlp")


@pytest.mark.parametrize(
    ("name", "words", "clients", "first"),
    [
        ("cams", (), ["barn", "gate", "yard"], "32 examples in 32 files, classes by the folder of each class"),
        ("machines.csv", MACHINES, ["drill", "press", "saw"], "72 examples, classes by column state, 3 clients by"),
        (
            "leaf",
            ("model.name=mlp",),
            ["f01", "f02", "f03"],
            "29 examples in 2 files, classes by y, 3 clients by users",
        ),
    ],
)
def test_examples_in_each_form_are_trained_on_by_their_clients(
    name: str, words: tuple[str, ...], clients: list[str], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notes: list[str] = []
    few = ("rounds.max=1", "rounds.participants=3", "method=fedavg")
    result: dict[str, Any] = summary_of_run(
        tmp_path / "runs", f"data.file={FILES / name}", *words, *few, run_id="run",
        observers=[Listener(on_note=notes.append)],
    )  # fmt: skip
    assert notes[0].startswith(f"data: {name}: {first}")
    assert fedbr.Run(result["run_dir"]).visits.column("client_name").to_pylist() == clients
    assert result["clients_left_out"] == 0


def test_texts_are_foreseen_token_by_token_and_tokens_not_examples_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notes: list[str] = []
    result: dict[str, Any] = summary_of_run(
        tmp_path / "runs", f"data.file={FILES / 'notes'}", "data.text.length=32", "rounds.max=1",
        "rounds.participants=3", scenario="phone-keyboard", run_id="run", observers=[Listener(on_note=notes.append)],
    )  # fmt: skip
    assert notes[0] == "data: 3 texts of 3 clients, 2,004 tokens, tokens by characters"
    run = fedbr.Run(result["run_dir"])
    assert run.visits.column("client_name").to_pylist() == ["ann", "ben", "cleo"]
    # The last fifth of each text is tested, of which every character but the first is foreseen: 402 - 3.
    ledger = run.folder / "ledger.sqlite"
    assert [tuple(row) for row in read(ledger, "SELECT metric, count FROM evaluations")] == [("accuracy", 399)]
    ((score, loss),) = read(ledger, "SELECT score, test_loss FROM rounds")
    assert score == pytest.approx(math.exp(loss)) and 1 < score < 60


def test_a_log_of_sites_is_understood_by_its_own_columns() -> None:
    columns = {"time": "when", "link": "site", "down": "rx", "up": "tx", "unit": "kbit/s"}
    file = str(FILES / "routers.csv")
    gateways: dict[str, Any] = {"count": 2, "bandwidth": {"file": file, "columns": columns}}
    checked = fedbr.check({"extends": "digits", "fleet": {"gateways": gateways}})
    assert checked["notes"][0] == (
        "fleet.gateways.bandwidth.file: rates over time: 78 values of 2 links, 20 min; rate: 0 bit/s to 29.3 Mbit/s, "
        "median 9.86 Mbit/s, each held at most 1.5 min, a silence of 1.5 min"
    )
