"""A node agent behind its connection: a real process, and a coordinator that says what it likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.protocol import messages, serialization
from edge.protocol.payload import Payload, Vector
from scenarios.cluster.task_forwarder import StateFiles
from tests.edge.protocol.mutations import JOB, pack
from tests.edge.runtime.listener import Listener

TASK = messages.Train(2, 5, 0.1, {}, {})


def kept(value: float) -> Payload:
    return {"model": {"a": Vector(np.full(3, value, np.float32))}}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    """That has been welcomed, and leaves no file behind."""
    opened = Listener(tmp_path_factory.mktemp("g"), "tests.edge.runtime.listener:node_agent")
    assert opened.hear() == (0, messages.Hello())
    opened.send(pack(messages.Welcome(JOB), serialization.Envelope(opened.identity)))
    yield opened
    assert opened.close() == 0
    assert list(opened.temporary.iterdir()) == []


def brought(agent: Listener, client: int, before: Payload | None, out: str | None) -> list[list[float]]:
    """What comes ahead of the update of a visit, each message in three numbers."""
    ahead: list[messages.Message] = []
    reply = agent.visit(client, ahead.append, before, out)
    assert isinstance(reply, messages.Update) and reply.client == client, reply
    return [three(message) for message in ahead]


def three(message: messages.Message) -> list[float]:
    assert isinstance(message, messages.ClientState), message
    return [float(number) for number in message.payload["model"]["a"].data]


@pytest.mark.parametrize("name", ["after", "/etc/fedbr-after", "../../after", ""])
def test_an_agent_starts_from_what_came_and_gives_back_what_is_kept_whatever_the_files_are_called(
    agent: Listener, name: str
) -> None:
    assert brought(agent, 2, None, name) == [[2.0, 2.0, 2.0]]
    assert brought(agent, 3, kept(0.5), name) == [[3.5, 3.5, 3.5]]
    assert brought(agent, 4, None, None) == []


def test_a_task_and_what_came_ahead_of_it_must_belong_together(agent: Listener) -> None:
    """Whatever is refused fails as a task, and the next is served from what came with it."""
    asked, plain = serialization.Envelope(agent.identity, 7, "before"), serialization.Envelope(agent.identity, 7)
    other = "came ahead of another task"
    ahead = messages.ClientState(2, kept(1.0))
    wrong: list[tuple[str, list[tuple[messages.Message, serialization.Envelope]]]] = [
        (f"the state of client 3 {other}", [(messages.ClientState(3, kept(1.0)), asked), (TASK, asked)]),
        (f"the state of client 2 {other}", [(ahead, serialization.Envelope(agent.identity, 6)), (TASK, asked)]),
        (f"the state of client 2 {other}", [(ahead, asked), (TASK, plain)]),
        (f"the state of client 2 {other}", [(ahead, asked), (messages.Describe(True), plain)]),
    ]
    for reason, said in wrong:
        for message, envelope in said:
            agent.send(pack(message, envelope, frames=isinstance(message, messages.ClientState)))
        answers = [agent.hear() for message, _ in said if not isinstance(message, messages.ClientState)]
        assert answers[-1] == (7, messages.Error("WireError", reason))
        assert brought(agent, 3, kept(0.5), "after") == [[3.5, 3.5, 3.5]]


def test_what_is_damaged_is_refused_and_its_task_not_done_without_it(agent: Listener) -> None:
    asked = serialization.Envelope(agent.identity, 7, "before")
    envelope, header, frame = pack(messages.ClientState(2, kept(1.0)), asked)
    agent.send([envelope, header, frame[:-1] + b"\x01"])
    agent.send(pack(TASK, asked, frames=False))
    texts = [message.text for _, message in (agent.hear(), agent.hear()) if isinstance(message, messages.Error)]
    assert texts == [
        "entry model/a: the checksum does not fit the frame",
        "the state of client 2 is not here",
    ]


def test_a_visit_that_fails_brings_back_its_error_alone(agent: Listener) -> None:
    mine = serialization.Envelope(agent.identity, 7, "before", "after")
    agent.send(pack(messages.ClientState(2, {"other": kept(1.0)["model"]}), mine))
    agent.send(pack(TASK, mine, frames=False))
    sequence, error = agent.hear()
    assert sequence == 7 and isinstance(error, messages.Error)
    assert (error.kind, error.text.partition(";")[0]) == (
        "PoolError",
        "client 2, round 6, train: given up after 3 workers",
    )
    assert "KeyError: 'model' (/" in error.text
    assert brought(agent, 2, None, "after") == [[2.0, 2.0, 2.0]]


# --- what stays on the machine ----------------------------------------------------------------------------------------


def test_a_state_is_found_again_for_the_clients_next_visit_and_requested_if_it_is_gone(agent: Listener) -> None:
    assert brought(agent, 2, None, "first") == [[2.0, 2.0, 2.0]]
    again = serialization.Envelope(agent.identity, 8, "first", "second")
    agent.send(pack(TASK, again, frames=False))
    assert three(agent.hear()[1]) == [4.0, 4.0, 4.0]
    assert isinstance(agent.hear()[1], messages.Update)
    agent.send(pack(TASK, again, frames=False))  # its place was taken by the second
    assert agent.hear() == (8, messages.Error("MissingStateError", "the state of client 2 is not here"))


def test_updates_of_a_round_go_up_as_one_sum_of_the_machine_once(agent: Listener) -> None:
    for number, client in ((8, 2), (9, 4)):
        task = messages.Train(client, 5, 0.1, {}, {})
        agent.send(pack(task, serialization.Envelope(agent.identity, number, weight=0.5), frames=False))
        sequence, update = agent.hear()
        assert (sequence, update) == (number, messages.Update(client, 5, {"loss": 0.5}, {}))
    plain = serialization.Envelope(agent.identity)
    agent.send(pack(messages.FetchPartial(5), plain))
    _, sums = agent.hear()
    assert isinstance(sums, messages.PartialSum) and (sums.round, sums.clients) == (5, 2)
    assert (sums.totals["model"]["a"] * 2.0**-46).tolist() == [3.0, 3.0, 3.0]
    agent.send(pack(messages.FetchPartial(5), plain))
    assert agent.hear() == (0, messages.PartialSum(5, 0, {}))


# --- a partial sum that cannot be made again --------------------------------------------------------------------------


# --- files of client states -------------------------------------------------------------------------------------------


def test_the_oldest_states_go_first_but_not_while_a_task_needs_them(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    files = StateFiles(folder, 250)

    def visit(client: int) -> str:
        path = files.new()
        Path(path).write_bytes(bytes(100))
        files.keep(client, f"{client}/after", path)
        return path

    first, second = visit(1), visit(2)
    files.release(first, second)
    assert files.held(1, "1/before") is None
    assert files.held(1, "1/after") == first
    third = visit(3)
    files.release(third)
    assert files.held(1, "1/after") is None  # no other task gets it
    assert sorted(map(str, folder.iterdir())) == sorted([first, second, third])  # but the one that has it
    files.release(first)
    assert sorted(map(str, folder.iterdir())) == sorted([second, third])
    newer = visit(2)
    files.release(newer)
    assert sorted(map(str, folder.iterdir())) == sorted([third, newer])
