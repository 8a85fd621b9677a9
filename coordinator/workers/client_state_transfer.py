"""What clients keep, on its way to guests and back: workers on other machines do not reach the run's folder.

It is read when a task is handed to a guest, and written when the guest's update is taken; the files are as a worker of
ours would have read and written them. Nothing of it is charged. Never a socket.
"""

from __future__ import annotations

from coordinator.workers.task import PoolError, PoolTask
from edge.protocol import client_state
from edge.protocol.messages import Describe, Kept, Train, WireError
from edge.protocol.payload import shapes


def taken_along(task: PoolTask) -> Kept | None:
    """What a guest must have before it can do this task. PoolError for a file that cannot be read."""
    if task.state_in is None or isinstance(task.message, Describe):
        return None
    try:
        return Kept(task.message.client, client_state.read(task.state_in))
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: what the client has kept cannot be read: {error}") from error


def check_ahead(task: PoolTask, kept: Kept) -> None:
    """WireError for what nobody asked for, and for what this client cannot have kept."""
    if task.state_out is None or not isinstance(task.message, Train):
        raise WireError(f"what client {kept.client} keeps, which nobody asked for: {task.name}")
    if kept.client != task.message.client:
        raise WireError(f"what client {kept.client} keeps does not answer: {task.name}")
    got = shapes(kept.payload)
    if task.kept is not None and got != task.kept:
        raise WireError(f"{task.name}: the client keeps {got} instead of {task.kept}")


def store(task: PoolTask, kept: Kept) -> None:
    """Write what a guest has ahead where the task wants it, whole or not at all. PoolError if the disk refuses."""
    assert task.state_out is not None, task.name
    try:
        client_state.write(task.state_out, kept.payload)
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: what the client keeps cannot be written: {error}") from error
