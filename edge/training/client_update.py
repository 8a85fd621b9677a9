"""One visit to one client: the client side of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

Subclasses of `ClientUpdate` can customise by overriding

* ``begin``: where training starts from, and what is remembered for the visit (a frozen copy, a teacher);
* ``loss``: the local objective on one batch;
* ``train``: only for methods that train in more than one phase;
* ``end``: what goes up beside the model, what is kept, which numbers are reported;
* ``prepare_score``: the model that is evaluated, for methods evaluated client by client;
* ``capturable``: whether its steps may be replayed from a CUDA graph (`edge.training.cuda_graphs` says what that asks
  of them).

A `GradientCorrection` joins any objective; it changes gradients and may keep and send vectors of its own slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import TrainConfig, TrainingPlan
from edge.protocol.payload import MODEL, Payload
from edge.protocol.rng import keyed_generator
from edge.training.block_model import BlockModel

Batch = tuple[Tensor, Tensor]
Batches = Callable[[], Iterator[Batch]]
"""Each call goes once more over all local epochs, with an order of its own."""
Step = Callable[..., None]
"""step(loss, x, y, only=None): one optimiser step (`edge.training.sgd.Sgd`)."""


@dataclass(frozen=True)
class VisitContext:
    """What a client side may know about the visit it is in."""

    client: int
    round: int
    seed: int
    lr: float
    """Step size of this visit."""
    step_sum: float
    """`TrainConfig.step_sum` of its steps."""
    choice: Mapping[str, int]
    """What the server decided for this visit, by the method's own names."""
    plan: TrainingPlan
    up: tuple[str, ...]
    """Keys of the model that go up."""
    keep: tuple[str, ...]
    """Keys of the model that the client keeps."""
    local: Batches
    """All local training examples once, in order, as the test set is prepared."""
    device: torch.device
    pathways: Literal["each", "sweep"] = "each"
    """How hybrid pathways are run (`edge.training.pathways`), where a method has any."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How its steps are made."""

    def rng(self, purpose: str) -> np.random.Generator:
        """The method's private random stream for this visit."""
        return keyed_generator(self.seed, purpose, self.round, self.client)


class ClientUpdate:
    """The client side of FedAvg, and the base of all others."""

    capturable: ClassVar[bool] = True
    """Every class says it for itself: where one says nothing, whatever its base says, its steps are not captured."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.losses: list[Tensor] = []

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from what was kept, overlaid with what arrived."""
        self.visit = visit
        kept, arrived = state.get(MODEL, {}), down.get(MODEL, {})
        lacking = [key for key in net.layout.sizes if key not in kept and key not in arrived]
        if lacking:
            raise ValueError(f"client {visit.client} has never held {', '.join(lacking)} and was not sent it")
        net.load({key: vector for key, vector in kept.items() if key not in arrived})
        net.load(arrived)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The local objective on one batch; a scalar."""
        return self.record_loss(F.cross_entropy(net.run(x), y))

    def record_loss(self, cross_entropy: Tensor) -> Tensor:
        """Remember the main path's cross-entropy of this step, for the report; returns it unchanged."""
        self.losses.append(cross_entropy.detach())
        return cross_entropy

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """All local epochs."""
        for x, y in batches():
            step(self.loss, x, y)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """(what goes up, what is kept, numbers), the vectors by slot.

        The vectors may be views of the model or of its scratch: they stay as they are until the next task begins.
        """
        numbers = net.views(dict.fromkeys(visit.up + visit.keep))
        up = {key: numbers[key] for key in visit.up}
        kept = {key: numbers[key] for key in visit.keep}
        return {MODEL: up}, {MODEL: kept} if kept else {}, {"loss": mean(self.losses)}

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load the model to be evaluated: by default, what a visit would start from."""
        self.begin(net, down, state, visit)


class GradientCorrection:
    """What joins an objective: a term on the gradients, with its own slots down, up and kept.

    The term is added between backward and clipping, so it is inside the clipped gradient; what must not be clipped is
    added by ``correct_unclipped``. It acts on parameters only: float buffers are the objective's.
    """

    capturable: ClassVar[bool] = False
    """As of `ClientUpdate`, of ``correct`` and ``correct_unclipped``."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Called after the objective's begin, when the model stands at its starting point."""

    def correct(self, net: BlockModel) -> None:
        """Change ``net.grad`` in place."""

    def correct_unclipped(self, net: BlockModel) -> None:
        """Change ``net.grad`` in place, when it has been clipped and before weight decay is added."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """(further slots up, further slots kept, further numbers); the vectors may be views, as of
        `ClientUpdate.end`."""
        return {}, {}, {}


def first_last(losses: list[Tensor], epoch_steps: int) -> tuple[float, float]:
    """Mean loss of the first and of the last local epoch; of the two halves where there is one epoch or less."""
    values = _floats(losses)
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    span = epoch_steps if len(values) >= 2 * epoch_steps else len(values) // 2
    return float(np.mean(values[:span])), float(np.mean(values[-span:]))


def _floats(losses: list[Tensor]) -> list[float]:
    return [float(v) for v in torch.stack(losses).double().cpu().tolist()] if losses else []


def mean(losses: list[Tensor]) -> float:
    """Mean of the noted losses; 0 for a visit without a step."""
    values = _floats(losses)
    return float(np.mean(values)) if values else 0.0
