"""What a pool of workers is asked, what it answers, and how it may end. Never a socket, never a process."""

from __future__ import annotations

from dataclasses import dataclass

from edge import messages
from edge.payload import Vector, vectors


class PoolError(RuntimeError):
    """The run cannot go on: what happened, where, and the last lines of the log in question."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop."""


@dataclass(frozen=True)
class PoolTask:
    """One piece of work, and the files of the client's kept state."""

    message: messages.Train | messages.Evaluate | messages.Describe
    state_in: str | None = None
    state_out: str | None = None

    @property
    def name(self) -> str:
        """What an error calls it."""
        message = self.message
        if isinstance(message, messages.Train):
            return f"client {message.client}, round {message.round}, train"
        if isinstance(message, messages.Evaluate):
            whose = "global test set" if message.client == messages.GLOBAL else f"client {message.client}"
            return f"{whose}, examples {message.start} to {message.stop}, evaluate"
        return "describe"

    @property
    def vectors(self) -> dict[tuple[str, str], Vector]:
        """(slot, key) -> vector that the worker must hold."""
        if isinstance(self.message, messages.Describe):
            return {}
        return {(slot, key): vector for slot, key, vector in vectors(self.message.payload)}


Reply = messages.Update | messages.Score | messages.Described
