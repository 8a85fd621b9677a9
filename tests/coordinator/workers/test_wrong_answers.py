"""Remote workers that answer wrongly or never: each costs its own connection, and the run goes on with others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from coordinator.workers import scheduler as scheduling
from coordinator.workers.monitor import TermClock
from coordinator.workers.scheduler import GETTING_READY
from coordinator.workers.task import PoolTask, Reply, ReplyValidator
from edge.protocol import messages
from edge.protocol.messages import Update
from edge.protocol.payload import Payload
from tests.pools import ALICE, BOB, Opener, Peer, answer, meanwhile, sums, visit


class FiniteNumbers(ReplyValidator):
    def examine(self, task: PoolTask, reply: Reply, state: Payload) -> tuple[Reply, str | None]:
        assert isinstance(reply, Update)
        wrong = [name for name, number in reply.numbers.items() if not math.isfinite(number)]
        return reply, f"client {reply.client}: {wrong[0]} = {reply.numbers[wrong[0]]}" if wrong else None


def doubtful(client: int) -> PoolTask:
    """A visit whose update is looked at before it counts."""
    return replace(visit(client), validator=FiniteNumbers())


def lie(task: messages.Message, **numbers: float) -> Update:
    return structs.replace(answer(task), numbers=numbers)


def does(peer: Peer, act: Callable[[messages.Message], messages.Message], count: int) -> None:
    """Join, and answer so many tasks like this; then wait to be sent away."""
    peer.join()
    for _ in range(count):
        sequence, task = peer.hear()
        if isinstance(task, messages.Shutdown):
            return
        peer.say(act(task), sequence)


@pytest.mark.parametrize(
    ("loss", "is_remote", "is_doubted", "doubt"),
    [
        (0.5, True, True, ""),
        (math.nan, True, False, "client 3: loss = nan"),
        (math.nan, False, True, "client 3: loss = nan"),
        (math.nan, False, False, ""),  # a local worker's update is validated by the run, once
    ],
)
def test_a_validator_accepts_a_reply_or_doubts_it(loss: float, is_remote: bool, is_doubted: bool, doubt: str) -> None:
    task = doubtful(3)
    reply = lie(task.message, loss=loss)
    assert task.validator.check(task, reply, None, is_remote, is_doubted) == (reply, doubt)


def test_a_validator_refuses_what_no_honest_worker_sends() -> None:
    task = doubtful(3)
    with pytest.raises(messages.WireError, match=r"a Update that does not answer: client 3, round 6, train"):
        task.validator.check(task, lie(visit(4).message), None, True, False)
    keeping = replace(task, state_out="after")
    with pytest.raises(messages.WireError, match=r"the client's state did not come ahead of the update"):
        keeping.validator.check(keeping, lie(task.message), None, True, False)
    reply = lie(task.message)
    assert keeping.validator.check(keeping, reply, None, False, False) == (reply, "")


def test_an_update_that_cannot_be_used_is_tried_elsewhere_and_its_sender_is_named(listening: Opener) -> None:
    host = listening(1)
    with Peer(host.endpoint, ALICE) as alice, meanwhile(lambda: does(alice, lambda task: lie(task, loss=math.nan), 1)):
        while not host.of("worker_died"):
            assert sums(host.pool, [doubtful(n) for n in range(4)]) == {n: [n, n + 1.0] for n in range(4)}
    (failed,) = host.of("task_failed")
    assert failed.startswith(f"worker 1, a remote worker, key {ALICE[0].decode()}: client ")
    assert failed.endswith("loss = nan")
    assert host.of("worker_died") == [
        "worker 1, a remote worker, is gone: its reply could not be used, and another worker's to the same task could"
    ]


def test_what_two_remote_workers_agree_on_is_the_trainings_fault_and_is_heard(listening: Opener) -> None:
    host, heard = listening(0), []

    def nan(task: messages.Message) -> Update:
        return lie(task, loss=math.nan)

    with Peer(host.endpoint, ALICE) as alice, Peer(host.endpoint, BOB, "remote-2") as bob:
        with meanwhile(lambda: does(alice, nan, 1)), meanwhile(lambda: does(bob, nan, 1)):
            host.until(lambda: len(host.of("worker_joined")) == 2)
            order = host.pool.submit([doubtful(3)], lambda task, reply: heard.append(reply))
            order.wait()
        assert host.of("worker_died") == []
    (update,) = heard
    assert isinstance(update, Update)
    assert math.isnan(update.numbers["loss"])
    assert update.by.startswith("worker ") and ", a remote worker, key " in update.by


def test_a_task_that_is_taken_and_never_answered_is_done_elsewhere_when_its_term_is_over(
    listening: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scheduling.TERM_SECONDS == 180.0
    monkeypatch.setattr(scheduling, "TERM_SECONDS", 1.0)
    monkeypatch.setattr(scheduling, "UNKNOWN_TERM_SECONDS", 1.0)
    host, told = listening(1), []

    def squat() -> None:
        with Peer(host.endpoint, ALICE) as alice:
            alice.join().hear()
            while not isinstance(message := alice.hear()[1], messages.Shutdown):
                pass
            told.append(message.why)

    with meanwhile(squat):
        while not told:
            assert sums(host.pool, [visit(n) for n in range(4)]) == {n: [n, n + 1.0] for n in range(4)}
            host.pool.submit([], lambda task, reply: None)
    assert told[0].startswith("the reply to client ")
    assert told[0].endswith(", round 6, train did not come within 1 s")
    assert host.of("worker_died") == [f"worker 1, a remote worker, is gone: {told[0]}"]


def test_a_key_whose_remote_workers_were_dismissed_three_times_is_let_in_no_more(listening: Opener) -> None:
    host, last = listening(1), []

    def offend() -> None:
        for number in range(3):
            with Peer(host.endpoint, ALICE, f"remote-{number}") as alice:
                alice.join()
                alice.send([b"junk", b"junk"])
                assert isinstance(alice.hear()[1], messages.Shutdown)
        with Peer(host.endpoint, ALICE, "remote-3") as alice:
            alice.say(messages.Hello())
            last.append(alice.hear()[1])
        with Peer(host.endpoint, BOB, "remote-4") as bob:
            bob.join()

    with meanwhile(offend):
        host.until(lambda: len(host.of("worker_joined")) == 4)
    assert last == [messages.Shutdown("remote workers of its key have been dismissed 3 times in this run")]
    assert [text.removeprefix("a remote worker, key ") for text in host.of("worker_joined")] == [
        *[ALICE[0].decode()] * 3,
        BOB[0].decode(),
    ]


def test_a_remote_worker_is_not_told_where_files_lie_on_the_machine_of_the_run(
    listening: Opener, tmp_path: Any
) -> None:
    host = listening(0)
    asked = host.pool._handler.job
    host.pool._handler.job = replace(asked, cache="/home/me/.cache", data=replace(asked.data, root="/home/me/data"))
    told: list[messages.Message] = []

    def join() -> None:
        with Peer(host.endpoint, ALICE) as alice:
            alice.say(messages.Hello())
            told.append(alice.hear()[1])

    with meanwhile(join):
        host.until(lambda: told)
    (welcome,) = told
    assert isinstance(welcome, messages.Welcome)
    assert (welcome.job.cache, welcome.job.data.root) == ("", None)
    assert "/home" not in repr(welcome)


# --- terms ------------------------------------------------------------------------------------------------------------


def at_work(flops: float, seasoned: float | None = None, own: float | None = None) -> float:
    """The term of a remote worker's task; ``seasoned``: what a worker of ours took over 100 FLOPs, ``own``: what it
    did."""
    found = scheduling.TaskScheduler(1)
    found.begin()
    found.ready(0)
    if seasoned is not None:
        found.submitted([(1, "task", 100.0)])
        found.answered_all(0, [(1, seasoned, False)])
    found.submitted([(2, "task", 0.0)])  # keeps the worker of ours busy
    remote_worker = found.joined("key")
    found.ready(remote_worker)
    if own is not None:
        found.submitted([(3, "task", 100.0)])
        found.answered_all(remote_worker, [(3, own, False)])
    found.submitted([(4, "task", flops)])
    assert found.running_task(remote_worker) == 4
    ((task, seconds),) = found.terms(remote_worker).items()
    assert task == 4
    return seconds


def test_a_term_is_many_times_what_a_task_should_take_and_at_least_three_minutes() -> None:
    assert at_work(flops=100.0, seasoned=0.5) == 180.0
    assert at_work(flops=1000.0, seasoned=0.5) == 500.0  # ten times the work, 0.5 s each, and a hundred times that
    assert at_work(flops=1000.0, seasoned=0.5, own=3.0) == 600.0  # by its own pace, 30 s, and twenty times that
    assert at_work(flops=1e12) == 10_000.0  # at 100 MFLOP/s, while nobody knows better
    assert at_work(flops=0.0, seasoned=0.5) == 3600.0
    found = scheduling.TaskScheduler(0)
    remote_worker = found.joined("key")
    assert found.terms(remote_worker) == {scheduling.GETTING_READY: 600.0}
    found.ready(remote_worker)
    assert found.terms(remote_worker) == {}
    found.submitted([(1, "task", 1e10), (2, "task", 2e10)])
    for sequence in (1, 2):
        found.answered_all(remote_worker, [(sequence, 10.0 * sequence, True)])
    found.collect([1, 2])
    assert found.terms(remote_worker) == {scheduling.GIVING_SUMS: 600.0}  # a node agent may do both again, twenty times


# --- the clock of terms -----------------------------------------------------------------------------------------------

AGENT = 4


def checked(clock: TermClock, now: float, terms: dict[int, float], file_sent_at: float = -1.0) -> object:
    """One check of a node agent, the only remote worker."""
    clock.begin_check(now, [AGENT])
    return clock.late(AGENT, terms, now, file_sent_at)


def test_any_running_task_of_a_node_agent_may_be_late_whatever_the_others_do() -> None:
    clock, terms = TermClock(), {1: 20.0, 2: 20.0, 3: 20.0}
    assert [checked(clock, now, terms) for now in (0.0, 8.0)] == [None, None]
    moved_on = {1: 20.0, 3: 20.0, 5: 20.0}  # task 2 was answered, and task 5 runs in its place since 16 s
    assert [checked(clock, now, moved_on) for now in (16.0, 20.0)] == [None, None]
    assert checked(clock, 21.0, {5: 20.0, 3: 20.0}) == (3, 20.0)
    assert checked(clock, 22.0, {5: 20.0}) is None
    assert [checked(clock, now, {5: 20.0}) for now in (31.0, 37.0)] == [None, (5, 20.0)]


def test_terms_begin_anew_after_a_pause_of_this_process_and_for_each_worker() -> None:
    clock = TermClock()
    assert [checked(clock, now, {1: 15.0}) for now in (0.0, 8.0)] == [None, None]
    assert [checked(clock, now, {1: 15.0}) for now in (20.0, 28.0, 36.0)] == [None, None, (1, 15.0)]
    clock.begin_check(37.0, [])
    assert checked(clock, 38.0, {1: 15.0}) is None


def test_nobody_is_late_in_getting_ready_while_files_are_sent() -> None:
    clock, terms = TermClock(), {GETTING_READY: 15.0}
    assert [checked(clock, now, terms, file_sent_at=12.0) for now in (0.0, 9.0, 18.0, 27.0)] == [None] * 4
    assert checked(clock, 28.0, terms, file_sent_at=12.0) == (GETTING_READY, 15.0)
