"""Clients that keep their models, whole (local training alone) or in part (FedPer)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from coordinator.rounds.policy import RoundPolicy
from edge.protocol import client_state
from edge.protocol.config import TrainConfig
from edge.protocol.payload import MODEL
from edge.training.batches import LocalBatches
from tests.toy import Run, direct, play, state_file

BRIEF = TrainConfig(lr=0.1, batch=32, local_epochs=1)


def model_of(run: Run, client: int) -> NDArray[np.float32]:
    """The numbers that a client keeps."""
    return np.concatenate(
        [vector.data for vector in client_state.read(state_file(run.federation, client))[MODEL].values()]
    )


def test_a_visit_takes_no_byte_and_the_time_of_its_computing(tmp_path: Path) -> None:
    run = play(tmp_path, "local", train=BRIEF)
    query = "SELECT bytes_down, bytes_up, nominal_bytes, down_end_s - start_s, up_end_s - compute_end_s FROM visits"
    assert set(run.rows(query)) == {(0, 0, 0.0, 0.0, 0.0)}
    assert run.rows("SELECT * FROM transfers WHERE nbytes != 0") == []
    fedavg = play(tmp_path / "fedavg", "fedavg", train=BRIEF)
    flops = "SELECT client, flops FROM visits ORDER BY round, client"
    assert run.rows(flops) == fedavg.rows(flops)
    assert np.array_equal(run.model, run.start)


def test_each_model_is_that_of_sgd_on_the_examples_of_its_client(tmp_path: Path) -> None:
    run = play(tmp_path, "local", train=BRIEF, rounds=2)
    site = direct(run.federation).site
    net = site.net
    for client, indices in enumerate(site.client_indices.train):
        net.load(run.federation.server.setup.initial[MODEL])
        for epoch in range(2):
            for x, y in LocalBatches(site.train_set, indices, BRIEF, (0, epoch, client))():
                net.grad.zero_()
                F.cross_entropy(net.run(x), y).backward()  # type: ignore[no-untyped-call]
                net.flat.sub_(net.grad, alpha=BRIEF.lr)
        assert np.array_equal(model_of(run, client), net.flat.numpy())


@pytest.mark.parametrize(
    "how",
    [
        {"rules": RoundPolicy("fedbuff", buffer=2)},
        {"sum": "fixed_point"},
        {"evaluation": {"charged": True}},
    ],
    ids=["fedbuff", "fixed_point", "charged"],
)
def test_nothing_is_sent_whatever_the_run_does_with_updates(how: dict[str, Any], tmp_path: Path) -> None:
    run = play(tmp_path, "local", train=BRIEF, rounds=1, **how)
    assert run.rows("SELECT SUM(bytes_down + bytes_up) FROM visits WHERE kind != 'evaluate'") == [(0,)]
    assert np.array_equal(run.model, run.start)
    trained = run.rows("SELECT DISTINCT client FROM visits WHERE kind = 'train'")
    assert trained
    for (client,) in trained:
        assert not np.array_equal(model_of(run, client), run.start)
    if "evaluation" in how:  # those who ask for values pay for their messages
        assert run.rows("SELECT MIN(bytes_down) > 0, MIN(bytes_up) > 0 FROM visits WHERE kind = 'evaluate'") == [(1, 1)]


# --- FedPer: a base that all share, and heads that never leave their clients ------------------------------------------


STEPS = TrainConfig(lr=0.1, batch=32, local_steps=2)
SENT = "SELECT DISTINCT direction, key FROM transfers WHERE slot = 'model'"


def kept(run: Run, client: int) -> dict[str, list[float]]:
    state = client_state.read(state_file(run.federation, client))
    return {key: vector.data.tolist() for key, vector in state.get(MODEL, {}).items()}


def test_all_clients_share_the_base_and_no_head_leaves_its_client(tmp_path: Path) -> None:
    run = play(tmp_path, "fedper", train=STEPS)
    assert set(run.rows(SENT)) == {(way, key) for way in ("down", "up") for key in ("conv1", "conv2", "conv3")}
    server = run.federation.server
    base = {MODEL: {key: server.model[key] for key in ("conv1", "conv2", "conv3")}}
    assert [server.evaluation_model(client) for client in range(4)] == [base] * 4
    assert np.array_equal(server.model["head"].data, server.setup.initial[MODEL]["head"].data)
    heads = [kept(run, client) for client in range(4)]
    assert [list(head) for head in heads] == 4 * [["head"]]
    assert all(one != other for one, other in combinations(heads, 2))


def test_each_client_is_scored_with_its_own_head_on_its_own_test_examples(tmp_path: Path) -> None:
    run = play(tmp_path, "fedper", rounds=3, train=STEPS)
    site, scores = run.workers.site, []
    for client in range(4):
        site.net.load({key: run.federation.server.model[key] for key in ("conv1", "conv2", "conv3")})
        site.net.load(client_state.read(state_file(run.federation, client))[MODEL])
        x, y = site.test_set.fetch(site.client_indices.test[client])
        with torch.no_grad():
            scores.append(float((site.net.run(x).argmax(1) == y).double().mean()))
    assert run.rows("SELECT accuracy FROM rounds")[-1][0] == pytest.approx(np.mean(scores))
