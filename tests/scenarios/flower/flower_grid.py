"""A federation of Flower in this process: real messages, contexts and apps, without processes and sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE = 1001


def sent(message: Message) -> Message:
    """A message as its receiver has it: taken apart into objects, and put together again."""
    objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


class LocalGrid(Grid):
    """Nodes of this process, which answer a message when replies are pulled.

    ``on_message``: (node, message) -> what the node does in place of the app, or None.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Mapping[int, Mapping[str, Any]],
        on_message: Callable[[int, Message], Message | str | None] = lambda node, message: None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), {}) for node, config in node_configs.items()
        }
        self.app, self.on_message = app, on_message
        self.messages: list[Message] = []
        """All that was sent to nodes"""
        self._waiting: dict[str, Message] = {}

    def server_context(self, config: Mapping[str, Any]) -> Context:
        """The context of a ServerApp with this run config."""
        return Context(1, 1, {}, RecordDict(), dict(config))

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = message.object_id
            message.metadata.__dict__["_message_id"] = name
            self.messages.append(message)
            self._waiting[name] = sent(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in [name for name in message_ids if name in self._waiting]:
            message = self._waiting.pop(name)
            node = message.metadata.dst_node_id
            own = self.on_message(node, message)
            if own == "silent":
                continue
            reply = self.app(message, self.contexts[node]) if own is None else own
            assert isinstance(reply, Message)
            replies.append(sent(reply))
        return replies


def nodes(clients: int) -> dict[int, dict[str, Any]]:
    """Node -> its configuration, for one node per client, in reverse order."""
    return {
        FIRST_NODE + place: {"partition-id": client, "num-partitions": clients}
        for place, client in enumerate(reversed(range(clients)))
    }
