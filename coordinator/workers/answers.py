"""The replies of workers with their tasks, and doubts about those of remote workers. Never a message.

A remote worker's reply that cannot be true, or cannot be used, does not count at first: another worker does the task,
too. If its reply is better, the first is dismissed. If it is not, or if there is no other worker, the training itself
fails, and the reply counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from coordinator.workers.instructions import Instruction
from coordinator.workers.registry import Worker
from coordinator.workers.scheduler import TaskScheduler
from coordinator.workers.task import PoolTask, Reply
from coordinator.workers.task_group import TaskGroups
from edge.protocol import messages
from edge.protocol.messages import ClientState


class Answer(NamedTuple):
    """A reply, and the task that it answers."""

    sequence: int
    seconds: float
    reply: Reply
    task: PoolTask | None
    """None for a task that is over."""
    state: ClientState | None
    """The client state that came ahead of the reply."""

    @property
    def is_in_partial_sum(self) -> bool:
        """Whether the worker has added the update to its partial sum."""
        return self.task is not None and self.task.is_in_partial_sum(self.reply)

    def made_by(self, worker: str) -> Answer:
        """The same, with its remote worker's name in the update."""
        is_update = isinstance(self.reply, messages.Update)
        return self._replace(reply=structs.replace(self.reply, by=worker)) if is_update else self


@dataclass(eq=False)
class DoubtedReplies:
    """The remote workers of one pool whose replies to open tasks were unusable."""

    scheduler: TaskScheduler
    groups: TaskGroups
    execute: Callable[[Iterable[Instruction]], None]
    """Executes instructions of the scheduler."""
    event: Callable[[str, Worker | None, str], None]
    """Records an event: kind, worker, detail."""
    dismiss: Callable[[Worker, str], None]
    """Ends a worker: (worker, reason)."""
    _doubted: dict[int, list[Worker]] = field(default_factory=dict, init=False)
    """task -> remote workers whose replies to it were unusable"""

    def accepted(self, worker: Worker, answer: Answer) -> Answer | None:
        """The reply as it counts. None for a doubted one of a remote worker, unless no other worker's is better."""
        sequence, task = answer.sequence, answer.task
        if task is None or (not worker.key and sequence not in self._doubted):
            return answer
        reply, doubt = task.validator.examine(task, answer.reply, {} if answer.state is None else answer.state.payload)
        if doubt is None:
            self._dismiss_doubted(sequence)
        elif worker.key and not self._is_confirmed(worker, sequence):
            self._repeat_elsewhere(worker, sequence, doubt)
            return None
        return answer._replace(reply=reply)

    def _is_confirmed(self, remote_worker: Worker, sequence: int) -> bool:
        """Whether others' replies to a task were no better, or there are no others: the training itself fails."""
        others = {other.key for other in self._doubted.get(sequence, ())}
        return bool(others - {remote_worker.key}) or (bool(others) and self.scheduler.has_failed_everywhere(sequence))

    def _repeat_elsewhere(self, remote_worker: Worker, sequence: int, problem: str) -> None:
        self._doubted = {number: by for number, by in self._doubted.items() if self.groups.get(number) is not None}
        self._doubted.setdefault(sequence, []).append(remote_worker)
        reason = f"worker {remote_worker.number}, a remote worker, key {remote_worker.key}: {problem}"
        self.event("task_failed", remote_worker, reason)
        self.execute(self.scheduler.doubted(remote_worker.number, sequence, reason))

    def _dismiss_doubted(self, sequence: int) -> None:
        """A task has a usable reply: dismiss remote workers whose replies to it were not."""
        for remote_worker in self._doubted.pop(sequence, ()):
            if not remote_worker.dead:
                self.dismiss(remote_worker, "its reply could not be used, and another worker's to the same task could")
