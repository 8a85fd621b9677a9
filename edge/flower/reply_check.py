"""Whether a reply of a ClientApp is one that a SuperLink would store, and that the run can count.

The rules for metadata are those of `store_message_res` and `validate_message` of flwr 1.41, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.common.constant import MESSAGE_TTL_TOLERANCE

from edge.flower import wire
from edge.protocol.plugins import as_text, error_text

EXAMPLES = "num-examples"
"""The metric by which Flower's strategies weight replies"""
MOST_EXAMPLES = 1 << 53
"""Up to which a float has every integer"""
SHOWN = 100
"""Characters of a value in a message"""


def problem(reply: object, message: Message, context: Context) -> str:
    """Why this cannot be the reply to a message of a node with this context; '' if it can."""
    if not isinstance(reply, Message):
        return f"has returned a {type(reply).__name__} instead of a Message"
    answered, metadata = message.metadata, reply.metadata
    for name, value, expected in (
        ("reply_to_message_id", metadata.reply_to_message_id, answered.message_id),
        ("src_node_id", metadata.src_node_id, answered.dst_node_id),
        ("dst_node_id", metadata.dst_node_id, answered.src_node_id),
        ("run_id", metadata.run_id, answered.run_id),
    ):
        if value != expected:
            return (
                f"has returned a message that is no reply to the one it got, which a SuperLink refuses: its {name} is "
                f"{_shown(value)} instead of {_shown(expected)}; Message(content, reply_to=msg) makes a reply"
            )
    left = answered.created_at + answered.ttl - metadata.created_at
    if not 0 < metadata.ttl <= left + MESSAGE_TTL_TOLERANCE:
        return f"has returned a reply with a ttl of {_shown(metadata.ttl)} s, of which {left:g} s are left"
    if reply.has_content() == reply.has_error():
        return "has returned a reply that has not either content or an error, which a SuperLink refuses"
    if why := _why_not(lambda: wire.pack(reply)) or _why_not(lambda: reply.object_id):
        return f"has returned a reply that cannot be sent: {_place(reply) or why}"
    if reply.has_content():
        for name, metrics in reply.content.metric_records.items():
            if why := _wrong_examples(metrics):
                return f"has returned a reply whose {name}.{EXAMPLES} {why}"
    if why := _why_not(lambda: wire.pack_context(context)):
        return f"has left a state that cannot be kept: {_in_records(context.state) or why}"
    return ""


def _wrong_examples(metrics: MetricRecord) -> str:
    """Why a number of examples cannot be counted; '' without one, and for a list, which the ServerApp may know."""
    value = metrics.get(EXAMPLES, 0)
    if isinstance(value, list):
        return ""
    try:
        fits = 0 <= int(value) <= MOST_EXAMPLES
    except (ValueError, OverflowError):
        fits = False
    return "" if fits else f"is {_shown(value)}: must be from 0 to {MOST_EXAMPLES}"


def _place(reply: Message) -> str:
    return _in_records(reply.content) if reply.has_content() else ""


def _in_records(records: RecordDict) -> str:
    """The record and key that Flower cannot write, with the reason; '' if there is none."""
    for name, record in records.items():
        entries: Mapping[str, Any] = record
        for key, value in entries.items():
            alone = RecordDict({"record": type(record)({key: value})})
            if why := _why_not(lambda alone=alone: _packed(alone)):  # type: ignore[misc]
                return f"{as_text(name)}.{as_text(str(key))}: {why}"
        if why := _why_not(lambda name=name: name.encode()):  # type: ignore[misc]
            return f"{as_text(name)}: {why}"
    return ""


def _packed(records: RecordDict) -> object:
    context = Context(0, 0, {}, records, {})
    return wire.pack_context(context), records.object_id


def _why_not(make: Callable[[], object]) -> str:
    try:
        make()
    except Exception as error:  # whatever Flower and protobuf make of what an app has put there
        return error_text(error)
    return ""


def _shown(value: object) -> str:
    return as_text(repr(value))[:SHOWN]
