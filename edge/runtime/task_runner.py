"""Where a worker does its tasks: each becomes a reply, and an exception an `Error`. Never a socket.

Where it is told to, it adds up its clients' updates instead of sending each. Of a GPU it takes its share
(`edge.runtime.gpu_share`).
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edge.protocol import codec, messages
from edge.protocol.config import CPU, Job, ModelProfile
from edge.protocol.fixed_point import FixedPointSums
from edge.protocol.payload import Payload
from edge.runtime import client_state_transfer
from edge.runtime.log import log_error

if TYPE_CHECKING:
    from edge.runtime.gpu_share import GpuShare


class TaskExecutor(Protocol):
    """What a worker does for a run; `edge.training.trainer.LocalTrainer` trains for real, tests have their own."""

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        """The description, and the initial vectors."""
        ...

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        """One visit to one client. The vectors of the update are left as they are until the next call."""
        ...

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        """Some test examples."""
        ...


class TaskRunner:
    """Where tasks are done, one after another."""

    def __init__(self, site: TaskExecutor, gpu: GpuShare | None, is_remote: bool = False) -> None:
        """``is_guest``: the files that envelopes name are not on this machine
        (`edge.runtime.client_state_transfer`)."""
        self._site, self._gpu, self.is_remote = site, gpu, is_remote
        self._sums = FixedPointSums(0)

    def perform(
        self, task: messages.Message, envelope: codec.Envelope, kept: messages.ClientState | None = None
    ) -> tuple[messages.Message, messages.ClientState | None]:
        """The reply to one task, and what goes back ahead of it; an exception becomes an `Error`."""
        try:
            if not self.is_remote:
                return self._perform(task, envelope)
            with client_state_transfer.received_state(envelope, kept) as own:
                return self._perform(task, own)
        except Exception as error:
            log_error()
            return error_of(error), None

    def telemetry(self, task: messages.Message, reply: messages.Message) -> str:
        """What there is to tell beside a reply: once, after the first visit, how much memory it took."""
        is_visit = isinstance(task, messages.Train) and not isinstance(reply, messages.Error)
        return self._gpu.measure() if self._gpu is not None and is_visit else ""

    def _perform(
        self, task: messages.Message, envelope: codec.Envelope
    ) -> tuple[messages.Message, messages.ClientState | None]:
        if self._gpu is not None:
            self._gpu.make_room(envelope.retired_slots)
        if isinstance(task, messages.Train):
            update = self._site.train(task, envelope.state_in, envelope.state_out)
            # read before the update is added up: what has failed must not be in the sums
            keeps = client_state_transfer.state_message(task, envelope) if self.is_remote else None
            return self._added(update, envelope.weight) if envelope.weight > 0.0 else update, keeps
        if isinstance(task, messages.FetchPartial):
            return self._collected(task.round), None
        if isinstance(task, messages.Evaluate):
            return self._site.evaluate(task, envelope.state_in), None
        assert isinstance(task, messages.Describe), task  # nothing else was let in
        return messages.Described(*self._site.describe(task.data)), None

    def _added(self, update: messages.Update, share: float) -> messages.Update:
        if update.round != self._sums.round:
            self._sums = FixedPointSums(update.round)
        return self._sums.put(update, share)

    def _collected(self, round: int) -> messages.PartialSum:
        if round != self._sums.round:
            return messages.PartialSum(round, 0, {})
        sums, self._sums = self._sums, FixedPointSums(round)
        return sums.message()


def error_of(error: BaseException) -> messages.Error:
    """What a coordinator is told of an exception."""
    return messages.Error(type(error).__name__, str(error)[: messages.MAX_ERROR_TEXT])


def load_executor(job: Job, site_name: str) -> tuple[TaskExecutor, GpuShare | None]:
    """What does the work (``module:Class``), and its share of a GPU."""
    gpu = None
    if job.device != CPU:
        from edge.runtime.gpu_share import GpuShare

        gpu = GpuShare(job)
        job = replace(job, device=gpu.name)
    module, name = site_name.split(":")
    site: TaskExecutor = getattr(importlib.import_module(module), name)(job)
    return site, gpu
