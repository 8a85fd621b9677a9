"""What must hold of the distillation objectives over whole rounds: what travels, who teaches, and when it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.server import ServerContext
from coordinator.methods.fedgkd import FedGKDServer
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.run import RoundFinished
from coordinator.rounds.synchronous import run_rounds
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.fedgkd import FedGKDOptions
from edge.protocol.payload import MODEL, TEACHER, BlockShape, Layout, Payload
from tests.toy import Run, federation, play, store, vector

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)
CLIPPED = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3)
SENT = "SELECT round, client, direction, slot, key, nbytes FROM transfers"
VALUES = 5000
"""Bytes of the small model of the digits."""


def test_convex_distillation_slows_the_first_step_by_its_weight(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.1, batch=64, local_steps=1)
    plain = play(tmp_path / "a", train=train, rounds=1)
    taught = play(tmp_path / "b", "fedavg-kd", train=train, rounds=1, weight=0.25)
    assert np.allclose(taught.model - taught.start, 0.75 * (plain.model - plain.start), rtol=0, atol=1e-7)


# --- FedGKD: the mean of the last global models -----------------------------------------------------------------------


def bytes_by_slot(run: Run) -> list[tuple[str, str, int]]:
    query = "SELECT direction, slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY direction, slot"
    return [(str(way), str(slot), int(nbytes)) for way, slot, nbytes in run.rows(query)]


def test_the_teacher_comes_down_in_a_slot_of_its_own_and_is_charged(tmp_path: Path) -> None:
    run = play(tmp_path, "fedgkd", train=BRIEF, rounds=3)
    # Three rounds of four clients: two models down, one up.
    assert bytes_by_slot(run) == [
        ("down", "model", 12 * VALUES),
        ("down", "teacher", 12 * VALUES),
        ("up", "model", 12 * VALUES),
    ]
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM rounds") == [
        (run.workers.bytes_down, run.workers.bytes_up)
    ]


def test_with_a_buffer_of_one_it_is_additive_kd_with_the_same_weight_and_sends_nothing_more(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": CLIPPED, "rounds": 3, "weight": 0.4, "temperature": 2.0}
    gkd = play(tmp_path / "gkd", "fedgkd", buffer=1, **how)
    kd = play(tmp_path / "kd", "fedavg-kd", form="additive", **how)
    assert np.array_equal(gkd.model, kd.model)
    assert gkd.rows(SENT) == kd.rows(SENT)
    assert np.abs(play(tmp_path / "more", "fedgkd", **how).model - kd.model).max() > 1e-5


@pytest.mark.parametrize("policy", ["sync", "fedbuff", "fedasync"])
def test_the_teacher_is_the_mean_of_as_many_of_the_last_models_as_there_are(tmp_path: Path, policy: PolicyName) -> None:
    models: list[Payload] = []
    seen: list[int] = []

    def look(progress: RoundFinished) -> None:
        models.append(run.server.global_evaluation_model())
        teacher = run.server.download(0, progress.rounds).payload[TEACHER]
        for key, mean in teacher.items():
            last = [model[MODEL][key].data.astype(np.float64) for model in models[-3:]]
            assert np.array_equal(mean.data, np.mean(last, axis=0).astype(np.float32))
        seen.append(len({teacher["head"].version, *(model[MODEL]["head"].version for model in models)}))

    # One visit at a time, so that a round of fedasync is one server step.
    participants = 1 if policy == "fedasync" else 4
    run = federation(
        tmp_path, "fedgkd", buffer=3, rounds=4, train=BRIEF, participants=participants, on_round=look,
        rules=RoundPolicy(policy, buffer=2),
    )  # fmt: skip
    models.append(run.server.global_evaluation_model())
    assert run.server.download(0, 0).payload[TEACHER] == run.server.model
    try:
        run_rounds(run)
    finally:
        store(run).ledger.close()
    assert seen == [3, 4, 5, 6]  # so many different heads: every step's, and a mean that is none of them


def test_distillation_begins_after_the_first_round(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": BRIEF, "weight": 1.0}
    plain, first = play(tmp_path / "a", train=BRIEF, rounds=1), play(tmp_path / "b", "fedgkd", rounds=1, **how)
    assert np.array_equal(first.model, plain.model)
    at_once = play(tmp_path / "c", "fedgkd", rounds=1, silent_rounds=0, **how)
    assert np.abs(at_once.model - plain.model).max() > 1e-5
    # Four passes forward instead of three in all; a silent round computes no more than FedAvg.
    run = play(tmp_path / "d", "fedgkd", rounds=3, silent_rounds=2, **how)
    flops = [total for (total,) in run.rows("SELECT SUM(flops) FROM visits GROUP BY round")]
    assert flops[0] == flops[1] == plain.rows("SELECT SUM(flops) FROM visits")[0][0] < flops[2]


# --- its server, by hand ----------------------------------------------------------------------------------------------


def server(down: tuple[str, ...] = ("w", "w.buffers"), **options: Any) -> FedGKDServer:
    """A model of one parameter and one running statistic, which begins as (0, 8)."""
    layout, one = Layout((BlockShape("w", 1, 1),)), np.ones(1, np.int64)
    initial = {MODEL: {"w": vector(0), "w.buffers": vector(8)}}
    both, chosen = ("w", "w.buffers"), FedGKDOptions(**options)
    return FedGKDServer(ServerContext(layout, initial, chosen, "size", down, both, 0, one, one[:, None]))


def stepped(server_side: FedGKDServer, *numbers: float) -> FedGKDServer:
    """After one client's replies with these parameters, and statistics ten times as large."""
    for number in numbers:
        server_side.accumulate(Update(0, 0, {}, {MODEL: {"w": vector(number), "w.buffers": vector(10 * number)}}))
        server_side.step()
    return server_side


def sent(server_side: FedGKDServer, round: int = 9) -> dict[str, dict[str, float]]:
    payload = server_side.download(0, round).payload
    return {slot: {key: float(one.data[0]) for key, one in named.items()} for slot, named in payload.items()}


def test_the_buffer_forgets_the_oldest_model_by_hand() -> None:
    server_side = server(buffer=2)
    assert sent(server_side)[TEACHER] == {"w": 0, "w.buffers": 8}
    assert sent(stepped(server_side, 4))[TEACHER] == {"w": 2, "w.buffers": 24}
    assert sent(stepped(server_side, 6)) == {MODEL: {"w": 6, "w.buffers": 60}, TEACHER: {"w": 5, "w.buffers": 50}}


def test_a_visit_is_told_whether_it_distils() -> None:
    assert [dict(server(silent_rounds=2).download(0, round).choice) for round in (0, 1, 2)] == [
        {"distil": 0},
        {"distil": 0},
        {"distil": 1},
    ]
    assert [one.download(0, 0).choice for one in (server(buffer=1), server(weight=0))] == [{}, {}]


def test_only_what_goes_down_of_the_model_goes_down_of_the_teacher() -> None:
    assert sent(stepped(server(("w",), buffer=2), 4)) == {MODEL: {"w": 4}, TEACHER: {"w": 2}}


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_restored_server_has_the_models_that_were_kept(steps: int) -> None:
    server_side, fresh = stepped(server(buffer=3), *range(1, steps + 1)), server(buffer=3)
    stepped(fresh, 7, 7, 7)
    fresh.restore(server_side.models, server_side.state())
    for more in (0.25, 0.5, 0.75):
        assert sent(fresh) == sent(server_side)
        stepped(server_side, more)
        stepped(fresh, more)
    assert sorted(server_side.state()) == sorted(f"last/{age}/{key}" for age in (0, 1) for key in ("w", "w.buffers"))
