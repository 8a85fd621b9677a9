"""Who may join a pool from another machine, over real sockets: what a remote worker may do, and what nobody may."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from coordinator.workers import monitor
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, PoolTask, Reply
from edge.protocol import messages
from edge.protocol.payload import Vector
from tests.pools import ALICE, AUTH, BOB, EVE, RUN, Host, Opener, Peer, meanwhile, sums, visit

# --- who is welcome ---------------------------------------------------------------------------------------------------


def test_a_remote_worker_does_the_work_of_a_pool_that_has_no_workers_of_its_own(listening: Opener) -> None:
    host = listening(0)
    with Peer(host.endpoint, ALICE) as alice:
        with meanwhile(lambda: alice.join().serve(3)):
            assert sums(host.pool, [visit(client) for client in range(3)]) == {n: [n, n + 1.0] for n in range(3)}
        assert host.of("worker_joined") == [f"a remote worker, key {ALICE[0].decode()}"]
        host.pool.__exit__(None, None, None)
        assert alice.hear() == (0, messages.Shutdown())


def test_what_a_lost_remote_worker_had_in_hand_is_done_by_others_and_nobody_is_to_blame(listening: Opener) -> None:
    host, lost = listening(1), threading.Event()

    def lose_four() -> None:  # one more than a task survives where workers of ours die of it
        for number in range(4):
            with Peer(host.endpoint, ALICE, f"remote-{number}") as alice:
                alice.join().hear()
        lost.set()

    with meanwhile(lose_four):
        while not lost.is_set():
            assert sums(host.pool, [visit(n) for n in range(8)]) == {n: [n, n + 1.0] for n in range(8)}
    host.until(lambda: len(host.of("worker_died")) == 4)
    assert [text.split(":")[0] for text in host.of("worker_died")] == [
        f"worker {number}, a remote worker, is gone" for number in range(1, 5)
    ]
    assert len(host.of("task_repeated")) >= 2  # a worker may go between two tasks
    assert len(host.of("worker_started")) == 1  # nobody was started in their place


@pytest.mark.parametrize("declines", [False, True])
def test_a_pool_whose_remote_workers_have_gone_gives_up_soon_unless_its_first_could_not_serve(
    listening: Opener, monkeypatch: pytest.MonkeyPatch, declines: bool
) -> None:
    monkeypatch.setattr(monitor, "FIRST_REMOTE_WORKER_SECONDS", 1.5)
    monkeypatch.setattr(monitor, "NEXT_REMOTE_WORKER_SECONDS", 0.0 if declines else 0.5)
    host, seconds = listening(0), 1.5 if declines else 0.5
    why = "JoinError: other last bits" if declines else "it could not be reached: Host unreachable"

    def come_and_go() -> None:
        with Peer(host.endpoint, ALICE) as alice:
            if declines:
                assert alice.decline("other last bits") == messages.Shutdown(why)
            else:
                alice.join().hear()

    with meanwhile(come_and_go), pytest.raises(PoolError) as error:
        sums(host.pool, [visit(0)])
    assert host.of("worker_died") == [f"worker 0, a remote worker, is gone: {why}"]
    assert str(error.value) == (
        f"no worker has been there for {seconds} s, and none has joined at {host.endpoint}; "
        f"the last remote worker went: {why}"
    )


def test_the_endpoint_is_named_if_it_is_taken_and_our_own_socket_is_for_this_user_alone(
    listening: Opener, launcher: WorkerLauncher, tmp_path: Path
) -> None:
    host = listening(1)
    (folder,) = Path(tempfile.gettempdir()).glob("fedbr-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["pool", "remote_workers"]
    second = Host(1, launcher, tmp_path)
    second.pool.remote_access = host.pool.remote_access
    with pytest.raises(PoolError, match=f"cannot listen on {host.endpoint}: Address already in use"), second.pool:
        pass


# --- who is not -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "server", "is_asked_about"),
    [
        pytest.param(EVE, RUN[0], True, id="a key that is not on the list"),
        pytest.param(ALICE, EVE[0], False, id="the key of another run"),
        pytest.param((ALICE[0], EVE[1]), RUN[0], False, id="a public key without its secret half"),
        pytest.param(None, RUN[0], False, id="no key"),
    ],
)
def test_without_the_right_keys_nobody_is_let_in(
    listening: Opener, keys: tuple[bytes, bytes] | None, server: bytes, is_asked_about: bool
) -> None:
    host = listening(1)
    failures: list[zmq.Event] = []
    with Peer(host.endpoint, keys, server=server) as eve:
        eve.say(messages.Hello())
        with meanwhile(lambda: failures.append(eve.failure())):
            host.until(lambda: failures)
        assert eve.hears_nothing
    assert (failures == [AUTH]) == is_asked_about  # the others have failed before their key could be looked up
    assert host.of("worker_joined") == []
    refusals = [text for text in host.of("message_refused") if EVE[0].decode() in text]
    assert len(refusals) == is_asked_about


def test_nobody_speaks_in_the_name_of_a_worker_of_ours(listening: Opener) -> None:
    host = listening(1)
    sums(host.pool, [visit(0)])
    name = host.pool._registry[0].identity
    with Peer(host.endpoint, BOB, name) as bob:
        bob.run_id = "run-1"
        for sequence in range(1, 5):  # whichever it will be
            bob.say(messages.Update(1, 5, {}, {"model": {"a": Vector(model_of(9.0))}}), sequence)
        bob.say(messages.Error("ValueError", "blame"), 2)
        host.until(lambda: host.of("message_refused"))
        bob.run_id = messages.NO_RUN
        bob.say(messages.Hello())
        assert bob.hears_nothing
    assert host.of("message_refused")[0].startswith(f"from {name}: not a worker of this pool")
    assert (host.of("worker_died"), host.of("worker_joined"), host.of("task_failed")) == ([], [], [])


def test_nobody_speaks_in_the_name_of_another_remote_worker(listening: Opener) -> None:
    host = listening(1)
    with Peer(host.endpoint, ALICE) as alice, Peer(host.endpoint, BOB, "remote-2") as bob:
        with meanwhile(lambda: (alice.join(), bob.join())):
            host.until(lambda: len(host.of("worker_joined")) == 2)
        bob.say(messages.Pong(), envelope_name="remote-1")
        host.until(lambda: host.of("worker_died"))
    assert host.of("message_refused") == ["from remote-2: the envelope names remote-1 (1 refused so far)"]
    assert host.of("worker_died") == [
        "worker 2, a remote worker, is gone: its message was refused: from remote-2: the envelope names remote-1"
    ]


def test_a_name_that_a_lost_remote_worker_leaves_behind_is_not_taken_over_with_another_key(listening: Opener) -> None:
    """libzmq forgets a lost peer's name at once, and the pool looks for whom it lost a second later."""
    host, heard = listening(0), []

    def hear(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update)
        heard.append(float(reply.payload["model"]["a"].data[0]))

    def steal() -> None:
        with Peer(host.endpoint, ALICE) as alice:
            sequence, task = alice.join().hear()
            run_id = alice.run_id
        with Peer(host.endpoint, BOB) as bob:  # under her name
            bob.run_id = run_id
            assert isinstance(task, messages.Train)
            forged = messages.Update(task.client, task.round, {}, {"model": {"a": Vector(model_of(66.0))}})
            for _ in range(20):
                bob.say(forged, sequence)
                time.sleep(0.02)
        with Peer(host.endpoint, ALICE, "remote-3") as alice:
            alice.join().serve(1)

    with meanwhile(steal):
        host.pool.submit([visit(7)], hear).wait()
    assert heard == [7.0]
    assert host.of("message_refused")[0].startswith("from remote-1: not a worker of this pool")
    assert host.of("worker_died")[0] == "worker 0, a remote worker, is gone: another has come under its name"


# --- a node agent -----------------------------------------------------------------------------------------------------


def model_of(value: float) -> Any:
    return np.full(100_000, value, np.float32)
