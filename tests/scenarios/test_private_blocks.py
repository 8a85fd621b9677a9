"""Methods whose clients keep models of their own, run with worker processes; and what such methods refuse."""

from __future__ import annotations

from pathlib import Path

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from tests.ledgers import chain, virtual_rows
from tests.scenarios.runs import killed_and_resumed, run_with, undisturbed

BRIEF = ("rounds.max=2", "data.clients=4", "rounds.participants=4", "train.local_steps=2")
SENT = "SELECT DISTINCT direction, key FROM transfers WHERE slot = 'model' ORDER BY direction, key"
AFTER_FIRST_COMMIT = ("coordinator.records.store:Ledger.commit", "after", 1)


def test_the_number_of_private_layers_is_an_option(tmp_path: Path, launcher: WorkerLauncher) -> None:
    folder = undisturbed(tmp_path, launcher, *BRIEF, "method=fedper", "method_options.layers=2")
    assert [tuple(row) for row in read(folder / "ledger.sqlite", SENT)] == [
        (way, key) for way in ("down", "up") for key in ("conv1", "conv2")
    ]


def test_workers_add_up_nothing_of_clients_that_send_nothing(tmp_path: Path, launcher: WorkerLauncher) -> None:
    ledger = undisturbed(tmp_path, launcher, *BRIEF, "method=local", "aggregate.sum=fixed_point") / "ledger.sqlite"
    first, second = read(ledger, "SELECT bytes_down, bytes_up, model_sha256, test_loss FROM rounds ORDER BY round")
    assert tuple(first)[:2] == tuple(second)[:2] == (0, 0)
    assert first["model_sha256"] == second["model_sha256"]  # the initial one, which clients' models have left behind
    assert second["test_loss"] < first["test_loss"]


def test_personal_models_outlive_a_kill_with_any_number_of_workers(tmp_path: Path, launcher: WorkerLauncher) -> None:
    steps = ("train.local_steps=2", "method_options.inner_steps=2")
    rules = ("method=pfedme", *steps, "rounds.max=2", "rounds.policy=fedbuff", "rounds.buffer=2")
    whole = Path(run_with(tmp_path, launcher, 3, *rules)["run_dir"])
    cut = killed_and_resumed(tmp_path, launcher, AFTER_FIRST_COMMIT, *rules)
    assert virtual_rows(cut) == virtual_rows(whole)
    assert chain(cut) == chain(whole)
