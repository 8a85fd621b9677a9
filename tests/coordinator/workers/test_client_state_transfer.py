"""What clients keep, between a pool and remote workers that do not reach its files: when it counts, and what is
refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace as changed

from coordinator.workers.task import PoolTask, Reply, UpdateValidator
from edge.protocol import client_state, messages
from edge.protocol.payload import Payload, Vector
from tests.pools import ALICE, Opener, Peer, answer, meanwhile, visit

BEFORE: Payload = {
    "model": {"a": Vector(np.array([1.0, 2.0], np.float32)), "empty": Vector(np.zeros(0, np.float32))},
    "control": {"a": Vector(np.array([np.nan], np.float32))},
}
AFTER: Payload = {"model": {"a": Vector(np.array([3.0, 4.0], np.float32))}}
SHAPES = {"model": {"a": 2}}
DOWN: Payload = {"model": {"a": Vector(np.zeros(2, np.float32))}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of files that clients keep; client 7 has one."""
    (tmp_path / "state").mkdir()
    client_state.write(str(tmp_path / "state" / "before"), BEFORE)
    return tmp_path / "state"


def keeping(folder: Path) -> PoolTask:
    """A visit to client 7, which has kept something and is to keep something."""
    asked = visit(7, payload=DOWN, state_in=folder / "before", state_out=folder / "after")
    return replace(asked, validator=UpdateValidator(client_state_shapes=SHAPES))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def plain(payload: Payload) -> dict[str, dict[str, list[float]]]:
    return {slot: {key: vector.data.tolist() for key, vector in named.items()} for slot, named in payload.items()}


class Guest(Peer):
    """A peer that knows what clients keep."""

    def asked(self) -> tuple[int, messages.Update]:
        """Hear what client 7 has kept, and the visit; the task's number, and the right update."""
        ahead, kept = self.hear()
        if isinstance(kept, messages.Ping):  # the pool looks who is still there
            ahead, kept = self.hear()
        sequence, task = self.hear()
        assert isinstance(kept, messages.ClientState) and ahead == sequence
        assert repr(plain(kept.payload)) == "{'control': {'a': [nan]}, 'model': {'a': [1.0, 2.0], 'empty': []}}"
        return sequence, answer(task)

    def do(self) -> None:
        """The visit, as an honest worker does it."""
        sequence, update = self.join().asked()
        self.say(messages.ClientState(7, AFTER), sequence)
        self.say(update, sequence)


def test_it_goes_ahead_of_the_visit_and_is_written_before_the_update_is_heard(listening: Opener, folder: Path) -> None:
    host, found = listening(0), list[bytes]()

    def hear(task: PoolTask, reply: Reply) -> None:
        found.append((folder / "after").read_bytes())

    with Guest(host.endpoint, ALICE) as alice:
        with meanwhile(alice.do):
            host.pool.submit([keeping(folder)], hear).wait()
        named = (alice.envelope.state_in, alice.envelope.state_out)
    assert named == ("before", "after")  # and not where they lie
    client_state.write(str(folder / "as a worker of ours writes it"), AFTER)
    assert found == [(folder / "as a worker of ours writes it").read_bytes()]
    assert files(folder) == ["after", "as a worker of ours writes it", "before"]


def test_it_does_not_go_back_to_the_remote_worker_that_did_the_last_visit_unless_that_has_lost_it(
    listening: Opener, folder: Path
) -> None:
    """Thrice: the second visit finds it there, the third does not."""
    host = listening(0)

    def serve() -> None:
        with Guest(host.endpoint, ALICE) as alice:
            alice.do()
            for is_there in (True, False):
                sequence, task = alice.hear()
                assert isinstance(task, messages.Train) and alice.envelope.state_in == "after"
                if not is_there:
                    alice.say(messages.Error(client_state.MISSING, "not here"), sequence)
                    ahead, kept = alice.hear()
                    assert isinstance(kept, messages.ClientState) and plain(kept.payload) == plain(AFTER)
                    assert (ahead, alice.hear()[0]) == (sequence, sequence)
                alice.say(KEPT, sequence)
                alice.say(answer(task), sequence)

    def again() -> PoolTask:
        asked = visit(7, payload=DOWN, state_in=folder / "after", state_out=folder / "after")
        return replace(asked, validator=UpdateValidator(client_state_shapes=SHAPES))

    with meanwhile(serve):
        for task in (keeping(folder), again(), again()):
            host.pool.submit([task], lambda task, reply: None).wait()
    assert host.of("task_failed") == []


