"""Tasks for workers, their replies, and the errors of a pool. Never a socket, never a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from edge.protocol import messages
from edge.protocol.fixed_point import not_summable, sizes
from edge.protocol.messages import Totals, WireError
from edge.protocol.payload import Payload, Shapes, frame_nbytes, order_of_steps, shapes, vectors

ROUND = "round"


class PoolError(RuntimeError):
    """The run cannot go on; the text has the cause, the worker and the last lines of its log."""


class WorkerTraceback(Exception):  # noqa: N818 - no error of its own
    """The traceback of an exception in a worker: the cause of the error that it led to here."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


@contextmanager
def caused_by(traceback: str) -> Iterator[None]:
    """Give errors inside this traceback of a worker's as their cause, if they have none."""
    try:
        yield
    except Exception as error:
        if traceback and error.__cause__ is None:
            raise error from WorkerTraceback(traceback)
        raise


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop."""


Reply = messages.Update | messages.Score | messages.Described


@dataclass(frozen=True)
class ReplyValidator:
    """Checks what workers send for one task, once, when it comes: accepts it, doubts it or refuses it.

    Subclasses may override:

    * `refuse`, `refuse_state`, `refuse_sums`: raise WireError for what no honest worker sends; the worker is ended;
    * `examine`: finds what cannot be true or cannot be used. A remote worker's reply that is doubted counts only if
      another worker's is no better.
    """

    quantities: frozenset[messages.EvaluatedQuantity] | None = None
    """The quantities that a score may have, with any part of theirs; None: any."""
    takes_vectors: bool = False
    """Whether a score may have vectors."""
    most_losses: int = 1
    """That an evaluated example may have: more than one of tokens."""

    def check(
        self, task: PoolTask, reply: Reply, state: messages.ClientState | None, is_remote: bool, is_doubted: bool
    ) -> tuple[Reply, str]:
        """(the reply as it counts, why it is doubted; '' if it is accepted). WireError if it is refused.

        ``state``: the client state that came with it. ``is_doubted``: whether another reply to the task was doubted.
        Others of local workers are not examined here: the run validates all updates before it uses them.
        """
        self.refuse(task, reply)
        if is_remote and task.state_out is not None and state is None:
            raise WireError(f"{task.name}: the client's state did not come ahead of the update")
        if not is_remote and not is_doubted:
            return reply, ""
        reply, doubt = self.examine(task, reply, {} if state is None else state.payload)
        return reply, doubt or ""

    def refuse(self, task: PoolTask, reply: Reply) -> None:
        """WireError for a reply to another task, or with other values."""
        message = task.message
        if isinstance(message, messages.Train):
            fits = isinstance(reply, messages.Update) and (reply.client, reply.round) == (message.client, message.round)
        elif isinstance(message, messages.Evaluate):
            fits = isinstance(reply, messages.Score) and (reply.client, reply.start) == (message.client, message.start)
            if isinstance(reply, messages.Score):
                least = message.stop - message.start
                fits = fits and reply.losses is not None and least <= reply.losses <= self.most_losses * least
        else:
            fits = isinstance(reply, messages.Described)
        if not fits:
            raise WireError(f"a {type(reply).__name__} that does not answer: {task.name}")
        if not isinstance(reply, messages.Score):
            return
        if self.quantities is not None:
            unknown = {quantity._replace(part=None) for quantity in reply.values} - self.quantities
            if unknown:
                names = sorted(quantity.name for quantity in unknown)
                raise WireError(f"{task.name}: values of {names}, which were not requested")
        if reply.payload and not self.takes_vectors:
            raise WireError(f"{task.name}: vectors {shapes(reply.payload)}, which were not requested")

    def examine(self, task: PoolTask, reply: Reply, state: Payload) -> tuple[Reply, str | None]:
        """(the reply as it counts, why it is doubted or None). ``state``: the client state that came with it."""
        if isinstance(reply, messages.Score):
            for quantity, (total, _) in reply.values.items():
                if not math.isfinite(total):
                    return reply, f"{task.name}: the sum of {quantity.name} is {total}"
        return reply, None

    def refuse_state(self, task: PoolTask, state: messages.ClientState) -> None:
        """WireError for client state of a remote worker that does not belong to this task."""
        if task.state_out is None or not isinstance(task.message, messages.Train):
            raise WireError(f"state of client {state.client}, which was not requested: {task.name}")
        if state.client != task.message.client:
            raise WireError(f"state of client {state.client} does not answer: {task.name}")

    def refuse_sums(self, task: PoolTask, totals: Totals, weight: float, is_remote: bool) -> None:
        """WireError for a partial sum with this task's update that cannot be. ``weight``: of all updates in it."""


