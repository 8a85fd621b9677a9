"""What clients keep, on a machine that does not reach the files of the run: it comes with a task, and goes back.

While a task is done, both lie in files of this machine's own, in a folder for this task alone. The names that the
coordinator gives them say only whether there is something to read, or to keep: none of them is ever a path here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edge.protocol import client_state
from edge.protocol.codec import Envelope
from edge.protocol.messages import ClientState, Evaluate, Message, Train
from edge.protocol.scratch import scratch


def mismatch(task: Message, envelope: Envelope, ahead: tuple[int, ClientState] | None) -> str:
    """Why a task and what came right ahead of it, with its number, do not belong together; or nothing."""
    wants = isinstance(task, Train | Evaluate) and envelope.state_in is not None
    if ahead is None:
        return "what its client has kept did not come ahead of it" if wants else ""
    sequence, kept = ahead
    fits = wants and isinstance(task, Train | Evaluate) and (sequence, kept.client) == (envelope.sequence, task.client)
    return "" if fits else f"what client {kept.client} has kept came ahead of another task"


@contextmanager
def received_state(envelope: Envelope, kept: ClientState | None) -> Iterator[Envelope]:
    """The envelope of a task with files of this machine in place of the run's; they are gone when the task is over.

    Raises OSError if the disk refuses.
    """
    if kept is None and envelope.state_out is None:
        yield replace(envelope, state_in=None)
        return
    with scratch() as folder:
        came, goes = folder / "came.safetensors", folder / "goes.safetensors"
        if kept is not None:
            client_state.write(str(came), kept.payload)
        yield replace(
            envelope,
            state_in=None if kept is None else str(came),
            state_out=None if envelope.state_out is None else str(goes),
        )


def state_message(task: Message, envelope: Envelope) -> ClientState | None:
    """What the client of a visit has kept under the `received_state` envelope; None where nobody asked."""
    if not isinstance(task, Train) or envelope.state_out is None:
        return None
    return ClientState(task.client, client_state.read(envelope.state_out))
