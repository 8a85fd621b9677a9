"""What a pool of workers is asked, what it answers, and how it may end. Never a socket, never a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge.protocol import messages
from edge.protocol.fixed_point import not_summable, sizes
from edge.protocol.messages import Totals
from edge.protocol.payload import Payload, Shapes, shapes, vectors


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
    numbering: str = "round"
    """What a training message's number counts, for errors: rounds, or visits one by one."""
    flops: float = 0.0
    """Foreseen work, by which a worker is given several short tasks at once; 0 where it is unknown."""
    weight: float = 0.0
    """The client's part of the round's mean, with which the worker adds its update up; 0: the update comes whole.

    All tasks of an order have one or none has, and no two orders with shares are open at a time.
    """
    up: Shapes | None = None
    """The vectors of the update; None: whichever come."""
    client_state_shapes: Shapes | None = None
    """The vectors that its client keeps in ``state_out``; None: whichever come."""
    reports: frozenset[str] | None = None
    """Names of the numbers in the update; None: whichever come."""
    unfit: Callable[[messages.Update, Payload], str | None] | None = None
    """Why an update, and what its client keeps, cannot be true or be used, or None: what a remote worker sends is
    doubted."""
    unfit_sums: Callable[[Totals, float], str | None] | None = None
    """The same of sums that a remote worker has added up, of clients with such a part of the mean."""
    may_fail: bool = False
    """Whether its group goes on with `failed_update` if three workers ended over it. Only training."""

    @property
    def failed_update(self) -> messages.Update:
        """In place of the update that nobody could make: it has no numbers."""
        assert isinstance(self.message, messages.Train), self.name
        return messages.Update(self.message.client, self.message.round, {}, {})

    @property
    def name(self) -> str:
        """What an error calls it."""
        message = self.message
        if isinstance(message, messages.Train):
            return f"client {message.client}, {self.numbering} {message.round}, train"
        if isinstance(message, messages.Evaluate):
            whose = "global test set" if message.client == messages.GLOBAL else f"client {message.client}"
            return f"{whose}, examples {message.start} to {message.stop}, evaluate"
        return "describe"

    @property
    def payload(self) -> Payload:
        """Vectors that the worker must hold."""
        return {} if isinstance(self.message, messages.Describe) else self.message.payload

    @property
    def collect(self) -> messages.FetchPartial:
        """Asks for the sums that the update of a task with a share is in."""
        assert isinstance(self.message, messages.Train), self.name
        return messages.FetchPartial(self.message.round)

    def is_in_partial_sum(self, reply: Reply) -> bool:
        """Whether the worker has added its update up, and holds it."""
        return self.weight > 0.0 and isinstance(reply, messages.Update) and not reply.payload


Reply = messages.Update | messages.Score | messages.Described


def check_reply_kind(task: PoolTask, reply: Reply) -> None:
    """WireError for a reply that answers something else."""
    asked = task.message
    if isinstance(asked, messages.Train):
        fits = isinstance(reply, messages.Update) and (reply.client, reply.round) == (asked.client, asked.round)
    elif isinstance(asked, messages.Evaluate):
        whose = (asked.client, asked.start, asked.stop - asked.start)
        fits = isinstance(reply, messages.Score) and (reply.client, reply.start, reply.count) == whose
    else:
        fits = isinstance(reply, messages.Described)
    if not fits:
        raise messages.WireError(f"a {type(reply).__name__} that does not answer: {task.name}")
    if isinstance(reply, messages.Update) and task.reports is not None and reply.numbers.keys() != task.reports:
        raise messages.WireError(f"{task.name}: reports {sorted(reply.numbers)} instead of {sorted(task.reports)}")
    if isinstance(reply, messages.Update) and task.up is not None and not task.is_in_partial_sum(reply):
        got = shapes(reply.payload)
        if got != task.up:
            raise messages.WireError(f"{task.name}: vectors {got} instead of {task.up}")
        if task.weight > 0.0 and not any(not_summable(vector.data) for _, _, vector in vectors(reply.payload)):
            raise messages.WireError(f"{task.name}: an update that its worker was to add up")


def doubt(task: PoolTask, reply: Reply, kept: Payload) -> str | None:
    """Why a remote worker's reply, and what its client keeps, cannot be true or be used, or None."""
    if isinstance(reply, messages.Score):
        return None if math.isfinite(reply.loss_sum) else f"{task.name}: the sum of losses is {reply.loss_sum}"
    if isinstance(reply, messages.Update) and task.unfit is not None:
        return task.unfit(reply, kept)
    return None


def check_partial_sum(sums: messages.PartialSum, tasks: Sequence[PoolTask], is_remote: bool) -> None:
    """WireError for sums that are not those of these tasks, all of one round; a remote worker's must also be
    possible."""
    for task in tasks:
        asked = task.message
        assert isinstance(asked, messages.Train), task.name
        if (sums.round, sums.clients) != (asked.round, len(tasks)):
            counted = f"{sums.clients} updates of {task.numbering} {sums.round}"
            raise messages.WireError(f"sums of {counted} instead of {len(tasks)} of {asked.round}")
        got = sizes(sums.totals)
        if task.up is not None and got != task.up:
            raise messages.WireError(f"{task.name}: sums {got} instead of {task.up}")
    if is_remote and tasks and tasks[0].unfit_sums is not None:
        problem = tasks[0].unfit_sums(sums.totals, sum(task.weight for task in tasks))
        if problem is not None:
            raise messages.WireError(problem)


ReplyHandler = Callable[[PoolTask, Reply], None]
"""Called with each task and its reply, in order of arrival, in the thread that submits and waits.

The update of a task with a share comes without vectors; whole, if its worker could not add it up.
"""


class TaskGroup(Protocol):
    """Tasks under way."""

    def wait(self) -> None:
        """Return when every task was answered and heard, or is not wanted any more.

        Replies to other orders are heard meanwhile. Raises what `ReplyHandler` raised for this order, and what ends the
        pool: `PoolError`, `Stopped`.
        """

    def collect(self) -> Totals:
        """The sums of all updates of an order with shares, after `wait`, once.

        Tasks of workers that die beforehand are done again elsewhere, and not heard again. Raises as `wait` does, and
        `PoolError` if the updates added up are not one of each task.
        """
        ...

    def cancel(self) -> None:
        """Nothing of it is wanted any more: what was not heard by now never is. No-op when all was."""


class Workers(Protocol):
    """What a federation needs of a pool."""

    @property
    def size(self) -> int:
        """How many workers there are."""
        ...

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> TaskGroup:
        """Have these tasks done, in this order as far as workers are free; those of earlier orders come first.

        Returns at once. ``heard`` is called in whatever order's `TaskGroup.wait`, or in whichever `submit`, the reply
        comes in, its own among them. If it raises, the rest of its order is cancelled, and that order's
        `TaskGroup.wait` alone raises it again.
        """
        ...
