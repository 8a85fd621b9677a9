"""Local training alone: no bytes, and each client's model is that of SGD on its examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch.nn import functional as F

from coordinator.aggregation.update_checks import UpdateChecks
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
        {"rules": RoundPolicy("fedasync")},
        {"rules": RoundPolicy("fedbuff", buffer=2)},
        {"sum": "fixed_point"},
        {"checks": UpdateChecks(on_bad_update="zero", max_norm=1e-9)},
        {"evaluation": {"charged": True}},
    ],
    ids=["fedasync", "fedbuff", "fixed_point", "max_norm", "charged"],
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