@dataclass(frozen=True)
class UpdateValidator(ReplyValidator):
    """Checks the replies to a training task: vectors and numbers must be those that its method sends."""

    up: Shapes | None = None
    """Shapes of the update's vectors; None: any."""
    client_state_shapes: Shapes | None = None
    """Shapes of the vectors that its client keeps; None: any."""
    reports: frozenset[str] | None = None
    """Names of the numbers in the update; None: any."""

    def refuse(self, task: PoolTask, reply: Reply) -> None:
        """Also for other vectors and other numbers."""
        super().refuse(task, reply)
        assert isinstance(reply, messages.Update)
        if reply.encoded:
            raise WireError(f"{task.name}: encoded vectors {frame_nbytes(reply.encoded)}, which were not requested")
        if self.reports is not None and reply.numbers.keys() != self.reports:
            raise WireError(f"{task.name}: reports {sorted(reply.numbers)} instead of {sorted(self.reports)}")
        if self.up is None or task.is_in_partial_sum(reply):
            return
        got = shapes(reply.payload)
        if got != self.up:
            raise WireError(f"{task.name}: vectors {got} instead of {self.up}")
        if task.weight > 0.0 and not any(not_summable(vector.data) for _, _, vector in vectors(reply.payload)):
            raise WireError(f"{task.name}: an update that its worker was to add up")

    def refuse_state(self, task: PoolTask, state: messages.ClientState) -> None:
        """Also for other vectors."""
        super().refuse_state(task, state)
        got = shapes(state.payload)
        if self.client_state_shapes is not None and got != self.client_state_shapes:
            raise WireError(f"{task.name}: state of shapes {got} instead of {self.client_state_shapes}")

    def refuse_sums(self, task: PoolTask, totals: Totals, weight: float, is_remote: bool) -> None:
        """For other vectors."""
        got = sizes(totals)
        if self.up is not None and got != self.up:
            raise WireError(f"{task.name}: sums {got} instead of {self.up}")


