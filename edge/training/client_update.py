"""One visit to one client: the client side of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

Subclasses of `ClientUpdate` can customise by overriding

* ``choose_initial``: the initial models, where not any will do;
* ``begin``: the start of training, and state of the visit (a frozen copy, a teacher);
* ``loss``: the local objective on one batch;
* ``correct``: a change of the gradients between backward and clipping, before those of corrections;
* ``train``: only for methods that train in more than one phase, or with more than one backward pass per step;
* ``end``: further uploads beside the model, the client state, the reported numbers;
* ``prepare_score``: a client's model that is evaluated, where models are evaluated client by client;
* ``reference_slots``: which vectors of the download those of the upload are new versions of, if not ``model``;
* ``adapt``: how that model is adapted to the client's examples before it is evaluated;
* ``capturable``: whether its steps may be replayed (conditions in `edge.training.cuda_graphs`).

A `GradientCorrection` joins any objective; it changes gradients or shifts the logits of training losses, and may send
and store vectors in its own slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge.protocol.config import TrainConfig, TrainingPlan
from edge.protocol.logged import NumberLog
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options
from edge.protocol.payload import BUFFERS, MODEL, Payload, Vector
from edge.protocol.rng import keyed_generator
from edge.protocol.variant import PLAIN, Variant
from edge.training.block_model import BlockModel
from edge.training.sgd import Loss

Batch = tuple[Tensor, Tensor]
Batches = Callable[[], Iterator[Batch]]
"""Each call goes over all local epochs, in a new order."""
Clients = Callable[[], Iterator[Batches]]
"""Each call goes over all clients with examples, each with its training examples once, in order."""


class Step(Protocol):
    """One optimiser step, whole or as `backward` and `apply` (`edge.training.sgd.Sgd`)."""

    def __call__(self, loss: Loss, x: Tensor, y: Tensor, only: Sequence[str] | None = None) -> None:
        """Zero gradients, `backward`, `apply`."""
        ...

    def zero(self) -> None:
        """Discard the gradients since the last `apply`."""
        ...

    def backward(self, loss: Loss, x: Tensor, y: Tensor) -> None:
        """Add the gradient of a loss on a batch to those since the last `apply`."""
        ...

    def apply(self, only: Sequence[str | slice] | None = None) -> None:
        """Correct and clip the gradients, and move; ``only``: the blocks, or slices of the flat vectors, that are
        updated (default: all)."""
        ...


class NarrowerPart(NamedTuple):
    """A narrower network within the model of a visit."""

    modules: Sequence[nn.Module]
    """Block by block, in training mode; their parameters, gradients and statistics are views of the model's"""
    flops: NDArray[np.float64]
    """(blocks, 4): FLOPs per example"""


def no_batches() -> Iterator[Batch]:
    """No example."""
    return iter(())


