"""The host does not wait where it need not: what is begun early, what is folded when, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.store import read
from coordinator.rounds import pool_trainer
from coordinator.rounds.budget import TARGET
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.evaluation import PoolEvaluator
from coordinator.rounds.pool_trainer import SPARE_REPLIES
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.run import FederatedRun, RoundFinished
from coordinator.rounds.synchronous import run_synchronous
from coordinator.workers.task import PoolError, PoolTask, ReplyHandler, Stopped
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.messages import Evaluate, Totals, Train, Update
from edge.protocol.payload import MODEL, Vector, sha256
from edge.protocol.rng import keyed_generator
from tests.toy import Direct, Later, build_now, direct, federation, play, set_workers, store

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
UNEVEN = PartitionConfig("dirichlet-unbalanced", alpha=0.5, min_samples=1)


@dataclass
class Desk:
    """Workers that note what they are asked, and when it is waited for or not wanted any more."""

    inner: Direct
    said: list[str] = field(default_factory=list)
    tasks: list[list[PoolTask]] = field(default_factory=list)
    size: int = 1
    build = staticmethod(build_now)

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> Noted:
        first, scores = tasks[0].message, sum(said.startswith("submit score") for said in self.said)
        name = f"train {first.round}" if isinstance(first, Train) else f"score {scores}"
        self.said.append(f"submit {name}")
        self.tasks.append(list(tasks))
        return Noted(self, name, self.inner.submit(tasks, heard))


@dataclass
class Noted:
    desk: Desk
    name: str
    order: Any

    def wait(self) -> None:
        self.desk.said.append(f"wait {self.name}")
        self.order.wait()

    def collect(self) -> Totals:
        raise AssertionError("nothing is added up in workers")

    def cancel(self) -> None:
        self.desk.said.append(f"cancel {self.name}")
        self.order.cancel()


def watched(folder: Path, method: str = "fedavg", **how: Any) -> tuple[FederatedRun, Desk]:
    run = federation(folder, method, train=BRIEF, **how)
    desk = Desk(direct(run))
    set_workers(run, desk)
    return run, desk


def finished(run: FederatedRun, policy: Callable[[FederatedRun], str] = run_synchronous) -> str:
    try:
        return policy(run)
    finally:
        store(run).ledger.close()


# --- the next round begins while this one is scored -------------------------------------------------------------------


def test_the_next_rounds_visits_go_in_behind_the_score_and_are_waited_for_after_it(tmp_path: Path) -> None:
    run, desk = watched(tmp_path, rounds=2)
    finished(run)
    assert ", ".join(desk.said) == (
        "submit train 0, wait train 0, submit score 0, submit train 1, wait score 0, wait train 1, submit score 1, "
        "wait score 1"
    )


def test_visits_begun_early_are_discarded_and_charged_to_nobody_when_the_score_ends_the_run(tmp_path: Path) -> None:
    run, desk = watched(tmp_path, "fedbr", rounds=99, target=0.05)
    assert finished(run) == TARGET
    assert desk.said[-3:] == ["submit train 1", "wait score 0", "cancel train 1"]
    alone = play(tmp_path / "alone", "fedbr", train=BRIEF, rounds=1)
    early, late = run.committed, alone.federation.committed
    assert early == late
    for rows in ("SELECT * FROM visits", "SELECT * FROM transfers", "SELECT * FROM choices"):
        assert [tuple(row) for row in read(tmp_path / "ledger.sqlite", rows)] == alone.rows(rows)


# --- how it ends in the middle ----------------------------------------------------------------------------------------


class Prompt(Direct):
    """Workers so fast that replies come before they are waited for, and an end that is heard while waiting."""

    early = 99
    """So many replies come at once."""
    asked = False
    """Whether the user has asked for an end."""
    orders: list[Later]

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> Later:
        later = super().submit(tasks, heard)
        order = Interruptible(later.left, later.sums, self)
        self.orders = [*getattr(self, "orders", []), order]
        for do in [order.left.pop(0) for _ in range(min(self.early, len(tasks)))]:
            do()
        return order


@dataclass
class Interruptible(Later):
    workers: Prompt | None = None

    def wait(self) -> None:
        if self.workers is not None and self.workers.asked:
            raise Stopped
        super().wait()


def prompt(folder: Path, early: int = 99, **how: Any) -> tuple[FederatedRun, Prompt]:
    run = federation(folder, train=BRIEF, **how)
    workers = Prompt(direct(run).site, direct(run).shuffle)
    set_workers(run, workers)
    workers.early = early
    run.is_stopped = lambda: workers.asked
    return run, workers


@pytest.mark.parametrize("early", [0, 2, 99])
def test_who_asks_for_an_end_on_hearing_of_a_round_gets_it_after_that_round(early: int, tmp_path: Path) -> None:
    # Without a score in round 2 nothing else would ask, if all its replies had come while round 1 was scored.
    run, workers = prompt(tmp_path, early, rounds=9, eval_every=2)

    def end_after_two(progress: RoundFinished) -> None:
        workers.asked = progress.row.round == 1

    run.on_round = end_after_two
    with pytest.raises(Stopped):
        finished(run)
    assert run.committed.rounds == 2


@pytest.mark.parametrize("why", [SystemExit(130), PoolError("three workers died")], ids=lambda why: type(why).__name__)
def test_a_second_ctrl_c_is_not_swallowed_and_workers_that_have_given_up_are_not_waited_for(
    why: BaseException, tmp_path: Path
) -> None:
    run, workers = prompt(tmp_path, 0, rounds=5)
    able = run.eligible

    def ended(candidates: Sequence[int], round: int) -> list[int]:
        if round == 1:
            workers.asked = isinstance(why, SystemExit)
            raise why
        return able(candidates, round)

    run.eligible = ended  # type: ignore[method-assign]
    with pytest.raises(type(why)) as caught:
        finished(run)
    assert caught.value is why
    assert isinstance(why, SystemExit) or [len(order.left) for order in workers.orders] == [0, 1]  # no score


def test_nothing_of_the_next_round_stays_open_if_this_one_cannot_be_committed(tmp_path: Path) -> None:
    run, workers = prompt(tmp_path, early=9, clients=10, rounds=5, shuffle=1)

    def refuse(commit: object) -> list[str]:
        raise OSError("disk full")

    store(run).ledger.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        finished(run)
    assert [len(order.left) for order in workers.orders] == [0] * 3
    open_files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [name for name in open_files if "replies-" in name]


# --- longest first, folded in client order, few held ------------------------------------------------------------------


def test_workers_get_the_longest_visits_first(tmp_path: Path) -> None:
    run = federation(tmp_path, clients=6, rounds=1, partition=UNEVEN, train=TrainConfig(batch=16))
    desk = Desk(direct(run))
    set_workers(run, desk)
    finished(run)
    asked = [task.message.client for task in desk.tasks[0] if isinstance(task.message, Train)]
    held = run.description.samples
    assert asked == sorted(range(6), key=lambda client: (-held[client], client))
    assert asked != list(range(6))
    assert [task.flops for task in desk.tasks[0]] == sorted((task.flops for task in desk.tasks[0]), reverse=True)


@dataclass
class ByHand:
    """Workers whose replies the test hands over, in the order that it likes."""

    size: int = 1
    build = staticmethod(build_now)
    heard: ReplyHandler | None = None
    tasks: dict[int, PoolTask] = field(default_factory=dict)

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> ByHand:
        self.heard = heard
        self.tasks = {task.message.client: task for task in tasks if isinstance(task.message, Train)}
        return self

    def wait(self) -> None:
        pass

    def collect(self) -> Totals:
        raise AssertionError("nothing is added up in workers")

    def cancel(self) -> None:
        pass

    def answer(self, client: int, reply: Update) -> None:
        assert self.heard is not None
        self.heard(self.tasks[client], reply)


def test_replies_are_folded_in_client_order_and_at_most_workers_plus_two_long_ones_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_trainer, "REORDER_NBYTES", 0)  # as if these updates were long
    clients = 12
    run = federation(tmp_path, clients=clients, rounds=1, weights="uniform")
    visits = [run.prepare(client, 0) for client in range(clients)]
    workers = ByHand()
    set_workers(run, workers)
    folded: list[int] = []
    server = run.server
    fold = server.accumulate

    def note_and_fold(reply: Update) -> None:
        folded.append(reply.client)
        fold(reply)

    server.accumulate = note_and_fold  # type: ignore[method-assign]
    training = CohortTraining(run.trainer, run.server, visits)
    most = 0
    for client in reversed(range(clients)):
        model = {key: Vector(np.full_like(v.data, client)) for key, v in server.model.items()}
        numbers = {"loss": 1.0, "samples": 1.0, "steps": 1.0, "flops": visits[client].work.flops}
        workers.answer(client, Update(client, 0, numbers, {MODEL: model}))
        most = max(most, len(training._reorder_buffer._in_memory))
        assert folded == (list(range(clients)) if client == 0 else [])
    assert most == workers.size + SPARE_REPLIES == 3
    replies = training.wait()
    store(run).ledger.close()
    assert [reply.client for reply in replies] == list(range(clients))
    assert all(reply.payload == {} for reply in replies)
    server.step()
    assert {float(n) for vector in server.model.values() for n in vector.data} == {5.5}


# --- a score on a part of the test set --------------------------------------------------------------------------------


def test_a_score_may_use_a_part_of_the_test_set_the_same_in_every_round(tmp_path: Path) -> None:
    run = federation(tmp_path, rounds=2, train=BRIEF)
    desk, site = Desk(direct(run)), direct(run).site
    assert isinstance(run.evaluator, PoolEvaluator)
    run.evaluator.job = site.job = replace(run.job, eval_subset=70, eval_batch=32)
    set_workers(run, desk)
    finished(run)
    shards = [
        [(task.message.start, task.message.stop) for task in tasks if isinstance(task.message, Evaluate)]
        for tasks in desk.tasks
    ]
    assert [some for some in shards if some] == [[(0, 32), (32, 64), (64, 70)]] * 2
    drawn = np.sort(keyed_generator(0, "eval").permutation(360)[:70])
    assert site.evaluated_indices.tolist() == drawn.tolist()
    x, y = site.test_set.fetch(drawn)
    site.net.train_mode(False)
    site.net.load(run.server.model)
    correct = int((site.net.run(x).argmax(dim=1) == y).sum())
    (last,) = read(tmp_path / "ledger.sqlite", "SELECT accuracy FROM rounds WHERE round = 1")
    assert last["accuracy"] == correct / 70
    assert replace(run.job, eval_subset=10**6).scored(360) == 360


# --- replies that wait for their turn ---------------------------------------------------------------------------------


def reply(client: int, size: int = 1000) -> Update:
    rng = np.random.default_rng(client)
    head, body = (Vector(rng.standard_normal(n).astype(np.float32)) for n in (size, 7))
    return Update(client, 3, {"loss": client / 10}, {MODEL: {"head": head}, "control": {"body": body}})


def test_what_comes_back_is_what_was_put_in_wherever_it_was_meanwhile(tmp_path: Path) -> None:
    with ReorderBuffer(2, tmp_path) as held:
        for client in range(6):
            held.add(reply(client))
        assert len(held._in_memory) == 2
        for client in (5, 0, 3, 1, 4, 2):
            back, before = held.take(client), reply(client)
            assert sha256(back.payload) == sha256(before.payload)
            assert (back.client, back.round, back.numbers) == (client, 3, {"loss": client / 10})
            assert list(back.payload) == ["model", "control"]
            assert client not in held


def test_the_file_has_no_name_and_its_places_are_used_again(tmp_path: Path) -> None:
    with ReorderBuffer(0, tmp_path) as held:
        for client in range(50):
            held.add(reply(client))
            if client >= 3:
                held.take(client - 3)
        assert held._end == 4 * 4028  # never more than four at a time
        assert list(tmp_path.iterdir()) == []
