"""Replies of nodes to a server over the network, taken as they arrive: no reply waits for another one.

A node announces a reply, and then sends its objects. `HttpGrid.pull_messages` of flwr 1.41.0 takes announced replies
one after the other and stays with each until all of its objects are there; an object that is not, it asks for again
after 1, 2, 4, 8 and then every 10 s, each within 20 %. So it notices up to 10 s late that an upload of half a minute
has ended, and until then neither the replies of faster nodes nor the end of a round's time. Here each question takes
what is there and returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid


@dataclass
class _Announced:
    """A reply of which objects are still missing."""

    name: str
    missing: list[str]
    """In the order in which its node sends them"""
    objects: dict[str, bytes] = field(default_factory=dict)


class Replies:
    """Replies to messages of a grid. One object is asked about a message until it has given the reply."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._announced: dict[str, _Announced] = {}
        """Message -> its reply"""

    def pull(self, messages: Sequence[str]) -> list[Message]:
        """The replies to these messages that are there, each once; an error for one whose sender has given up."""
        grid = self._grid
        if not isinstance(grid, HttpGrid):
            return list(grid.pull_messages(messages))
        client = grid._runtime_client
        if silent := [message for message in messages if message not in self._announced]:
            answer = client.PullMessages(PullAppMessagesRequest(message_ids=silent))
            for reply, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                names = dict.fromkeys(each.object_id for each in iterate_object_tree(tree))
                place = reply.metadata.reply_to_message_id
                self._announced[place] = _Announced(reply.metadata.message_id, list(names))
        here = [message for message in messages if message in self._announced]
        return [reply for message in here if (reply := self._take(grid, message)) is not None]

    def _take(self, grid: HttpGrid, message: str) -> Message | None:
        """The reply, or None as long as an object is missing."""
        client, run_id, announced = grid._runtime_client, grid.run.run_id, self._announced[message]
        pull_object = make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id)
        try:
            while announced.missing:
                announced.objects[announced.missing[0]] = pull_object(announced.missing[0])
                del announced.missing[0]
        except ObjectUnavailableError:
            return None
        except ObjectPullError as error:  # as `HttpGrid.pull_messages` says it
            del self._announced[message]
            own, now = grid.node.node_id, 0.0
            metadata = Metadata(run_id, "", own, own, message, "", now, 0.0, SYSTEM_MESSAGE_TYPE)
            return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
        del self._announced[message]
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run_id, message_object_id=announced.name)
        )
        reply = inflate_object_from_contents(announced.name, announced.objects)
        assert isinstance(reply, Message)
        reply.metadata.__dict__["_message_id"] = announced.name
        return reply
