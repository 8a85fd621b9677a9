"""The Grid of a ServerApp whose nodes are the clients of a modelled fleet: calls become questions to the coordinator.

A call that a SuperLink would refuse raises an error.

A question and its answer are JSON on the channel of the process; messages lie in files of the run. Every answer has the
virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.supercore.run import Run

from edge.flower import wire
from edge.flower.device_records import nbytes
from edge.protocol import app_records

ABSENT, BROKEN = "missing", "no array that can be read"
MOST_SHOWN = 5
"""Replies that an error names"""
MOST_SECONDS = 1e11
"""Of a sleep, a timeout or a ttl: beyond it no date can be written"""

Ask = Callable[[dict[str, Any]], dict[str, Any]]


class FleetGrid(Grid):
    """``ask``: a question to the coordinator, which returns its answer; ``folder``: of the replies, and of the messages
    if it ``writes`` them for workers."""

    def __init__(self, ask: Ask, folder: Path, writes: bool) -> None:
        self._ask, self._folder, self._writes = ask, folder, writes
        self._run = Run.create_empty(wire.RUN_ID)
        self._pushed: dict[str, tuple[int, Message]] = {}
        """id -> (number, message without content) of those without a reply"""
        self._count = 0
        self._pulled: list[tuple[int, int]] = []
        """(number, client) of the replies with content that the last call has given to the app"""
        self._known: set[int] = set()
        """Ids of nodes that the app has been told of"""
        self.now = 0.0
        """Virtual seconds"""

    def virtual_seconds(self) -> float:
        return self.now

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        nodes = [wire.node_id(client) for client in self._asked(do="nodes")["clients"]]
        self._known.update(nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._push(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._pull(message_ids, None, wait_for_all=False)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._pull(self._push(messages), timeout, wait_for_all=True)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass. OverflowError beyond the last date that can be written."""
        if self.now + seconds > MOST_SECONDS:
            raise OverflowError(f"{seconds:g} s more are beyond {MOST_SECONDS:g} s of virtual time")
        self._asked(do="sleep", seconds=float(seconds))

    def _asked(self, **question: Any) -> dict[str, Any]:
        answer = self._ask(question)
        self.now = float(answer["now"])
        return answer

    def _push(self, messages: Iterable[Message]) -> list[str]:
        ids, pushed = [], []
        for message in messages:
            if not isinstance(message, Message):
                raise TypeError(f"the ServerApp has pushed a {type(message).__name__} instead of a Message")
            metadata = message.metadata
            if metadata.dst_node_id not in self._known:
                raise ValueError(f"the ServerApp has pushed a message to {metadata.dst_node_id}, which is no node's id")
            if not 0 < metadata.ttl <= MOST_SECONDS:
                raise ValueError(f"the ServerApp has pushed a message with a ttl of {metadata.ttl:g} s")
            if not message.has_content():
                raise ValueError("the ServerApp has pushed a message without content")
            if metadata.reply_to_message_id or metadata.src_node_id != SUPERLINK_NODE_ID:
                raise ValueError("the ServerApp has pushed a reply, or a message in the name of a node")
            metadata.__dict__["_created_at"] = app_records.EPOCH + self.now
            while (message_id := message.object_id) in self._pushed:  # the same to the same node again
                metadata.__dict__["_created_at"] += 1e-6
            metadata.__dict__["_message_id"] = message_id
            number, self._count = self._count, self._count + 1
            sha256 = wire.content_sha256(message)
            if self._writes:
                file = app_records.message_file(self._folder, number)
                file.write_bytes(sha256.encode() + b"\n" + wire.pack(message))
            client = wire.client_of(metadata.dst_node_id)
            kind, ttl = metadata.message_type, float(metadata.ttl)
            pushed.append({"client": client, "kind": kind, "ttl": ttl, "nbytes": nbytes(message), "sha256": sha256})
            ids.append(metadata.message_id)
            self._pushed[metadata.message_id] = number, message
        if pushed:
            self._asked(do="push", messages=pushed)
        return ids

    def _pull(self, ids: Iterable[str], timeout: float | None, wait_for_all: bool) -> list[Message]:
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
        if timeout is not None and not timeout < MOST_SECONDS:  # Flower waits for ever then, and not at all for NaN
            timeout = None if timeout > 0 else 0.0
        by_number = {self._pushed[each][0]: each for each in ids if each in self._pushed}
        answer = self._asked(do="wait", numbers=list(by_number), timeout=timeout, all=wait_for_all)
        replies = []
        self._pulled = self._pulled if not answer["replies"] else []
        for each in answer["replies"]:
            _, message = self._pushed.pop(by_number[each["number"]])
            if each.get("reason"):
                replies.append(Message(Error(each["code"], each["reason"]), reply_to=message))
            else:
                file = app_records.reply_file(self._folder, each["number"])
                reply = wire.unpack(app_records.read_reply(file).message)
                replies.append(reply)
                if reply.has_content():
                    self._pulled.append((each["number"], wire.client_of(message.metadata.dst_node_id)))
        return replies

    def odd_replies(self, error: BaseException) -> tuple[list[int], str]:
        """(numbers, words) of those of the last replies that the app has most likely raised an error about.

        They differ from the others in a key, a shape or a type; of replies that Flower's strategies call inconsistent
        these are all if they are alike.
        """
        entries = {
            (number, client): _entries(wire.unpack(app_records.read_reply(file).message).content)
            for number, client in self._pulled
            if (file := app_records.reply_file(self._folder, number)).exists()
        }
        odd: dict[int, str] = {}
        for key in sorted({key for each in entries.values() for key in each}):
            kinds = Counter(each.get(key, ABSENT) for each in entries.values())
            (usual, most), *others = kinds.most_common()
            for (number, client), each in entries.items():
                kind = each.get(key, ABSENT)
                differs = others and (kind != usual or others[0][1] == most)
                if number not in odd and (differs or kind == BROKEN):
                    odd[number] = f"client {client}'s {key} is {kind}"
        if not odd and isinstance(error, InconsistentMessageReplies):
            odd = {number: f"client {client}" for number, client in entries}
        shown = [*odd.values()][:MOST_SHOWN] + ([".."] if len(odd) > MOST_SHOWN else [])
        return list(odd), f"; of the replies, {', '.join(shown)}" if odd else ""


def _entries(content: RecordDict) -> dict[str, str]:
    """record.key -> the kind of each value of a reply."""
    entries = {}
    for name, arrays in content.array_records.items():
        for key, array in arrays.items():
            try:
                values = array.numpy()
                entries[f"{name}.{key}"] = f"of shape {values.shape} and {values.dtype}"
            except Exception:  # an app may send any bytes
                entries[f"{name}.{key}"] = BROKEN
    for name, metrics in content.metric_records.items():
        for key, value in metrics.items():
            entries[f"{name}.{key}"] = "a list" if isinstance(value, list) else "a number"
    return entries
