"""Clients with fewer examples than a batch, where whole ones alone are used: they take part, and train nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from scenarios.run.observer import RunObserver
from scenarios.run.run_folder import RunFolder
from scenarios.studies.replay import replay
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import summary_of_run

SIZES = (60, 50, 3, 47)


class NoteWatch(RunObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, note: str) -> None:
        self.notes.append(note)


@pytest.fixture
def four_clients(tmp_path: Path) -> list[str]:
    """Words of a scenario in which client 2 has three examples, and a batch 16."""
    ends = np.cumsum(SIZES).tolist()
    parts = {str(client): [*range(end - size, end)] for client, (size, end) in enumerate(zip(SIZES, ends, strict=True))}
    (tmp_path / "p.json").write_text(json.dumps(parts))
    partition = ["data.partition.kind=file", f"data.partition.file={tmp_path}/p.json", "data.clients=4"]
    batches = ["train.batch=16", "train.drop_last=true", "train.local_steps=none", "train.local_epochs=1"]
    return [*partition, *batches, "rounds.participants=4", "rounds.max=2"]


@pytest.mark.parametrize(
    "words",
    [
        ("method=fedavg",),
        ("method=fednova",),
        ("method=scaffold",),
        ("method=fedbr", "method_options.drop=visits"),
        ("method=fedavg", "fleet.tiers.count=2"),
        ("method=fedavg", "aggregate.sum=fixed_point"),
        ("method=fedavg", "rounds.policy=fedasync", "rounds.max=8"),
    ],
    ids=" ".join,
)
def test_the_loss_of_a_round_is_that_of_the_clients_that_made_a_step(
    words: Sequence[str], four_clients: list[str], tmp_path: Path
) -> None:
    watch = NoteWatch()
    summary = summary_of_run(tmp_path, *four_clients, *words, observers=[watch])
    assert "1 of 4 clients has fewer examples than a batch (train.drop_last), and never trains" in watch.notes
    recorded = RunFolder(Path(summary["run_dir"]))
    losses = recorded.query("SELECT round, client, loss FROM visits WHERE kind = 'train' ORDER BY round, client")
    assert {row["loss"] for row in losses if row["client"] == 2} == {None}
    for row in recorded.rounds:
        own = [each["loss"] for each in losses if each["round"] == row.round and each["client"] != 2]
        assert None not in own
        assert row.train_loss == pytest.approx(np.mean(own), rel=1e-12)
    if "rounds.policy=fedasync" not in words:
        before, again = replay(Path(summary["run_dir"])).virtual_seconds
        assert before == again
