"""Methods whose clients have models of their own, or learn from each other's, in real runs with worker processes."""

from __future__ import annotations

from pathlib import Path

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from tests.ledgers import chain, virtual_rows
from tests.scenarios.runs import AMONG_UPDATES, killed_and_resumed, run_with

AFTER_FIRST_COMMIT = ("coordinator.records.store:Ledger.commit", "after", 1)


def test_personal_models_outlive_a_kill_with_any_number_of_workers(tmp_path: Path, launcher: WorkerLauncher) -> None:
    steps = ("train.local_steps=2", "method_options.inner_steps=2")
    rules = ("method=pfedme", *steps, "rounds.max=2", "rounds.policy=fedbuff", "rounds.buffer=2")
    whole = Path(run_with(tmp_path, launcher, 3, *rules)["run_dir"])
    cut = killed_and_resumed(tmp_path, launcher, AFTER_FIRST_COMMIT, *rules)
    assert virtual_rows(cut) == virtual_rows(whole)
    assert chain(cut) == chain(whole)


def test_stored_models_of_peers_outlive_a_kill_with_other_workers(tmp_path: Path, launcher: WorkerLauncher) -> None:
    """Who chose whom, the vectors per client and the hash chain are those of an undisturbed run with three workers."""
    settings = ("method=fedfomo", "rounds.max=3", "rounds.participants=3", "data.clients=5", "eval.every=3")
    whole = Path(run_with(tmp_path / "whole", launcher, 3, *settings)["run_dir"])
    cut = killed_and_resumed(tmp_path, launcher, AMONG_UPDATES, *settings)
    assert virtual_rows(cut) == virtual_rows(whole)
    chose = "SELECT * FROM fedfomo ORDER BY rowid"
    assert read(cut / "ledger.sqlite", chose) == read(whole / "ledger.sqlite", chose) != []
    assert {path.name for path in (cut / "vectors").iterdir()} == {path.name for path in (whole / "vectors").iterdir()}
