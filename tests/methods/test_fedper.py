"""FedPer: a base that all clients share, and heads that never leave them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from coordinator.rounds.policy import RoundPolicy
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.payload import MODEL
from tests.toy import Run, play, state_file

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
SENT = "SELECT DISTINCT direction, key FROM transfers WHERE slot = 'model'"


def kept(run: Run, client: int) -> dict[str, list[float]]:
    state = client_state.read(state_file(run.federation, client))
    return {key: vector.data.tolist() for key, vector in state.get(MODEL, {}).items()}


def test_all_clients_share_the_base_and_no_head_leaves_its_client(tmp_path: Path) -> None:
    run = play(tmp_path, "fedper", train=BRIEF)
    assert set(run.rows(SENT)) == {(way, key) for way in ("down", "up") for key in ("conv1", "conv2", "conv3")}
    server = run.federation.server
    base = {MODEL: {key: server.model[key] for key in ("conv1", "conv2", "conv3")}}
    assert [server.evaluation_model(client) for client in range(4)] == [base] * 4
    assert np.array_equal(server.model["head"].data, server.setup.initial[MODEL]["head"].data)
    heads = [kept(run, client) for client in range(4)]
    assert [list(head) for head in heads] == 4 * [["head"]]
    assert all(one != other for one, other in combinations(heads, 2))


def test_each_client_is_scored_with_its_own_head_on_its_own_test_examples(tmp_path: Path) -> None:
    run = play(tmp_path, "fedper", rounds=3, train=BRIEF)
    site, scores = run.workers.site, []
    for client in range(4):
        site.net.load({key: run.federation.server.model[key] for key in ("conv1", "conv2", "conv3")})
        site.net.load(client_state.read(state_file(run.federation, client))[MODEL])
        x, y = site.test_set.fetch(site.client_indices.test[client])
        with torch.no_grad():
            scores.append(float((site.net.run(x).argmax(1) == y).double().mean()))
    assert run.rows("SELECT accuracy FROM rounds")[-1][0] == pytest.approx(np.mean(scores))


def test_running_statistics_follow_their_block(tmp_path: Path) -> None:
    model = ModelConfig("digits-cnn", width=4, norm="batch")
    run = play(tmp_path, "fedper", train=BRIEF, model=model, layers=2)
    layout = run.federation.description.layout
    base = layout.keys(["conv1", "conv2"])
    assert len(base) == 4
    assert set(run.rows(SENT)) == {(way, key) for way in ("down", "up") for key in base}
    assert set(kept(run, 0)) == set(layout.keys(["conv3", "head"]))


@pytest.mark.parametrize(
    "rules", [RoundPolicy("fedasync"), RoundPolicy("fedbuff", buffer=2)], ids=lambda rules: rules.policy
)
def test_asynchronous_policies_mix_bases_alone(rules: RoundPolicy, tmp_path: Path) -> None:
    run = play(tmp_path, "fedper", train=BRIEF, rules=rules, participants=4)
    server = run.federation.server
    moved = [
        key
        for key, vector in server.model.items()
        if not np.array_equal(vector.data, server.setup.initial[MODEL][key].data)
    ]
    assert moved == ["conv1", "conv2", "conv3"]
