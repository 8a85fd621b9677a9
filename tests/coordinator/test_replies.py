"""A reply that cannot be used is refused with its reason, before it touches the model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coordinator.federation import RunFailed
from coordinator.server import check_reply
from edge.config import TrainConfig
from edge.messages import Update
from edge.payload import MODEL, Vector
from tests.toy import federation, play


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    server = federation(tmp_path).server
    good = Update(1, 0, {"loss": 0.5}, {MODEL: dict(server.model)})
    assert check_reply(server, good) is None
    bad = Update(1, 0, {"loss": math.nan}, good.payload)
    assert check_reply(server, bad) == "client 1, round 0: loss = nan (training diverged?)"


def test_vectors_must_be_finite_and_of_the_right_shape(tmp_path: Path) -> None:
    server = federation(tmp_path).server
    model = dict(server.model)
    model["head"] = Vector(model["head"].data * math.inf)
    assert check_reply(server, Update(1, 0, {}, {MODEL: model})) == (
        "client 1, round 0: model/head is not finite (training diverged?)"
    )
    del model["head"]
    assert "shapes" in str(check_reply(server, Update(1, 0, {}, {MODEL: model})))


def test_training_that_diverges_ends_the_run_with_the_client_and_the_round(tmp_path: Path) -> None:
    wild = TrainConfig(lr=1e30, batch=32, local_steps=4)
    with pytest.raises(RunFailed, match=r"update refused: client \d, round 0: .*training diverged"):
        play(tmp_path, rounds=1, train=wild)
