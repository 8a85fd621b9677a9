"""Client state on a remote worker: it comes ahead of a task, and goes back ahead of the update.

While a task is done, both are in files of this machine, in a temporary folder of this task. The names in the envelope
only say whether there is a state to read and one to send back: they are never used as paths here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edge.protocol import client_state
from edge.protocol.codec import Envelope
from edge.protocol.messages import ClientState, Evaluate, Message, Train
from edge.protocol.scratch import scratch


def mismatch(task: Message, envelope: Envelope, pending: tuple[int, ClientState] | None) -> str:
    """Why a task and the (sequence, client state) right ahead of it do not belong together; '' if they do."""
    needs_state = isinstance(task, Train | Evaluate) and envelope.state_in is not None
    if pending is None:
        return "the client's state did not come ahead of it" if needs_state else ""
    sequence, state = pending
    fits = isinstance(task, Train | Evaluate) and (sequence, state.client) == (envelope.sequence, task.client)
    return "" if needs_state and fits else f"the state of client {state.client} came ahead of another task"


@contextmanager
def received_state(envelope: Envelope, state: ClientState | None) -> Iterator[Envelope]:
    """The envelope of a task with files of this machine in place of the run's, removed with the context. OSError."""
    if state is None and envelope.state_out is None:
        yield replace(envelope, state_in=None)
        return
    with scratch() as folder:
        state_in, state_out = folder / "in.safetensors", folder / "out.safetensors"
        if state is not None:
            client_state.write(str(state_in), state.payload)
        yield replace(
            envelope,
            state_in=None if state is None else str(state_in),
            state_out=None if envelope.state_out is None else str(state_out),
        )


def state_message(task: Message, envelope: Envelope) -> ClientState | None:
    """The client's state after a visit under the envelope of `received_state`; None if the task does not ask for it."""
    if not isinstance(task, Train) or envelope.state_out is None:
        return None
    return ClientState(task.client, client_state.read(envelope.state_out))
