"""Replies of nodes over a network: each is taken when all of its objects are there, whatever others wait for."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from scenarios.flower.replies import Replies

NODE = 7


class SlowUplinks:
    """A SuperLink, as a grid's client of it: each reply is announced at once, and its objects come later."""

    def __init__(self, replies: dict[str, Message]) -> None:
        self.replies = replies
        """Message -> its reply"""
        self.here: dict[str, bytes] = {}
        self.gone = set[str]()
        self.confirmed: list[str] = []
        self.asked: list[list[str]] = []
        """Messages of each question for replies"""

    def arrive(self, message: str, count: int | None = None) -> None:
        """The first objects of a reply, or all."""
        objects = get_all_nested_objects(self.replies[message])
        self.here |= {name: each.deflate() for name, each in list(objects.items())[:count]}

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802 - Flower's name
        self.asked.append(list(request.message_ids))
        replies = [self.replies[message] for message in request.message_ids]
        return PullAppMessagesResponse(
            messages_list=map(message_to_proto, replies), message_object_trees=map(get_object_tree, replies)
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802 - Flower's name
        name = request.object_id
        return PullObjectResponse(
            object_found=name not in self.gone,
            object_available=name in self.here,
            object_content=self.here.get(name, b""),
        )

    def ConfirmMessageReceived(  # noqa: N802 - Flower's name
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def superlink() -> SlowUplinks:
    """With the replies to the messages "slow" and "fast", of which nothing has arrived."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    replies = {}
    for number, name in enumerate(("slow", "fast")):
        train = Message(RecordDict(), NODE, "train")
        train.metadata.__dict__["_message_id"] = name
        vectors = ArrayRecord({"model": Array(np.full(100, number, np.float32))})
        reply = Message(RecordDict({"vectors": vectors}), reply_to=train)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        replies[name] = reply
    return SlowUplinks(replies)


@pytest.fixture
def grid(superlink: SlowUplinks, monkeypatch: pytest.MonkeyPatch) -> HttpGrid:
    monkeypatch.setattr(HttpGrid, "_runtime_client", superlink)
    grid = HttpGrid(token="any")
    grid.set_run(Run.create_empty(1))
    return grid


def test_a_reply_under_way_holds_up_no_other(superlink: SlowUplinks, grid: HttpGrid) -> None:
    replies = Replies(grid)
    superlink.arrive("slow", 2)
    assert replies.pull(["slow", "fast"]) == []
    superlink.arrive("fast")
    (fast,) = replies.pull(["slow", "fast"])
    assert fast.metadata.reply_to_message_id == "fast"
    assert fast.content.array_records["vectors"]["model"].numpy().tolist() == [1.0] * 100
    superlink.arrive("slow")
    (slow,) = replies.pull(["slow"])
    assert slow.content.array_records["vectors"]["model"].numpy().tolist() == [0.0] * 100
    # the SuperLink forgets a message whose reply it has announced: to ask again would be answered with an error
    assert superlink.asked == [["slow", "fast"]]
    assert superlink.confirmed == [superlink.replies[name].object_id for name in ("fast", "slow")]


def test_a_reply_whose_sender_has_given_up_is_an_error(superlink: SlowUplinks, grid: HttpGrid) -> None:
    replies = Replies(grid)
    superlink.arrive("slow", 1)
    assert replies.pull(["slow"]) == []
    superlink.gone |= set(get_all_nested_objects(superlink.replies["slow"]))
    (error,) = replies.pull(["slow"])
    assert error.metadata.reply_to_message_id == "slow"
    assert error.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert superlink.confirmed == []
