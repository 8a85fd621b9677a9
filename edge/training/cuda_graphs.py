"""A local step captured in a CUDA graph, or its gradients on a tape, and replayed for every batch of the same kind.

`tests/cuda` replays all models and methods on a GPU, to the bit; other tests replay on a CPU, where a `KernelTape`
takes the place of the graph in all runs of shipped models (`TapedStep`).

A small model's step is a hundred kernels of some microseconds each, and most of its time is their launching. A graph is
launched as a whole. It replays the same kernels on the same addresses: so batches are copied into fixed buffers, the
step size is a tensor, and the recorded losses are copied out. The last, short batch of an epoch runs uncaptured.

One capture serves all visits of a worker with the same shape of the batch, choice of the visit, statistics in use, loss
and trained blocks. Everything else in a step is fixed for the run (model, options, precision, corrections) or has a
fixed address: parameters, gradients and buffers of a `BlockModel` and of its frozen copies, every `BlockModel.scratch`
and `BlockModel.logit_scratch` are allocated once, and a visit writes to them in place. The losses and ``correct`` of a
``capturable`` client side, and ``correct`` and ``correct_unclipped`` of a ``capturable`` correction,

* read no tensors but these, the batch, and those that they make themselves;
* depend on options, on the visit's ``choice``, and on nothing else of a visit or a round;
* never wait for the device (``item``, ``float``, ``cpu``), and so never branch on data;
* draw no random numbers;
* leave nothing on the host but the losses of `ClientUpdate.record_loss`, and so log nothing.

FedAvg, FedNova, FedProx, pFedMe, IFCA, FedFomo, FedMLB, FedBR, MOON, FedAlign, FjORD, DepthFL, SCAFFOLD, FedDyn,
`calibrated` and the objectives with a frozen teacher are capturable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge.protocol.config import TrainConfig
from edge.protocol.optimizers import SGD
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, GradientCorrection, Step, VisitContext
from edge.training.kernel_tape import KernelTape
from edge.training.sgd import Loss, Sgd, local_step

WARM_UP_STEPS = 3
"""Uncaptured steps before a capture, as torch requires: libraries allocate memory at their first calls."""


class GraphBackend(Protocol):
    """Repeatable work on the device: `CudaGraph`, or a substitute in tests."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record the work without running it."""
        ...

    def replay(self) -> None:
        """Run the work, on the tensors of the capture."""
        ...


class CudaGraph:
    """A `torch.cuda.CUDAGraph` on the current stream, which must not be the default stream."""

    def __init__(self, pool: Any) -> None:
        """``pool``: a handle of `torch.cuda.graph_pool_handle`, for memory that the work allocates."""
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        """As `GraphBackend.capture`."""
        with torch.cuda.graph(self._graph, pool=self._pool, stream=torch.cuda.current_stream()):
            work()

    def replay(self) -> None:
        """As `GraphBackend.replay`."""
        self._graph.replay()


def cuda_graphs() -> Callable[[], GraphBackend]:
    """A factory of a worker's graphs, all in one memory pool.

    They may share one, in any order of replays: the results of a step are outside of it, in the model's vectors and in
    the tensors of a `CapturedStep`.
    """
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class StepFactory:
    """A factory of the steps of a worker's visits: plain ones, or replayed ones with graphs.

    With graphs the step size is a tensor in uncaptured steps too: they must round as replayed ones do, since the set of
    replayed steps depends on the worker's earlier visits.
    """

    def __init__(
        self,
        net: BlockModel,
        config: TrainConfig,
        graphs: Callable[[], GraphBackend] | None = None,
        tapes: Callable[[], KernelTape] | None = None,
    ) -> None:
        """``graphs``: a factory of graphs, on a device with CUDA; ``tapes``: of those of `TapedStep`, on a CPU."""
        self._net, self._config, self._graphs, self._tapes = net, config, graphs, tapes
        self._lr = torch.zeros((), device=net.device)
        self._captured: dict[Hashable, CapturedStep] = {}

    def begin(self, visit: VisitContext, objective: ClientUpdate, corrections: Sequence[GradientCorrection]) -> Step:
        """The step of one visit, whose client sides have begun."""
        correct = [] if type(objective).correct is ClientUpdate.correct else [objective.correct]
        correct += [correction.correct for correction in corrections]
        unclipped = [correction.correct_unclipped for correction in corrections]
        shifts = [correction.logit_shift for correction in corrections if correction.logit_shift is not None]
        kept = next((each.optimizer_steps for each in corrections if each.optimizer_steps is not None), None)
        is_replayed = self._graphs is not None and self._config.optimizer == SGD
        lr = self._lr.fill_(visit.lr) if is_replayed else visit.lr
        step = local_step(self._net, self._config, lr, correct, unclipped, shifts, planned=visit.plan.steps, kept=kept)
        # A base class cannot guarantee it for subclasses.
        if not all(vars(type(client_side)).get("capturable", False) for client_side in (objective, *corrections)):
            return step
        choice = (tuple(sorted(visit.choice.items())), visit.variant, self._net.statistics_in_use)
        if self._graphs is not None:
            # Other optimizers count their steps on the host.
            if not is_replayed:
                return step
            return GraphStep(step, objective.losses, choice, self._captured, self._graphs)
        return step if self._tapes is None else TapedStep(step, objective.losses, choice, self._captured, self._tapes)


