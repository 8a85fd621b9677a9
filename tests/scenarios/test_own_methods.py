"""Methods of a user's own that a single global model cannot carry: real runs, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.aggregation.server import LaterPayload
from coordinator.records.store import Ledger, read
from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.payload import MODEL
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.plugins.peers import PeerServer
from tests.scenarios.runs import (
    AMONG_UPDATES,
    QUICK,
    killed,
    killed_and_resumed,
    resumed,
    run_with,
    undisturbed,
)

CLUSTERS = ("method=coordinator.methods.ifca:SPEC", "rounds.max=3", "rounds.participants=4")
PEERS = ("method=tests.plugins.peers:SPEC", "rounds.max=4", "rounds.participants=3")
OWN_SLOT = "method=tests.plugins.own_slot:SPEC"
AFTER_SECOND_COMMIT = ("coordinator.records.store:Ledger.commit", "after", 2)


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in read(folder / "ledger.sqlite", query)]


# --- two models -------------------------------------------------------------------------------------------------------


def test_two_models_go_down_and_one_comes_back(tmp_path: Path, launcher: WorkerLauncher) -> None:
    result = run_with(tmp_path, launcher, 1, *CLUSTERS)
    folder = Path(result["run_dir"])
    sent = dict(rows(folder, "SELECT slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY slot"))
    assert sent["cluster0"] == sent["cluster1"] == sent["model"]
    assert run_with(tmp_path, launcher, 3, *CLUSTERS)["model_sha256"] == result["model_sha256"]


# --- uploads in a slot of their own -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    every(3, [(), ("rounds.policy=fedasync",), ("rounds.policy=fedbuff", "rounds.buffer=3")], first=1, is_one=True),
)
def test_a_slot_of_its_own_equals_the_slot_of_the_model(
    rules: tuple[str, ...], tmp_path: Path, launcher: WorkerLauncher
) -> None:
    own = run_with(tmp_path / "own", launcher, 2, OWN_SLOT, "rounds.max=3", *rules)
    fedavg = run_with(tmp_path / "fedavg", launcher, 2, "method=fedavg", "rounds.max=3", *rules)
    for key in ("model_sha256", "accuracy", "virtual_seconds", "bytes_down", "bytes_up", "flops"):
        assert own[key] == fedavg[key], key


# --- vectors per client -----------------------------------------------------------------------------------------------


def test_vectors_per_client_are_written_once_and_resumed(tmp_path: Path, launcher: WorkerLauncher) -> None:
    whole = undisturbed(tmp_path, launcher, *PEERS)
    visits = rows(whole, "SELECT client, COUNT(*) FROM visits GROUP BY client ORDER BY client")
    stored = rows(whole, "SELECT client, MAX(file) FROM client_vectors GROUP BY client ORDER BY client")
    assert stored == [(client, f"{client}-last-{count}.safetensors") for client, count in visits]
    assert {path.name for path in (whole / "vectors").iterdir()} == {
        name for (name,) in rows(whole, "SELECT file FROM client_vectors")
    }
    cut = killed_and_resumed(tmp_path, launcher, AMONG_UPDATES, *PEERS)
    assert virtual_rows(cut) == virtual_rows(whole)
    assert rows(cut, "SELECT chain FROM rounds") == rows(whole, "SELECT chain FROM rounds")
    assert {path.name for path in (cut / "vectors").iterdir()} == {path.name for path in (whole / "vectors").iterdir()}


def test_a_model_of_other_shapes_than_foreseen_ends_the_run_with_its_client(
    tmp_path: Path, launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = LaterPayload({MODEL: {"head": 1}}, lambda: {MODEL: {}})
    monkeypatch.setattr(PeerServer, "evaluation_model", lambda server, client: wrong)
    with pytest.raises(RunFailed, match=r"client \d: evaluation_model has .*, but foresees .*'head': 1"):
        run_with(tmp_path, launcher, 1, *PEERS)


def test_a_damaged_file_of_vectors_is_found(tmp_path: Path, launcher: WorkerLauncher) -> None:
    words = ("run", "digits", *QUICK, *PEERS, "--workers", "1", "--quiet", "--out", str(tmp_path), "--run-id", "cut")
    killed(AFTER_SECOND_COMMIT, *words)
    folder = tmp_path / "digits" / "cut"
    ledger = Ledger(folder / "ledger.sqlite", None)
    (newest, _), *_ = set(ledger.client_vectors(1).values()) - set(ledger.client_vectors(0).values())
    ledger.close()
    (folder / "vectors" / newest).write_bytes(b"not vectors")
    result = resumed(folder, launcher)
    events = rows(folder, "SELECT detail FROM host_events WHERE kind = 'checkpoint_damaged'")
    problem = f"round 2: vectors/{newest} is missing or not what was committed; going back to round 1"
    assert events == [(problem,)]
    assert result["rounds"] == 4
