"""What clients keep, on the machine of a remote worker: a real process, and a coordinator that says what it likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.protocol import client_state, codec, messages
from edge.protocol.payload import Payload, Vector
from edge.runtime import client_state_transfer
from tests.edge.protocol.mutations import JOB, pack
from tests.edge.runtime.listener import Listener

TASK = messages.Train(2, 5, 0.1, {}, {})


def kept(value: float) -> Payload:
    return {"model": {"a": Vector(np.full(3, value, np.float32))}}


@pytest.fixture
def remote_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    """That has been welcomed, and leaves no file behind."""
    opened = Listener(tmp_path_factory.mktemp("g"), "tests.edge.runtime.listener:remote_worker")
    assert opened.hear() == (0, messages.Hello())
    opened.send(pack(messages.Welcome(JOB), codec.Envelope(opened.identity)))
    yield opened
    assert opened.close() == 0
    assert list(opened.temporary.iterdir()) == []


def brought(remote_worker: Listener, client: int, before: Payload | None, out: str | None) -> list[list[float]]:
    """What comes ahead of the update of a visit, each message in three numbers."""
    ahead: list[messages.Message] = []
    reply = remote_worker.visit(client, ahead.append, before, out)
    assert isinstance(reply, messages.Update) and reply.client == client, reply
    return [three(message) for message in ahead]


def three(message: messages.Message) -> list[float]:
    assert isinstance(message, messages.ClientState), message
    return [float(number) for number in message.payload["model"]["a"].data]


@pytest.mark.parametrize("name", ["after", "/etc/fedbr-after", "../../after", ""])
def test_a_remote_worker_starts_from_what_came_and_gives_back_what_is_kept_whatever_the_files_are_called(
    remote_worker: Listener, name: str
) -> None:
    assert brought(remote_worker, 2, None, name) == [[2.0, 2.0, 2.0]]
    assert brought(remote_worker, 3, kept(0.5), name) == [[3.5, 3.5, 3.5]]
    assert brought(remote_worker, 4, None, None) == []


def test_no_name_that_came_is_a_path(remote_worker: Listener, tmp_path: Path) -> None:
    client_state.write(str(tmp_path / "secret"), kept(9.0))
    mine = codec.Envelope(remote_worker.identity, 7, str(tmp_path / "secret"), str(tmp_path / "after"))
    remote_worker.send(pack(messages.ClientState(2, kept(1.0)), mine))
    remote_worker.send(pack(TASK, mine, frames=False))
    assert three(remote_worker.hear()[1]) == [3.0, 3.0, 3.0]
    assert isinstance(remote_worker.hear()[1], messages.Update)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_task_and_what_came_ahead_of_it_must_belong_together(remote_worker: Listener) -> None:
    """Whatever is refused fails as a task, and the next is served from what came with it."""
    asked, plain = codec.Envelope(remote_worker.identity, 7, "before"), codec.Envelope(remote_worker.identity, 7)
    lacking, other = "the client's state did not come ahead of it", "came ahead of another task"
    ahead = messages.ClientState(2, kept(1.0))
    wrong: list[tuple[str, list[tuple[messages.Message, codec.Envelope]]]] = [
        (lacking, [(TASK, asked)]),
        (lacking, [(ahead, asked), (messages.Cancel(), plain), (TASK, asked)]),
        (f"the state of client 3 {other}", [(messages.ClientState(3, kept(1.0)), asked), (TASK, asked)]),
        (f"the state of client 2 {other}", [(ahead, codec.Envelope(remote_worker.identity, 6)), (TASK, asked)]),
        (f"the state of client 2 {other}", [(ahead, asked), (TASK, plain)]),
        (f"the state of client 2 {other}", [(ahead, asked), (messages.Describe(True), plain)]),
    ]
    for reason, said in wrong:
        for message, envelope in said:
            remote_worker.send(pack(message, envelope, frames=isinstance(message, messages.ClientState)))
        answers = [remote_worker.hear() for message, _ in said if not isinstance(message, messages.ClientState)]
        assert answers[-1] == (7, messages.Error("WireError", reason))
        assert brought(remote_worker, 3, kept(0.5), "after") == [[3.5, 3.5, 3.5]]


def test_what_is_damaged_is_refused_and_its_task_not_done_without_it(remote_worker: Listener) -> None:
    asked = codec.Envelope(remote_worker.identity, 7, "before")
    envelope, header, frame = pack(messages.ClientState(2, kept(1.0)), asked)
    remote_worker.send([envelope, header, frame[:-1] + b"\x01"])
    remote_worker.send(pack(TASK, asked, frames=False))
    texts = [
        message.text
        for _, message in (remote_worker.hear(), remote_worker.hear())
        if isinstance(message, messages.Error)
    ]
    assert texts == [
        "entry model/a: the checksum does not fit the frame",
        "the client's state did not come ahead of it",
    ]


def test_a_visit_that_fails_brings_back_its_error_alone(remote_worker: Listener) -> None:
    mine = codec.Envelope(remote_worker.identity, 7, "before", "after")
    remote_worker.send(pack(messages.ClientState(2, {"other": kept(1.0)["model"]}), mine))
    remote_worker.send(pack(TASK, mine, frames=False))
    assert remote_worker.hear() == (7, messages.Error("KeyError", "'model'"))
    assert brought(remote_worker, 2, None, "after") == [[2.0, 2.0, 2.0]]


def test_files_of_a_task_are_there_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asked = codec.Envelope("remote-1", 7, "before", "after", weight=0.5)
    with client_state_transfer.received_state(asked, messages.ClientState(2, kept(1.0))) as here:
        assert here.state_in is not None and here.state_out is not None
        assert Path(here.state_in).parent == Path(here.state_out).parent
        assert Path(here.state_in).parents[1] == tmp_path
        assert client_state.read(here.state_in)["model"]["a"].data.tolist() == [1.0, 1.0, 1.0]
        assert (here.sequence, here.weight) == (7, 0.5)
        client_state.write(here.state_out, kept(2.0))
        back = client_state_transfer.state_message(TASK, here)
    assert back is not None and three(back) == [2.0, 2.0, 2.0]
    assert list(tmp_path.iterdir()) == []
