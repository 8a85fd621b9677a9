"""A user's method says by an option what travels: FedPer, run with worker processes of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.errors import ScenarioError
from tests.scenarios.runs import undisturbed

FEDPER = "method=tests.plugins.fedper:SPEC"
BRIEF = ("rounds.max=2", "data.clients=4", "rounds.participants=4", "train.local_steps=2")
SENT = "SELECT DISTINCT direction, key FROM transfers WHERE slot = 'model' ORDER BY direction, key"


def run(out: Path, launcher: WorkerLauncher, *overrides: str) -> Path:
    return undisturbed(out, launcher, *BRIEF, *overrides) / "ledger.sqlite"


def models(ledger: Path) -> list[str]:
    return [sha256 for (sha256,) in read(ledger, "SELECT model_sha256 FROM rounds")]


def test_the_number_of_private_layers_is_an_option(tmp_path: Path, launcher: WorkerLauncher) -> None:
    ledger = run(tmp_path, launcher, FEDPER, "method_options.layers=2")
    assert [tuple(row) for row in read(ledger, SENT)] == [
        (way, key) for way in ("down", "up") for key in ("conv1", "conv2")
    ]


def test_no_private_layer_is_fedavg_to_the_bit(tmp_path: Path, launcher: WorkerLauncher) -> None:
    private = run(tmp_path / "private", launcher, FEDPER, "method_options.layers=0")
    assert models(private) == models(run(tmp_path / "plain", launcher, "method=fedavg"))


def test_with_all_layers_private_clients_train_alone(tmp_path: Path, launcher: WorkerLauncher) -> None:
    ledger = run(tmp_path, launcher, FEDPER, "method_options.layers=4")
    assert read(ledger, SENT) == []
    first, second = models(ledger)
    assert first == second  # the global model stays the initial one
    losses = [loss for (loss,) in read(ledger, "SELECT test_loss FROM rounds")]
    assert losses[1] < losses[0]


def test_more_private_layers_than_there_are_blocks_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"method_options\.layers = 5: the model has 4 blocks"):
        load("digits", [FEDPER, "method_options.layers=5"])