# --- what is refused --------------------------------------------------------------------------------------------------

KEPT = messages.ClientState(7, AFTER)
LONG: Payload = {"model": {"a": Vector(np.zeros(3, np.float32))}}
LONG_SHAPES, OTHER_SHAPES = (f"{found} instead of {SHAPES}" for found in ({"model": {"a": 3}}, {"other": {"a": 2}}))
Said = list[tuple[messages.Message, int]]
VISIT = "client 7, round 6, train"
INSTEAD = "in place of the update of task 1"
WRONG: list[tuple[Callable[[messages.Update, int], Said], str]] = [
    (lambda update, n: [(update, n)], f"{VISIT}: the client's state did not come ahead of the update"),
    (lambda update, n: [(changed(KEPT, client=8), n), (update, n)], f"state of client 8 does not answer: {VISIT}"),
    (lambda update, n: [(changed(KEPT, payload=LONG), n), (update, n)], f"{VISIT}: state of shapes {LONG_SHAPES}"),
    (lambda update, n: [(KEPT, n + 1), (update, n)], "task 2 is not assigned to it"),
    (lambda update, n: [(KEPT, n), (KEPT, n), (update, n)], f"a ClientState {INSTEAD}"),
    (lambda update, n: [(KEPT, n), (messages.Error("E", ""), n)], f"a Error {INSTEAD}"),
    (lambda update, n: [(KEPT, n), (update, n + 1)], f"a Update {INSTEAD}"),
    (lambda update, n: [(KEPT, n), (structs.replace(update, client=8), n)], f"a Update that does not answer: {VISIT}"),
]


@pytest.mark.parametrize(("said", "reason"), WRONG)
def test_what_does_not_fit_is_refused_and_written_nowhere_and_the_visit_is_done_by_another(
    listening: Opener, folder: Path, said: Callable[[messages.Update, int], Said], reason: str
) -> None:
    def act(eve: Guest, update: messages.Update, n: int) -> None:
        for message, sequence in said(update, n):
            eve.say(message, sequence)

    _refused_then_done(listening, folder, reason, act)


def _refused_then_done(
    listening: Opener, folder: Path, reason: str, act: Callable[[Guest, messages.Update, int], object]
) -> None:
    host, done = listening(0), list[Reply]()

    def serve() -> None:
        with Guest(host.endpoint, ALICE) as eve:
            sequence, update = eve.join().asked()
            act(eve, update, sequence)
            while not isinstance(bye := eve.hear()[1], messages.Shutdown):
                pass
            assert bye.why.startswith(f"its message was refused: from remote-1: {reason}")
        assert (files(folder), done) == (["before"], [])
        with Guest(host.endpoint, ALICE, "remote-2") as alice:
            alice.do()

    with meanwhile(serve):
        host.pool.submit([keeping(folder)], lambda task, reply: done.append(reply)).wait()
    assert plain(client_state.read(str(folder / "after"))) == plain(AFTER)
    assert len(host.of("task_repeated")) == 1
    host.pool.__exit__(None, None, None)


# --- remote workers that are lost, visits that are cancelled, disks that refuse ---------------------------------------


def test_what_a_remote_worker_brought_before_it_was_lost_does_not_count(listening: Opener, folder: Path) -> None:
    host = listening(0)

    def serve() -> None:
        with Guest(host.endpoint, ALICE) as alice:
            sequence, _ = alice.join().asked()
            alice.say(messages.ClientState(7, {"model": {"a": Vector(np.full(2, 9.0, np.float32))}}), sequence)
        with Guest(host.endpoint, ALICE, "remote-2") as alice:
            sequence, update = alice.join().asked()
            assert files(folder) == ["before"]
            alice.say(KEPT, sequence)
            alice.say(update, sequence)

    with meanwhile(serve):
        host.pool.submit([keeping(folder)], lambda task, reply: None).wait()
    assert plain(client_state.read(str(folder / "after"))) == plain(AFTER)
