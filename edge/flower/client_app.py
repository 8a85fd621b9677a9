"""Runs a ClientApp in a worker: a message of Flower's in, its reply out, and what the device would compute for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which torch's optimizers import, two seconds in each worker unless the fork server has it
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from torch._ops import OpOverload
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from edge.flower import wire
from edge.flower.device_records import nbytes
from edge.flower.reply_check import EXAMPLES, problem
from edge.flower.wire import LoadError, OldInterfaceError
from edge.protocol import app_records, messages
from edge.protocol.app_records import AppReply
from edge.protocol.config import Job, ModelProfile
from edge.protocol.payload import Payload
from edge.protocol.plugins import as_text, error_text
from edge.runtime.log import log_error
from edge.training.counts import convolution_flops

CRASHED = "ClientApp stopped responding."
"""Flower's reason where a ClientApp has ended its process"""
NOT_LOADED = "An exception was raised when attempting to load `ClientApp`"
MOST_RAISED = 100
"""Errors of which a worker logs each once"""
HOST_SIZE, HOST_STEPS = 64, 30
"""Width of the layers, and steps, by which this host's rate is measured"""


class ClientAppExecutor:
    """The `edge.runtime.task_runner.TaskExecutor` of runs of a Flower app.

    ``job.options_values``: ``app`` (folder), ``client_app`` (its reference), ``messages`` (folder of
    `edge.protocol.app_records`), ``run_config``.
    """

    def __init__(self, job: Job) -> None:
        self._seed, self._clients, self._values = job.seed, job.data.clients, job.options_values
        self._folder = Path(self._values["messages"])
        self._steps = 0
        self._raised = set[str]()
        """Errors that were logged"""
        torch.set_num_threads(job.train.threads)
        register_optimizer_step_post_hook(self._count_step)

    @cached_property
    def _app(self) -> ClientApp:
        app: ClientApp = wire.app_object(Path(self._values["app"]), self._values["client_app"], ClientApp)
        return app

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        raise NotImplementedError("an app describes nothing")

    def decoded(self, update: messages.Update) -> messages.Update:
        raise NotImplementedError("an app's replies have no codec")

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        raise NotImplementedError("an app evaluates by messages of its own")

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        """Have the app answer message number ``task.round``.

        ``state_in``: the reply whose context the node has, or None; ``state_out``: where the reply goes.
        """
        assert state_out is not None, task
        request = app_records.message_file(self._folder, task.round)
        sha256, packed = request.read_bytes().split(b"\n", 1)
        message = wire.unpack(packed)
        began = message.metadata.created_at - app_records.EPOCH
        wire.identify(message.metadata.dst_node_id, lambda: began)
        context = self._context(task.client, state_in)
        wire.seed_all(self._seed, "flower client", task.round, task.client)
        reply = self._reply(sha256.decode(), message, context)
        app_records.write_reply(Path(state_out), reply)
        return messages.Update(task.client, task.round, {}, {})

    def _context(self, client: int, state: str | None) -> Context:
        if state is not None:
            return wire.unpack_context(app_records.read_reply(Path(state)).context)
        node: UserConfig = {"partition-id": client, "num-partitions": self._clients}
        return Context(wire.RUN_ID, wire.node_id(client), node, RecordDict(), dict(self._values["run_config"]))

    def _reply(self, request: str, message: Message, context: Context) -> AppReply:
        self._steps, raised = 0, ""
        try:
            with _counted() as used:
                reply = self._app(message, context)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # of this host, not of the modelled device
        except OldInterfaceError as error:
            return _refused(request, f"has raised {error_text(error)}")
        except (Exception, SystemExit) as error:  # an app may raise anything, and exit
            raised = error_text(error)[: app_records.MAX_ERROR]
            if raised not in self._raised:
                self._raised = {*self._raised, raised} if len(self._raised) < MOST_RAISED else {raised}
                log_error()
            reply = Message(_error(error), reply_to=message)
        if why := problem(reply, message, context):
            return _refused(request, why)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        said = dict[str, float]()
        if reply.has_content():
            for record in reply.content.metric_records.values():
                said |= wire.numbers(record)
        elif not raised:
            raised = as_text(f"error {reply.error.code}: {reply.error.reason}")[: app_records.MAX_ERROR]
        # without FLOPs the time of an error would be that of this host, and other messages might follow from it
        is_timed = not used["flops"] and reply.has_content()
        return AppReply(
            request,
            wire.pack(reply),
            wire.pack_context(context),
            nbytes(reply),
            wire.content_sha256(reply) if reply.has_content() else request,
            used["flops"],
            used["cpu"] * _host_flops_per_second() if is_timed else 0.0,
            self._steps,
            int(said.pop(EXAMPLES, 0)),
            said,
            raised,
        )

    def _count_step(self, *_: Any) -> None:
        self._steps += 1


def _refused(request: str, why: str) -> AppReply:
    return AppReply(request, b"", b"", 0, request, 0.0, 0.0, 0, 0, {}, refused=why[: app_records.MAX_ERROR])


def _error(error: BaseException) -> Error:
    """The error that a SuperNode of flwr 1.41 replies with."""
    if isinstance(error, SystemExit):
        return Error(ErrorCode.CLIENT_APP_CRASHED, CRASHED)
    if isinstance(error, LoadError) and error.__cause__ is None:
        return Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, NOT_LOADED)
    raised = error.__cause__ if isinstance(error, LoadError) and error.__cause__ is not None else error
    try:
        text = as_text(str(raised))
    except Exception:  # its class is the app's
        text = ""
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(raised)}:<'{text}'>")


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """FLOPs of convolutions, matrix products and their gradients in everything that runs under it.

    Torch's own ``FlopCounterMode`` takes four times as long as a small network; `edge.training.counts` also counts
    operations by kind, which an app's need not be.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator, and count it."""
        given = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **given)
        packet = func.overloadpacket
        if packet not in flop_registry and _is_composite(func):  # whole in inference mode alone
            with self:
                return func.decompose(*args, **given)
        result = func(*args, **given)
        if packet is torch.ops.aten.convolution_backward:
            gradient, images, weight = args[:3]
            self.flops += convolution_flops(images if args[7] else gradient, weight, sum(args[-1][:2]))
        elif packet in flop_registry:
            self.flops += int(flop_registry[packet](*args, **given, out_val=result))
        return result


@cache
def _is_composite(operator: Any) -> bool:
    """Whether an operator is made of others."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


@contextmanager
def _counted() -> Iterator[dict[str, float]]:
    """Count torch's FLOPs, 2 per multiply-add, and this process's CPU seconds in the body, whether or not it raises."""
    began, counter, used = time.process_time(), _FlopCounter(), dict[str, float]()
    try:
        with counter:
            yield used
    finally:
        used |= {"cpu": time.process_time() - began, "flops": float(counter.flops)}


_host: list[float] = []


def _host_flops_per_second() -> float:
    """What one thread of this host computes in training, FLOP/s, measured once per worker on a small convolution."""
    if not _host:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, HOST_SIZE, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(HOST_SIZE, HOST_SIZE, 3)
        )
        images = torch.randn(16, 3, 16, 16)
        with _counted() as used:
            net(images).square().mean().backward()
        began = time.process_time()
        for _ in range(HOST_STEPS):
            net(images).square().mean().backward()
        _host.append(HOST_STEPS * used["flops"] / (time.process_time() - began))
    return _host[0]
