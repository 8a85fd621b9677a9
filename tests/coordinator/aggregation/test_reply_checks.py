"""A reply that cannot be used is refused with its reason, before it touches the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.aggregation.update_checks import check_reply
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.task import PoolTask, ReplyHandler, Stopped, TaskGroup
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Vector
from tests.toy import federation, play, set_workers, store


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    server = federation(tmp_path).server
    good = Update(1, 0, {"loss": 0.5}, {MODEL: dict(server.model)})
    assert check_reply(server, good) is None
    bad = Update(1, 0, {"loss": math.nan}, good.payload)
    assert check_reply(server, bad) == "client 1, round 1: loss = nan (training diverged?)"


def test_vectors_must_be_finite_and_of_the_right_shape(tmp_path: Path) -> None:
    server = federation(tmp_path).server
    model = dict(server.model)
    model["head"] = Vector(model["head"].data * math.inf)
    assert check_reply(server, Update(1, 0, {}, {MODEL: model})) == (
        "client 1, round 1: model/head is not finite (training diverged?)"
    )
    del model["head"]
    assert "shapes" in str(check_reply(server, Update(1, 0, {}, {MODEL: model})))


def test_training_that_diverges_ends_the_run_with_the_client_and_the_round(tmp_path: Path) -> None:
    wild = TrainConfig(lr=1e6, weight_decay=1e6, batch=32, local_steps=4)
    with pytest.raises(RunFailed, match=r"update rejected: client \d, round 1: .*training diverged"):
        play(tmp_path, rounds=1, train=wild)


@pytest.mark.parametrize(("policy", "called"), [("sync", "round"), ("fedbuff", "visit"), ("fedasync", "visit")])
def test_errors_call_a_visit_by_the_number_that_it_has(policy: PolicyName, called: str, tmp_path: Path) -> None:
    run = federation(tmp_path, rules=RoundPolicy(policy), rounds=1)
    tasks: list[PoolTask] = []

    def give_up(asked: Sequence[PoolTask], heard: ReplyHandler) -> TaskGroup:
        tasks.extend(asked)
        raise Stopped

    set_workers(run, SimpleNamespace(submit=give_up, size=1))
    with pytest.raises(Stopped):
        run_rounds(run)
    store(run).ledger.close()
    numbers = {0, 1, 2, 3} if called == "visit" else {1}  # visits as in the ledger, rounds from 1
    assert {task.name for task in tasks} <= {f"client {k}, {called} {n}, train" for k in range(4) for n in numbers}
    assert len({task.name for task in tasks}) == 4
    problem = check_reply(run.server, Update(1, 7, {"loss": math.inf}, {MODEL: dict(run.server.model)}))
    assert problem == f"client 1, {called} {7 if called == 'visit' else 8}: loss = inf (training diverged?)"