@dataclass(frozen=True)
class VisitContext:
    """The visit, as a client side may know it."""

    client: int
    round: int
    seed: int
    lr: float
    """Step size of this visit, or of the adaptation before an evaluation."""
    step_sum: float
    """`TrainConfig.step_sum` of its steps; for `TrainConfig.has_step_sum`, which a spec asks for by
    ``needs_step_sum``."""
    choice: Choice
    """The server's choices for this visit, under the method's names."""
    plan: TrainingPlan
    up: tuple[str, ...]
    """Keys of the model that are uploaded."""
    keep: tuple[str, ...]
    """Keys of the model that are client state."""
    local: Batches
    """All local training examples once, in order, prepared as test examples."""
    device: torch.device
    pathways: Literal["each", "sweep"] = "each"
    """Form of hybrid pathways (`edge.training.pathways`), for methods with any."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The configuration of local steps."""
    validation: Batches = no_batches
    """All local validation examples once, in order, prepared as test examples; none unless some are held out."""
    class_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(classes,): the client's training examples of each class."""
    phase: Callable[[str, int | None], Batches] = lambda purpose, epochs: no_batches
    """(purpose, epochs) -> batches of a further phase of training, whose orders and augmentation are drawn from random
    streams of this purpose, so that other phases draw as they would without it; epochs None: as in the visit, or in the
    adaptation before an evaluation."""
    variants: Mapping[tuple[float, float], NDArray[np.float64]] = field(default_factory=dict)
    """Variants that the spec declares -> (blocks, 4): FLOPs per example, for `BlockModel.add_flops`."""
    narrower: Callable[[], Mapping[float, NarrowerPart]] = dict
    """() -> rate -> the narrower networks of all rates of the run below the visit's own, the largest first."""
    flexible: bool = True
    """Whether images of other sizes run through the model (`edge.models.registry.ModelRow.flexible`)."""
    unit_flops: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    """(units, 4): FLOPs per example of the bodies of the model's residual units (`ModelProfile.unit_flops`)"""
    variant: Variant = PLAIN
    """The part of the model and the codec of this visit."""

    def rng(self, purpose: str) -> np.random.Generator:
        """The method's private random stream for this visit."""
        return keyed_generator(self.seed, purpose, self.round, self.client)

    def torch_generator(self, purpose: str, device: torch.device | None = None) -> torch.Generator:
        """A generator of torch seeded with the first number of `rng`, by default on the visit's device.

        Generators of different types of devices draw different numbers.
        """
        generator = torch.Generator(self.device if device is None else device)
        return generator.manual_seed(int(self.rng(purpose).integers(2**62)))


