"""The messages of a Flower app as files of a run: what its ServerApp sends, and what a node has replied.

The app's own bytes are opaque here. A reply is what a run is resumed and replayed from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from edge.protocol.files import write_bytes
from edge.protocol.wire import Count, FiniteSize, Sha256

FOLDER = "messages"
"""Of a run folder: its files are named by the number of the message"""
MAX_ERROR = 4000
"""Characters of the error of an app"""
FILE_NAME = r"[0-9]{6,}\.(message|reply)(\.part)?"
EPOCH = 1_700_000_000.0
"""Unix time of an app when the virtual clock begins"""


class AppMessage(Struct, frozen=True):
    """A message that a ServerApp has pushed, without its content."""

    client: Count
    """The node"""
    kind: Annotated[str, Meta(min_length=1, max_length=100)]
    """Flower's message type: ``train``, ``evaluate``, ``query``, or one with a name of its own"""
    ttl: FiniteSize
    """Seconds until message and reply are dropped"""
    nbytes: Count
    """Of all distinct objects that Flower deflates it into"""
    sha256: Sha256
    """Of its content, receiver and type, without times and ids"""


class AppReply(Struct, frozen=True):
    """What a node has made of a message."""

    request: Sha256
    """`AppMessage.sha256`"""
    message: bytes
    """Flower's Message; empty if there is none that a SuperLink would take"""
    context: bytes
    """The node's Context after it"""
    nbytes: Count
    sha256: Sha256
    """Of its content"""
    flops: FiniteSize
    """Counted in torch; 0 if it computed nothing there"""
    cpu_flops: FiniteSize
    """Where nothing was counted: CPU seconds of the app, times what this host computes per second in training"""
    steps: Count
    """Of torch's optimizers"""
    examples: Count
    """``num-examples``, 0 if the app reports none"""
    metrics: dict[str, float]
    """Its MetricRecords' numbers, by name"""
    error: Annotated[str, Meta(max_length=MAX_ERROR)] = ""
    """If the message is an error: what the ClientApp has raised, and where, or the reason that it has given"""
    refused: Annotated[str, Meta(max_length=MAX_ERROR)] = ""
    """What the ClientApp has done that no SuperLink would take, which ends the run"""


_ENCODER, _REPLIES = Encoder(), Decoder(AppReply)


def message_file(folder: Path, number: int) -> Path:
    """Where the ServerApp's process puts a message for the worker; removed once it is answered."""
    return folder / f"{number:06d}.message"


def reply_file(folder: Path, number: int) -> Path:
    """Where a worker puts the reply."""
    return folder / f"{number:06d}.reply"


def write_reply(file: Path, reply: AppReply) -> None:
    """Whole or not at all, whatever is killed. ValueError for a reply that `read_reply` would refuse."""
    encoded = _ENCODER.encode(reply)
    _decoded(encoded)
    write_bytes(file, encoded)


def read_reply(file: Path) -> AppReply:
    """ValueError for a file that no worker has written."""
    try:
        return _decoded(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _decoded(encoded: bytes) -> AppReply:
    try:
        return _REPLIES.decode(encoded)
    except MsgspecError as error:
        raise ValueError(str(error)) from None
