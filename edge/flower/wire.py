"""Flower's own objects: their bytes, their lengths, and the time and ids that a modelled fleet gives to them.

Flower deflates a message into objects named by the hash of their content and sends each distinct one once; a SuperNode
of flwr 1.41 drops those of a message when its ClientApp has it, so no later message finds them there.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.app.message import message as message_module
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.object_ref import load_app
from flwr.supercore.task_identity import TaskIdentity

from edge.protocol.app_records import EPOCH
from edge.protocol.plugins import as_text, error_text
from edge.protocol.rng import keyed_generator

RUN_ID = 1 << 62
"""As long as the random ids of Flower are on the wire, and the same in every run"""
_FIRST_NODE = 1 << 62


def node_id(client: int) -> int:
    """The id of a client's node."""
    return _FIRST_NODE + client


def client_of(node: int) -> int:
    """The client of a node's id."""
    return node - _FIRST_NODE


def identify(node: int, virtual_seconds: Callable[[], float]) -> None:
    """Make this process that of a task on ``node``; new messages of it carry virtual time."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, node
    setattr(message_module, "now", lambda: datetime.fromtimestamp(EPOCH + virtual_seconds(), UTC))  # noqa: B010


def seed_all(seed: int, purpose: str, round: int = 0, client: int = 0) -> None:
    """Have Python, NumPy and torch draw in this process what a scenario's seed, purpose, message and client say."""
    drawn = int(keyed_generator(seed, purpose, round, client).integers(1 << 32))
    random.seed(drawn)
    np.random.seed(drawn)
    torch.manual_seed(drawn)


def pack(message: Message) -> bytes:
    return bytes(message_to_proto(message).SerializeToString())


def unpack(packed: bytes) -> Message:
    return message_from_proto(MessageProto.FromString(packed))


def pack_context(context: Context) -> bytes:
    return bytes(context_to_proto(context).SerializeToString())


def unpack_context(packed: bytes) -> Context:
    return context_from_proto(ContextProto.FromString(packed))


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The single numbers among metrics, by name; infinite if no float is so large."""
    values = {}
    for name, value in metrics.items():
        if isinstance(value, int | float):
            try:
                values[as_text(str(name))] = float(value)
            except OverflowError:
                values[as_text(str(name))] = math.copysign(math.inf, value)
    return values


def content_sha256(message: Message) -> str:
    """A hash of what a message says, without its ids and times."""
    return str(message.content.object_id)


CONVERT = (
    "; an app of Flower's interface before 1.20 (server_fn, client_fn, NumPyClient) is converted: a function with "
    "@app.main() takes (grid, context) and calls strategy.start(grid=grid, ..), functions with @app.train() and "
    "@app.evaluate() take (message, context) and return a Message (docs/flower-apps.md)"
)


class LoadError(ValueError):
    """An app that cannot be loaded: its module has raised the cause, or has no such object if there is none."""


class OldInterfaceError(ValueError):
    """An app of Flower's interface before 1.20."""


def app_object(folder: Path, reference: str, kind: type) -> Any:
    """The object of an app that its ``pyproject.toml`` names as ``module:attribute``.

    LoadError if there is none of the kind, and OldInterfaceError for one of Flower's interface before 1.20.
    """
    sys.path.insert(0, str(folder))
    try:
        app = load_app(reference, LoadError, folder)
    except LoadError as error:  # Flower's text for it has several lines
        raise LoadError(f"cannot load {reference!r}: {str(error).partition(chr(10))[0]}") from None
    except Exception as error:  # an app may raise anything
        raise LoadError(f"cannot load {reference!r}: {error_text(error)}") from error
    if not isinstance(app, kind):
        raise LoadError(f"{reference} is a {type(app).__name__} instead of a {kind.__name__}")
    if getattr(app, "_main", True) is None:
        raise OldInterfaceError(f"{reference} has no function with @app.main(){CONVERT}")
    if getattr(app, "_call", None) is not None:
        raise OldInterfaceError(f"{reference} has a client_fn{CONVERT}")
    return app