class GraphStep:
    """The step of one visit: `Sgd`'s to the bit, replayed where the batch is full.

    ``backward`` and ``apply`` alone are not captured.
    """

    def __init__(
        self,
        step: Sgd,
        losses: list[Tensor],
        choice: Hashable,
        captured: dict[Hashable, CapturedStep],
        graphs: Callable[[], GraphBackend],
    ) -> None:
        """``losses``: those that the objective records; ``captured``: the steps of earlier visits and of this one."""
        self._step, self._losses, self._choice = step, losses, choice
        self._captured, self._graphs = captured, graphs

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """As `Sgd.__call__`; ``loss`` is a method of the objective."""
        if len(x) < self._step.config.batch:
            self._step(loss, x, y, only)
            return
        blocks = None if only is None else tuple(only)
        key = (self._choice, loss.__name__, blocks, x.shape)
        captured = self._captured.setdefault(key, CapturedStep(self._step.net))
        self._step.schedule()
        if captured.warm_up_left:
            captured.warm_up(lambda: self._step.scheduled(loss, x, y, only), self._losses)
            return
        if captured.graph is None:
            captured.capture(self._graphs(), lambda x, y: self._step.scheduled(loss, x, y, only), x, y, self._losses)
        captured.replay(x, y, self._losses)
        self._step.has_gradient = False

    def zero(self) -> None:
        """As `Sgd.zero`."""
        self._step.zero()

    def backward(self, loss: Loss, x: Tensor, y: Tensor) -> None:
        """As `Sgd.backward`."""
        self._step.backward(loss, x, y)

    def apply(self, only: Sequence[str | slice] | None = None) -> None:
        """As `Sgd.apply`."""
        self._step.apply(only)


class TapedStep(GraphStep):
    """The step of one visit on a CPU: `Sgd`'s to the bit, whose gradients are replayed, of batches of any size.

    Corrections, clipping and the move run as they are, with the step size as a number.
    """

    def __init__(
        self,
        step: Sgd,
        losses: list[Tensor],
        choice: Hashable,
        captured: dict[Hashable, CapturedStep],
        tapes: Callable[[], KernelTape],
    ) -> None:
        super().__init__(step, losses, choice, captured, tapes)
        self._tapes = tapes

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """As `Sgd.__call__`."""
        self._step.zero()
        self.backward(loss, x, y)
        self._step.apply(only)

    def backward(self, loss: Loss, x: Tensor, y: Tensor) -> None:
        """As `Sgd.backward`; ``loss`` is a method of the objective."""
        if not self._step.has_gradient:
            self._step.zero()
        key = (self._choice, loss.__name__, x.shape, x.stride())
        if key not in self._captured:
            self._captured[key] = CapturedStep(self._step.net)
        captured = self._captured[key]
        if captured.warm_up_left:
            captured.warm_up(lambda: self._step.backward(loss, x, y), self._losses)
        elif captured.graph is not None:
            captured.replay(x, y, self._losses)
        else:
            tape = self._tapes()
            captured.capture(tape, lambda x, y: self._step.backward(loss, x, y), x, y, self._losses)
            captured.replay(x, y, self._losses)
            if tape.nbytes is None:
                self._captured[key] = CapturedStep(self._step.net, warm_up_left=sys.maxsize)  # never again


@dataclass(eq=False)
class CapturedStep:
    """One kind of step: its graph, and the input and output tensors of replays."""

    net: BlockModel
    warm_up_left: int = WARM_UP_STEPS
    graph: GraphBackend | None = None
    batch: tuple[Tensor, ...] = ()
    recorded: tuple[Tensor, ...] = ()
    """The losses that the step records"""
    executed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The counts that the step adds to `BlockModel.executed`"""
    further_flops: float = 0.0
    """FLOPs that it adds to `BlockModel.further_flops`"""

    def warm_up(self, step: Callable[[], None], losses: list[Tensor]) -> None:
        """Run an uncaptured step, which also shows the number of recorded losses."""
        before = len(losses)
        step()
        self.recorded = tuple(torch.empty_like(loss) for loss in losses[before:])
        self.warm_up_left -= 1

    def capture(
        self, graph: GraphBackend, step: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor, losses: list[Tensor]
    ) -> None:
        """Record the step on batches like ``x`` and ``y``, without running it."""
        self.batch = (torch.empty_like(x), torch.empty_like(y))  # with their memory formats

        def work() -> None:
            before, executed, further = len(losses), self.net.executed.copy(), self.net.further_flops
            step(*self.batch)
            for buffer, loss in zip(self.recorded, losses[before:], strict=True):
                buffer.copy_(loss)
            # A replay changes nothing on the host, so neither does the capture.
            del losses[before:]
            self.executed = self.net.executed - executed
            self.net.executed[:] = executed
            self.further_flops, self.net.further_flops = self.net.further_flops - further, further

        graph.capture(work)
        self.graph = graph

    def replay(self, x: Tensor, y: Tensor, losses: list[Tensor]) -> None:
        """One step on this batch."""
        assert self.graph is not None
        for buffer, values in zip(self.batch, (x, y), strict=True):
            buffer.copy_(values)
        self.graph.replay()
        losses.extend(buffer.clone() for buffer in self.recorded)
        self.net.executed += self.executed
        self.net.add_flops(self.further_flops)
