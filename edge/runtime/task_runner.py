"""The task runner of a worker: a task becomes a reply, and an exception an `Error`. Never a socket.

Updates with a weight are added to a partial sum instead of being sent. On a GPU, `edge.runtime.gpu_share`
limits memory.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edge.protocol import messages, serialization
from edge.protocol.config import CPU, Job, ModelProfile
from edge.protocol.fixed_point import FixedPointSums
from edge.protocol.payload import Payload
from edge.protocol.plugins import error_frames, error_place
from edge.protocol.secure_sum import SecureSum
from edge.runtime.log import log_error

if TYPE_CHECKING:
    from edge.runtime.gpu_share import GpuShare


class TaskExecutor(Protocol):
    """The interface of the object that does a worker's tasks, such as `edge.training.trainer.LocalTrainer`."""

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        """Profile of model and data, and the initial vectors."""
        ...

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        """One visit of one client. The vectors of the update are unchanged until the next call."""
        ...

    def decoded(self, update: messages.Update) -> messages.Update:
        """The update of the last visit with the vectors that its receiver decodes."""
        ...

    def clipped(self, update: messages.Update) -> messages.Update:
        """The update of the last visit as it is added up, clipped where the sum will have noise."""
        ...

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        """Score a model on a range of test examples."""
        ...


class TaskRunner:
    """Does tasks, one after another."""

    def __init__(self, executor: TaskExecutor, gpu: GpuShare | None, levels: SecureSum | None = None) -> None:
        """``levels``: of secure aggregation."""
        self._executor, self._gpu, self._levels = executor, gpu, levels
        self._sums = FixedPointSums(0, levels)

    def perform(self, task: messages.Message, envelope: serialization.Envelope) -> messages.Message:
        """The reply to one task; an exception becomes an `Error`."""
        try:
            if self._gpu is not None:
                self._gpu.update_limit(envelope.retired_slots)
            if isinstance(task, messages.Train):
                update = self._executor.train(task, envelope.state_in, envelope.state_out)
                return self._added(update, envelope.weight) if envelope.weight > 0.0 else update
            if isinstance(task, messages.FetchPartial):
                return self._collected(task.round)
            if isinstance(task, messages.Evaluate):
                return self._executor.evaluate(task, envelope.state_in)
            assert isinstance(task, messages.Describe), task  # the connection accepts no other
            return messages.Described(*self._executor.describe(task.data))
        except Exception as error:
            log_error()
            return error_of(error)

    def telemetry(self, task: messages.Message, reply: messages.Message) -> str:
        """The memory that the first visit took, once; otherwise ''."""
        is_visit = isinstance(task, messages.Train) and not isinstance(reply, messages.Error)
        return self._gpu.measure() if self._gpu is not None and is_visit else ""

    def _added(self, update: messages.Update, weight: float) -> messages.Update:
        if update.round != self._sums.round:
            self._sums = FixedPointSums(update.round, self._levels)
        decoded = self._executor.decoded(update) if update.encoded else update
        added = self._sums.put(self._executor.clipped(decoded), weight)
        return update if added.payload else added

    def _collected(self, round: int) -> messages.PartialSum:
        if round != self._sums.round:
            return messages.PartialSum(round, 0, {})
        sums, self._sums = self._sums, FixedPointSums(round, self._levels)
        return sums.message()


def error_of(error: BaseException) -> messages.Error:
    """An exception as a message: its text has the place in a user's code that it came from."""
    place = error_place(error)
    text = f"{str(error)[: messages.MAX_ERROR_TEXT - len(place)]}{place}"[: messages.MAX_ERROR_TEXT]
    return messages.Error(type(error).__name__, text, error_frames(error)[-messages.MAX_TRACEBACK :])


def load_executor(job: Job, name: str) -> tuple[TaskExecutor, GpuShare | None]:
    """The executor ``name`` (``module:Class``) for a job, and its share of a GPU."""
    gpu = None
    if job.device != CPU:
        from edge.runtime.gpu_share import GpuShare

        gpu = GpuShare(job)
        job = replace(job, device=gpu.name)
    module, class_name = name.split(":")
    executor: TaskExecutor = getattr(importlib.import_module(module), class_name)(job)
    return executor, gpu
