"""What must hold of FedBR over whole rounds: its neutral settings, what each client keeps, and what goes down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.protocol import client_state
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL
from tests.toy import Run, federation, play, state_file, store

CLIPPED = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3)
# digits-cnn of width 4: 1 -> 4 -> 8 -> 8 channels of 3x3, then 32 -> 10; 4 bytes a number.
BLOCK_NBYTES = {"conv1": 4 * 40, "conv2": 4 * 296, "conv3": 4 * 584, "head": 4 * 330}
LAST_NBYTES = {1: 1320, 2: 3656, 3: 4840}
WHOLE_NBYTES = 5000


def test_all_pathways_and_a_whole_download_each_round_is_fedmlb_to_the_bit(tmp_path: Path) -> None:
    fedmlb = play(tmp_path / "fedmlb", "fedmlb", train=CLIPPED, weights="uniform")
    fedbr = play(tmp_path / "fedbr", "fedbr", train=CLIPPED, period=0, alpha=3)
    assert np.array_equal(fedbr.model, fedmlb.model)


def test_without_training_every_client_keeps_the_global_model(tmp_path: Path) -> None:
    # Two clients: the mean of two equal models has their bits.
    iid, idle = PartitionConfig("iid"), TrainConfig(local_epochs=0)
    start = federation(tmp_path / "start", clients=2, partition=iid)
    store(start).ledger.close()
    run = play(tmp_path / "run", "fedbr", clients=2, rounds=3, partition=iid, train=idle)
    before = {key: vector.version for key, vector in start.server.model.items()}
    assert {key: vector.version for key, vector in run.federation.server.model.items()} == before
    for client in (0, 1):
        kept = client_state.read(state_file(run.federation, client))[MODEL]
        assert {key: vector.version for key, vector in kept.items()} == {
            k: before[k] for k in ("conv1", "conv2", "conv3")
        }


def downloads(run: Run) -> dict[tuple[int, int], dict[str, int]]:
    """(round, client) -> block -> bytes sent down, headers apart."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    query = "SELECT round, client, key, nbytes FROM transfers WHERE direction = 'down' AND slot = 'model'"
    for round, client, key, nbytes in run.rows(query):
        found.setdefault((round, client), {})[key] = nbytes
    return found


def test_over_a_period_a_client_gets_one_model_and_the_blocks_chosen_for_it(tmp_path: Path) -> None:
    run = play(tmp_path, "fedbr", clients=2, rounds=8, train=TrainConfig(lr=0.1, batch=64, local_steps=2), period=3)
    sent = downloads(run)
    chosen = {(r, c): (alpha, full) for r, c, alpha, full in run.rows("SELECT round, client, alpha, full FROM choices")}
    assert [chosen[round, 0][1] for round in range(8)] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert len({alpha for alpha, _ in chosen.values()}) > 1
    for client in (0, 1):
        for first in (0, 4):
            period = range(first, first + 4)
            total = sum(nbytes for round in period for nbytes in sent[round, client].values())
            assert total == WHOLE_NBYTES + sum(LAST_NBYTES[chosen[round, client][0]] for round in period[1:])
    assert sent[0, 0] == BLOCK_NBYTES
    uploads = run.rows("SELECT SUM(nbytes) FROM transfers WHERE direction = 'up' AND slot = 'model'")
    assert uploads == [(16 * WHOLE_NBYTES,)]


def test_the_bandit_has_counted_every_visit(tmp_path: Path) -> None:
    brief = TrainConfig(lr=0.1, batch=64, local_steps=1)
    run = play(tmp_path, "fedbr", clients=5, participants=2, rounds=6, train=brief, partition=PartitionConfig("iid"))
    visits = dict(run.rows("SELECT client, COUNT(*) FROM visits GROUP BY client"))
    counts = run.federation.server.state()["n"].sum(axis=1)
    assert {client: int(counts[client]) for client in range(5) if counts[client]} == visits
    assert sum(visits.values()) == 12


def test_a_partial_round_starts_from_the_clients_own_first_blocks(tmp_path: Path) -> None:
    run = play(tmp_path, "fedbr", clients=2, rounds=1, alpha=1, train=CLIPPED).federation
    kept = {client: client_state.read(state_file(run, client))[MODEL] for client in (0, 1)}
    # Without a step size, what a client uploads is what it started from.
    run.job = replace(run.job, train=replace(CLIPPED, lr=0.0))
    replies: list[Update] = []
    run.trainer.submit([run.prepare(client, 1) for client in (0, 1)], replies.append).wait()
    for reply in replies:
        client, up = reply.client, reply.payload[MODEL]
        assert [up[key].version for key in ("conv1", "conv2", "conv3")] == [
            kept[client][key].version for key in ("conv1", "conv2", "conv3")
        ]
        assert up["head"].version == run.server.model["head"].version


def test_with_broadcast_to_everyone_listeners_keep_the_model_that_was_sent(tmp_path: Path) -> None:
    brief = TrainConfig(lr=0.1, batch=64, local_steps=1)
    iid = PartitionConfig("iid")
    how: dict[str, Any] = {"clients": 4, "participants": 2, "train": brief, "partition": iid}
    start = federation(tmp_path / "start", "fedbr", **how)
    store(start).ledger.close()
    run = play(tmp_path / "run", "fedbr", rounds=1, broadcast="everyone", **how)
    kinds = dict(run.rows("SELECT client, kind FROM visits"))
    listeners = [client for client, kind in kinds.items() if kind == "listen"]
    assert sorted(kinds) == [0, 1, 2, 3]
    assert len(listeners) == 2
    for client in listeners:
        kept = client_state.read(state_file(run.federation, client))[MODEL]
        assert [kept[k].version for k in kept] == [start.server.model[k].version for k in ("conv1", "conv2", "conv3")]
        assert run.rows(f"SELECT bytes_up, flops, samples FROM visits WHERE client = {client}") == [(0, 0.0, 0)]
        assert downloads(run)[0, client] == BLOCK_NBYTES
    # A listener has been seen: it gets no whole model when it first takes part, and the bandit has not chosen for it.
    assert {run.federation.server.download(client, 1).choice["full"] for client in listeners} == {0}
    assert run.federation.server.state()["n"][listeners].sum() == 0
