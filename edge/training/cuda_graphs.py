"""A local step captured in a CUDA graph, and replayed for every full batch of the same kind.

The CUDA side of this file (`CudaGraph`) has been read against torch's documentation and source, and never been run;
all else is what the tests replay on a CPU.

A small model's step is a hundred kernels of some microseconds each, and what it costs is their launching. A graph is
launched as a whole. It replays the same kernels on the same addresses: so batches are copied into buffers that stay,
the step size is a tensor, and what the step noted is copied out. The last, short batch of an epoch runs as it is.

One capture serves all visits of a worker that have the shape of the batch, the choice of the visit, the loss and the
blocks that move in common. All else that makes a step is the worker's for a whole run (model, options, precision,
corrections) or stays in its place: parameters, gradients and buffers of a `BlockModel` and of its frozen twin, and
every `BlockModel.scratch`, are allocated once, and a visit writes to them in place. A client side that is
``capturable`` promises of its losses, and a correction of its ``correct`` and ``correct_unclipped``, that they

* read no tensors but these, the batch, and those that they make themselves;
* depend on options, on the visit's ``choice``, and on nothing else of a visit or a round;
* never wait for the device (``item``, ``float``, ``cpu``), and so never branch on data;
* draw no random numbers on the host;
* leave nothing on the host but what `ClientUpdate.record_loss` notes.

FedAvg, FedNova, FedProx, FedMLB, FedBR, SCAFFOLD, FedDyn and the objectives with a frozen teacher do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge.protocol.config import TrainConfig
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, GradientCorrection, Step, VisitContext
from edge.training.sgd import Loss, Sgd

WARM_UP_STEPS = 3
"""Steps that run as they are before a capture, as torch asks: libraries allocate what they need at their first call."""


class GraphBackend(Protocol):
    """Work on the device that can be done again; `CudaGraph`, or a stand-in of tests."""

    def capture(self, work: Callable[[], None]) -> None:
        """Learn the work without doing it."""
        ...

    def replay(self) -> None:
        """Do it, on the tensors that it was captured with."""
        ...


class CudaGraph:
    """A `torch.cuda.CUDAGraph` on the current stream, which must not be the default one."""

    def __init__(self, pool: Any) -> None:
        """``pool``: of `torch.cuda.graph_pool_handle`, for what the work allocates."""
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
    """What makes the graphs of a worker, all in one pool of memory.

    They may share one, in whatever order they are replayed: what a step leaves behind lies outside of it, in the net's
    vectors and in the tensors of a `CapturedStep`.
    """
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class StepFactory:
    """What makes the steps of a worker's visits: plain ones, or replayed ones where there are graphs.

    With graphs the step size is a tensor also in steps that run as they are: they must round as the replayed ones do,
    since which steps are replayed depends on what the worker did before.
    """

    def __init__(self, net: BlockModel, config: TrainConfig, graphs: Callable[[], GraphBackend] | None = None) -> None:
        """``graphs``: makes a graph, on a device that has them."""
        self._net, self._config, self._graphs = net, config, graphs
        self._lr = torch.zeros((), device=net.device)
        self._recordings: dict[Hashable, CapturedStep] = {}

    def begin(self, visit: VisitContext, objective: ClientUpdate, corrections: Sequence[GradientCorrection]) -> Step:
        """The step of one visit, whose client sides have begun."""
        correct, unclipped = [one.correct for one in corrections], [one.correct_unclipped for one in corrections]
        if self._graphs is None:
            return Sgd(self._net, self._config, visit.lr, correct, unclipped)
        step = Sgd(self._net, self._config, self._lr.fill_(visit.lr), correct, unclipped)
        if not _is_capturable(type(objective)) or not all(_is_capturable(type(one)) for one in corrections):
            return step
        choice = tuple(sorted(visit.choice.items()))
        return GraphStep(step, objective.losses, choice, self._recordings, self._graphs)


def _is_capturable(client_side: type) -> bool:
    return bool(vars(client_side).get("capturable", False))  # a base cannot promise for what overrides it


class GraphStep:
    """The step of one visit: `Sgd`'s to the bit, replayed where the batch is full."""

    def __init__(
        self,
        step: Sgd,
        losses: list[Tensor],
        choice: Hashable,
        recordings: dict[Hashable, CapturedStep],
        graphs: Callable[[], GraphBackend],
    ) -> None:
        """``losses``: what the objective notes; ``recordings``: those of earlier visits, and of this one."""
        self._step, self._losses, self._choice = step, losses, choice
        self._recordings, self._graphs = recordings, graphs

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """As `Sgd.__call__`; ``loss`` is a method of the objective."""
        if len(x) < self._step.config.batch:
            self._step(loss, x, y, only)
            return
        blocks = None if only is None else tuple(only)
        key = (self._choice, loss.__name__, blocks, x.shape)
        recording = self._recordings.setdefault(key, CapturedStep(self._step.net))
        if recording.warm_up_left:
            recording.warm_up(lambda: self._step(loss, x, y, only), self._losses)
            return
        if recording.graph is None:
            recording.capture(self._graphs(), lambda x, y: self._step(loss, x, y, only), x, y, self._losses)
        recording.replay(x, y, self._losses)


@dataclass(eq=False)
class CapturedStep:
    """One kind of step: its graph, and the tensors through which a replay is told and tells."""

    net: BlockModel
    warm_up_left: int = WARM_UP_STEPS
    graph: GraphBackend | None = None
    batch: tuple[Tensor, ...] = ()
    noted: tuple[Tensor, ...] = ()
    executed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """What the step adds to `BlockModel.executed`."""

    def warm_up(self, step: Callable[[], None], losses: list[Tensor]) -> None:
        """A step as it is, which also shows what a step notes."""
        before = len(losses)
        step()
        self.noted = tuple(torch.empty_like(loss) for loss in losses[before:])
        self.warm_up_left -= 1

    def capture(
        self, graph: GraphBackend, step: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor, losses: list[Tensor]
    ) -> None:
        """Learn the step on batches like ``x`` and ``y``, without doing it."""
        self.batch = (torch.empty_like(x), torch.empty_like(y))  # in the memory format of theirs

        def work() -> None:
            before, executed = len(losses), self.net.executed.copy()
            step(*self.batch)
            for home, loss in zip(self.noted, losses[before:], strict=True):
                home.copy_(loss)
            # A replay does nothing on the host, so neither does this.
            del losses[before:]
            self.executed = self.net.executed - executed
            self.net.executed[:] = executed

        graph.capture(work)
        self.graph = graph

    def replay(self, x: Tensor, y: Tensor, losses: list[Tensor]) -> None:
        """One step on this batch."""
        assert self.graph is not None
        for home, given in zip(self.batch, (x, y), strict=True):
            home.copy_(given)
        self.graph.replay()
        losses.extend(home.clone() for home in self.noted)
        self.net.executed += self.executed
