"""The coordinator's side of a transfer of files, without sockets."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from edge.protocol.config import ShippedFile
from edge.protocol.messages import PART_NBYTES, FetchFile, FilePart, Message, Ping
from edge.protocol.serialization import Envelope


def shipped(kind: Literal["data", "partition", "source"], contents: Mapping[str, bytes]) -> list[ShippedFile]:
    """The list of files with these contents."""
    return [
        ShippedFile(kind, name, hashlib.sha256(content).hexdigest(), len(content)) for name, content in contents.items()
    ]


class LostError(Exception):
    """The connection is lost."""


class HonestSource:
    """Answers each request, in order, with the part and a ping; a test may have it say more, or end."""

    def __init__(self, contents: Iterable[bytes]) -> None:
        self.contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self.requests: list[FetchFile] = []
        self.waiting: deque[Message] = deque()
        self.most_waiting = 0
        """Most parts under way."""
        self.refused: list[str] = []
        self.dies_after: int | None = None
        """Parts after which the connection is lost."""

    def send(self, message: Message) -> None:
        """A request."""
        assert isinstance(message, FetchFile), message
        self.requests.append(message)
        if message.sha256 in self.contents:
            content = self.contents[message.sha256][message.offset : message.offset + PART_NBYTES]
            self.waiting.extend([FilePart(message.sha256, message.offset, content), Ping()])
        parts = sum(isinstance(waits, FilePart) for waits in self.waiting)
        self.most_waiting = max(self.most_waiting, parts)

    def has_message(self, seconds: float) -> bool:
        """Always, as long as there is one."""
        assert self.waiting, "nothing will come"
        return True

    def receive(self) -> tuple[Envelope, Message]:
        """The next message; LostError once the connection is lost."""
        message = self.waiting.popleft()
        if isinstance(message, FilePart) and self.dies_after is not None:
            if self.dies_after == 0:
                raise LostError
            self.dies_after -= 1
        return Envelope("worker-0"), message

    def refuse(self, sequence: int, reason: str) -> None:
        """Note the reason."""
        self.refused.append(reason)