class ClientUpdate(NumberLog):
    """The client side of FedAvg, and the base of all others. `log` logs a number of the visit."""

    capturable: ClassVar[bool] = True
    """Not inherited: the steps of a class that does not set it are not captured."""

    options: Options

    def __init__(self, options: Options) -> None:
        self.options = options
        self.losses: list[Tensor] = []

    @property
    def reference_slots(self) -> Mapping[str, str]:
        """Slot of the upload -> slot of the download that it is a new version of, for codecs, after `begin`."""
        return {MODEL: MODEL}

    def choose_initial(self, net: BlockModel, draws: Callable[[int], Payload], clients: Clients) -> Payload:
        """The initial models of the run, one of the independent ``draws``, numbered 0, 1, ..; by default the first.

        Called once, before the first round, and not charged.
        """
        return draws(0)

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the client state, overlaid with the download."""
        self.visit = visit
        stored, received = state.get(MODEL, {}), down.get(MODEL, {})
        missing = [key for key in net.layout.sizes if key not in stored and key not in received]
        if any(not key.endswith(BUFFERS) for key in missing):
            raise ValueError(f"client {visit.client} has never held {', '.join(missing)} and was not sent it")
        if missing:  # running statistics that do not travel: training uses those of each batch
            net.reset_statistics()
        net.load({key: vector for key, vector in stored.items() if key not in received})
        net.load(received)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The local objective on one batch; a scalar."""
        return self.record_loss(net.criterion(net.run(x), y))

    def correct(self, net: BlockModel) -> None:
        """Change ``net.grad`` in place, between backward and clipping, before the corrections of the method."""

    def record_loss(self, loss: Tensor) -> Tensor:
        """Record the main path's loss of this step, for the report; returns it unchanged."""
        self.losses.append(loss.detach())
        return loss

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Train for all local epochs."""
        for x, y in batches():
            step(self.loss, x, y)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """(upload, client state, numbers), vectors by slot.

        The vectors may be views of the model or of its scratch, valid until the next task begins.
        """
        numbers = net.views(dict.fromkeys(visit.up + visit.keep))
        up = {key: numbers[key] for key in visit.up}
        state = {key: numbers[key] for key in visit.keep}
        return {MODEL: up}, {MODEL: state} if state else {}, {"loss": mean(self.losses)}

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load the model to be evaluated: by default, the start of a visit."""
        self.begin(net, down, state, visit)

    def adapt(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Adapt the model of `prepare_score` to the client's training examples before it is evaluated.

        By default local training on ``train.loss`` alone. ``batches``: all epochs of the adaptation; ``step``: at
        its step size, without corrections. Nothing of it is kept.
        """
        for x, y in batches():
            step(plain_loss, x, y)


def plain_loss(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    """``train.loss`` on one batch; a scalar."""
    return net.criterion(net.run(x), y)


def mean_loss(net: BlockModel, batches: Batches) -> float:
    """Mean loss of the model, in evaluation mode, over these examples, or their tokens; 0 without any.

    Training mode after.
    """
    total, count = 0.0, 0
    net.train_mode(False)
    with torch.no_grad():
        for x, y in batches():
            total += float(net.criterion.total(net.run(x), y))
            count += net.criterion.count(y)
    net.train_mode(True)
    return total / max(count, 1)


class GradientCorrection(NumberLog):
    """A term on the gradients of any objective, with its own slots for download, upload and client state.

    The term is added between backward and clipping, so it is clipped too; ``correct_unclipped`` adds after clipping. It
    acts on parameters only, not on float buffers.
    """

    capturable: ClassVar[bool] = False
    """As of `ClientUpdate`, for ``correct`` and ``correct_unclipped``."""

    logit_shift: Tensor | None = None
    """Set by ``begin``: a vector (classes,) that is added to the logits of every path in training losses, and of no
    evaluation. For a ``capturable`` correction, its address must be fixed (`BlockModel.logit_scratch`)."""

    optimizer_steps: list[int] | None = None
    """Set by ``begin`` where it has loaded the optimizer's vectors (`edge.training.sgd.optimizer_scratch`): the steps
    that each block's have behind them, which the visit counts on in place. None: the optimizer begins anew."""

    options: Options

    def __init__(self, options: Options) -> None:
        self.options = options

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Called after the objective's begin, when the model is at its starting point."""

    def correct(self, net: BlockModel) -> None:
        """Change ``net.grad`` in place."""

    def correct_unclipped(self, net: BlockModel) -> None:
        """Change ``net.grad`` in place, after clipping and before weight decay."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """(further uploads, further client state, further numbers), as of `ClientUpdate.end`."""
        return {}, {}, {}

    def encoded(self, net: BlockModel, visit: VisitContext, decoded: Payload) -> Payload:
        """Client state in place of that of `end`, once codecs have encoded the update.

        ``decoded``: the vectors of it that a codec has changed, as the server has them; but not those of slots other
        than ``model`` whose errors are fed back, since the server has the rest later.
        """
        return {}


@dataclass(frozen=True)
class BegunVisit:
    """A visit whose client sides have begun on a net."""

    visit: VisitContext
    objective: ClientUpdate
    corrections: Sequence[GradientCorrection]
    step: Step


def added_by_codec(net: BlockModel, vector: Tensor, decoded: Mapping[str, Vector]) -> Tensor:
    """(numbers,) the difference of these ``decoded`` vectors from ``vector``, one like the net's; 0 elsewhere.

    Scratch of the net, until the next call.
    """
    added = net.scratch("added by a codec").copy_(vector)
    net.load(decoded, into=added)
    return added.sub_(vector)


def first_last(losses: list[Tensor], epoch_steps: int) -> tuple[float, float]:
    """Mean losses of the first and of the last local epoch, or of the first and second part of one epoch or less."""
    values = _floats(losses)
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    span = epoch_steps if len(values) >= 2 * epoch_steps else len(values) // 2
    return float(np.mean(values[:span])), float(np.mean(values[-span:]))


def _floats(losses: list[Tensor]) -> list[float]:
    if losses and losses[0].device.type != "cpu":
        losses = list(torch.stack(losses).cpu())  # one copy instead of many
    return [float(loss.item()) for loss in losses]


def mean(losses: list[Tensor]) -> float:
    """Mean of the recorded losses; 0 for a visit without a step."""
    values = _floats(losses)
    return float(np.add.reduce(values)) / len(values) if values else 0.0
