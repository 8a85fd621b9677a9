"""What a pool of workers is asked, what it answers, and how it may end. Never a socket, never a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge import messages
from edge.payload import Payload


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
    turns: str = "round"
    """What a training message's number counts, for errors: rounds, or visits one by one."""
    flops: float = 0.0
    """Foreseen work, by which a worker is given several short tasks at once; 0 where it is unknown."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        message = self.message
        if isinstance(message, messages.Train):
            return f"client {message.client}, {self.turns} {message.round}, train"
        if isinstance(message, messages.Evaluate):
            whose = "global test set" if message.client == messages.GLOBAL else f"client {message.client}"
            return f"{whose}, examples {message.start} to {message.stop}, evaluate"
        return "describe"

    @property
    def payload(self) -> Payload:
        """Vectors that the worker must hold."""
        return {} if isinstance(self.message, messages.Describe) else self.message.payload


Reply = messages.Update | messages.Score | messages.Described


Heard = Callable[[PoolTask, Reply], None]
"""Called with each task and its reply, in order of arrival, in the thread that submits and waits."""


class Order(Protocol):
    """Tasks under way."""

    def wait(self) -> None:
        """Return when every task was answered and heard, or is not wanted any more.

        Replies to other orders are heard meanwhile. Raises what `Heard` raised for this order, and what ends the pool:
        `PoolError`, `Stopped`.
        """

    def cancel(self) -> None:
        """Nothing of it is wanted any more: what was not heard by now never is. No-op when all was."""


class Workers(Protocol):
    """What a federation needs of a pool."""

    @property
    def size(self) -> int:
        """How many workers there are."""
        ...

    def submit(self, tasks: Sequence[PoolTask], heard: Heard) -> Order:
        """Have these tasks done, in this order as far as workers are free; those of earlier orders come first.

        Returns at once. ``heard`` is called in whatever order's `Order.wait`, or in whichever `submit`, the reply comes
        in, its own among them. If it raises, the rest of its order is cancelled, and that order's `Order.wait` alone
        raises it again.
        """
        ...