@dataclass(frozen=True)
class PoolTask:
    """One unit of work, and the files of the client's state."""

    message: messages.Train | messages.Evaluate | messages.Describe
    state_in: str | None = None
    state_out: str | None = None
    numbering: str = ROUND
    """The unit that the number of a training message counts, for errors: ``round`` or ``visit``."""
    flops: float = 0.0
    """Foreseen work, by which tasks are prefetched; 0 if it is unknown."""
    weight: float = 0.0
    """The client's aggregation weight, with which the worker adds its update to a partial sum; 0: the update is sent.

    All tasks of a group have one or none has, and no two groups with weights are open at a time.
    """
    validator: ReplyValidator = ReplyValidator()
    """Checks what workers send for it."""
    build: Callable[[], Payload] | None = None
    """Builds the vectors that the worker needs, once, on another thread, when the task is to be sent; ``message`` has
    none before that."""
    on_failure: Callable[[PoolTask, str], None] | None = None
    """Called with the task and the reason if three workers failed over it, in place of an error of the pool."""
    may_fail: bool = False
    """Whether its group goes on with an update without numbers if three workers ended over it. Only training."""

    @property
    def name(self) -> str:
        """The task in words, for errors."""
        message = self.message
        if isinstance(message, messages.Train):
            return f"client {message.client}, {self.numbered(message.round)}, train"
        if isinstance(message, messages.Evaluate):
            whose = "global test set" if message.client == messages.GLOBAL else f"client {message.client}"
            return f"{whose}, examples {message.start} to {message.stop}, evaluate"
        return "describe"

    def numbered(self, number: int) -> str:
        """A round, counted from 1, or a visit, as the ledger numbers it."""
        return f"{self.numbering} {number + 1 if self.numbering == ROUND else number}"

    @property
    def payload(self) -> Payload:
        """Vectors that the worker needs."""
        return {} if isinstance(self.message, messages.Describe) else self.message.payload

    def with_payload(self, payload: Payload) -> PoolTask:
        """The task with the vectors that were built."""
        assert not isinstance(self.message, messages.Describe), self.name
        return replace(self, message=structs.replace(self.message, payload=payload), build=None)

    @property
    def together(self) -> bytes | None:
        """What it shares with the tasks that one worker is to do, since the first of them trains all; None: nothing."""
        order = order_of_steps(self.payload)
        return None if order is None else order.version

    @property
    def round(self) -> int:
        """That of a training message."""
        assert isinstance(self.message, messages.Train), self.name
        return self.message.round

    def is_in_partial_sum(self, reply: Reply) -> bool:
        """Whether the worker has added its update to a partial sum, in place of sending it."""
        if self.weight == 0.0 or not isinstance(reply, messages.Update):
            return False
        return not reply.payload and not reply.encoded


def check_partial_sum(sums: messages.PartialSum, tasks: Sequence[PoolTask], is_remote: bool) -> None:
    """WireError for a partial sum of other tasks than these, all of one round, or one that cannot be theirs."""
    weight = sum(task.weight for task in tasks)
    for task in tasks:
        if (sums.round, sums.clients) != (task.round, len(tasks)):
            counted = f"{sums.clients} updates of {task.numbered(sums.round)}"
            raise WireError(f"sums of {counted} instead of {len(tasks)} of {task.numbered(task.round)}")
    if tasks:
        tasks[0].validator.refuse_sums(tasks[0], sums.totals, weight, is_remote)


ReplyHandler = Callable[[PoolTask, Reply], None]
"""Called with each task and its reply, in order of arrival, in the thread that submits and waits.

The update of a task with a weight comes without vectors, unless its worker could not add it up.
"""


class TaskGroup(Protocol):
    """Tasks that were submitted together."""

    def wait(self) -> None:
        """Return when every task's reply has been handled, or the task was cancelled.

        Replies to other groups are handled meanwhile. Raises the exception of this group's `ReplyHandler`, and those
        that end the pool: `PoolError`, `Stopped`.
        """

    def collect(self) -> Totals:
        """The sums of all updates of a group with weights, after `wait`, once.

        Tasks of workers that die beforehand are done again elsewhere, without another call of the handler. Raises as
        `wait` does, and `PoolError` if the sums do not have exactly one update of each task.
        """
        ...

    def cancel(self) -> None:
        """Cancel all tasks without a reply, which is never handled then. No-op if there are none."""


class Workers(Protocol):
    """The interface of a pool for a run."""

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    def submit(self, tasks: Sequence[PoolTask], on_reply: ReplyHandler) -> TaskGroup:
        """Submit tasks, which workers begin in this order, after those of earlier groups.

        Returns at once. ``on_reply`` is called in any group's `TaskGroup.wait`, and in any `submit`, this one included.
        If it raises, the rest of its group is cancelled, and that group's `TaskGroup.wait` alone raises it again.
        """
        ...

    def build(self, make: Callable[[], Payload]) -> Future[Payload]:
        """Make a payload on another thread; payloads are made one after another."""
        ...
