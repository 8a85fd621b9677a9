"""The server side of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

A subclass of `ServerStrategy` need not override anything; what it must not is ``final``. It can customise

its models
* ``models``, set after ``super().__init__``: the models by name, from the initial ones of the run's workers;
* ``start_model`` and ``targets``: the models that a visit of a client starts from, and the one that each slot of an
  update is a new version of; so norm checks, no-op updates and asynchronous policies know what has changed;

what goes down
* ``choose`` and ``payload``: the numbers chosen for a visit, and the vectors that such a choice downloads, in as many
  slots as the method needs; or ``download``, if the two cannot be separated, or if vectors take arithmetic;
* ``download_shapes``: the shapes of that payload, wherever building it takes arithmetic, and so that prices of many
  candidates are cheap; ``possible_choices``: the values that ``choose`` may return, if they differ between visits;
* ``decides_without_updates``: whether finished runs of the method can be replayed on another fleet;
* ``download_only_clients``: clients that only download in a round;

what comes up
* ``up_shapes`` and ``store_shapes``: the vectors of an upload, and those that the server stores per client, with
  ``store.put`` and ``store.get``;
* ``weight``: the aggregation weight of an update, which may differ per model, block and layer;
* ``accumulate`` and ``step``: how updates, one after another, become the next models. ``accumulate`` changes nothing
  that ``download`` reads, since other visits of the round may not have been sent yet. The spec of a subclass that
  overrides ``accumulate``, ``observe``, ``weight`` or ``targets`` sets `individual_updates`;

what is learned of visits
* ``started``, ``received`` and ``feedback``: bookkeeping when visits begin, when they count, and when their times and
  losses are known; ``observe``: statistics of an update's vectors that ``feedback`` needs;
* ``replay_feedback`` and ``restore_in_flight``: the same bookkeeping in a resumed run;

what is evaluated, and what a checkpoint has
* ``global_evaluation_model`` or ``evaluation_model``: the model that is evaluated; ``evaluation_shapes``, if building
  the latter takes arithmetic;
* ``state`` and ``restore``: state beside the models.

`ServerStrategy.log` logs a number of the round, in any of these calls but those on another thread (`Download.build`).
The server side of a correction is a `ServerExtension`: it adds slots to downloads and learns from updates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.records.client_vectors import ClientVectors
from edge.protocol.config import TrainConfig
from edge.protocol.fixed_point import sum_vector
from edge.protocol.logged import NumberLog, joined
from edge.protocol.messages import Choice, Totals, Update
from edge.protocol.options.base import Options
from edge.protocol.payload import (
    BUFFERS,
    MODEL,
    Floats,
    Layout,
    Payload,
    Shapes,
    Vector,
    initial_slot,
    sha256,
    shapes,
)

State = dict[str, NDArray[np.generic]]
Model = dict[str, Vector]
"""key -> vector"""
Models = dict[str, Model]
"""name -> model. A model is replaced, never changed in place."""
GLOBAL = "global"
"""The name of the only model of most methods."""


@dataclass(frozen=True)
class ServerContext:
    """The facts of a run that a server side is made from."""

    layout: Layout
    initial: Payload
    """The initial models, each in the slot `initial_slot` of its number"""
    options: Options
    """Those of the method and of its corrections, in one object"""
    weights: str
    """``size``, ``trained`` or ``uniform``"""
    down: tuple[str, ...]
    """Keys of the model that are downloaded, unless the method chooses per visit"""
    up: tuple[str, ...]
    """Keys of the model that are uploaded"""
    seed: int
    samples: NDArray[np.int64]
    """(clients,) training examples"""
    histogram: NDArray[np.int64]
    """(clients, classes) training examples"""
    optimiser: ServerOptimizer = field(default_factory=ServerOptimizer)
    asynchronous: bool = False
    """Whether visits begin and end one by one; a visit's round is then the number of server steps before it."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """Updates are summed by the server in client order, or by workers in fixed point (`edge.protocol.fixed_point`)"""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Local training, for server sides that depend on the number of local steps"""

    store: ClientVectors = field(default_factory=ClientVectors)
    """Vectors that the server stores per client"""

    @property
    def initial_models(self) -> list[Model]:
        """The initial models: one, or as many independent ones as the method's spec says."""
        return [dict(self.initial[initial_slot(index)]) for index in range(len(self.initial))]

    @property
    def numbering(self) -> str:
        """The unit that numbers training messages: rounds, or visits one by one."""
        return "visit" if self.asynchronous else "round"

    def visit_name(self, client: int, number: int) -> str:
        """A training visit in words, for errors: rounds count from 1, visits as in the ledger."""
        return f"client {client}, visit {number}" if self.asynchronous else f"client {client}, round {number + 1}"


@dataclass(frozen=True)
class Download:
    """The server side's decision for one visit."""

    client: int
    payload: Payload
    """Empty if it is built later"""
    choice: Choice = field(default_factory=dict)
    """Small numbers that are downloaded with the vectors: integers or finite floats, of Python or numpy, 8 bytes each;
    a method uses the same names in every visit"""
    build: Callable[[], Payload] | None = None
    """Builds the payload, if that takes arithmetic: called on another thread when the task is sent. It depends on
    nothing but what `ServerStrategy.download` captured, since the server side may have made a step since"""

    def __post_init__(self) -> None:
        """ValueError for a choice that is no number."""
        if self.choice:
            object.__setattr__(self, "choice", {name: _number(name, value) for name, value in self.choice.items()})

    def built(self) -> Payload:
        """The payload."""
        return self.payload if self.build is None else self.build()


def _number(name: str, value: object) -> int | float:
    """A number of a choice as Python has it."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, int) and -(2**63) <= number < 2**63:
        return int(number)  # of a flag, too
    if isinstance(number, float) and math.isfinite(number):
        return number
    raise ValueError(f"choice: {name} = {value!r}: must be an integer of 64 bits, or a finite float")


@dataclass(frozen=True)
class VisitFeedback:
    """The facts of one visit that counted. Seconds are virtual."""

    dispatch: Download
    reply: Update
    """Possibly without its vectors, which `ServerStrategy.observe` got"""
    compute_seconds: float
    communication_seconds: float


class ServerExtension(NumberLog):
    """The server side of a correction: further slots beside the method's own."""

    options: Options

    def __init__(self, setup: ServerContext) -> None:
        self.setup, self.options = setup, setup.options

    def down(self, client: int) -> Payload:
        """Further slots that this client downloads."""
        return {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of further slots that a client uploads."""
        return {}

    def accumulate(self, reply: Update) -> None:
        """Learn from one update, in client order, without storing it. Only `step` may change downloads."""

    def step(self, before: Model, after: Model) -> Model:
        """The next global model once all updates of a step are accumulated; by default the method's ``after``."""
        return after

    def state(self) -> State:
        """State between rounds, by name."""
        return {}

    def restore(self, state: State) -> None:
        """Inverse of `state`."""


class ServerStrategy(NumberLog):
    """The server side of FedAvg, and the base of all others."""

    options: Options

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        self.setup, self.options = setup, setup.options
        self.extensions = extensions
        self.optimiser = setup.optimiser
        self.store = setup.store
        self.models: Models = {GLOBAL: setup.initial_models[0]}
        """Hashed into the chain, checkpointed, optimised and resumed by name"""
        self.sums: defaultdict[tuple[str, str], WeightedSum] = defaultdict(WeightedSum)
        """(model, key) -> sum of the updates since the last step"""

    # --- models -------------------------------------------------------------------------------------------------------

    @property
    @final
    def model(self) -> Model:
        """The global model, of methods that have one."""
        return self.models[GLOBAL]

    def start_model(self, client: int) -> Models:
        """The models that a visit of ``client`` starts from, if it begins now."""
        return dict(self.models)

    def targets(self, update: Update) -> Mapping[str, str]:
        """Slot of an update -> name of the model in `start_model` that it is a new version of.

        Other slots hold changes or gradients: an update that changes nothing has zeros there, and none is rebased.
        ValueError if the update names no model of its visit.
        """
        return {MODEL: GLOBAL}

    # --- what goes down -----------------------------------------------------------------------------------------------

    def download(self, client: int, round: int) -> Download:
        """The download of a visit of ``client`` that begins now; changes nothing.

        It collects vectors that exist; those that take arithmetic are built by `Download.build`.
        """
        choice = self.choose(client, round)
        return Download(client, self.payload(client, choice), choice)

    def choose(self, client: int, round: int) -> Choice:
        """The small numbers that a visit downloads; changes nothing."""
        return {}

    def payload(self, client: int, choice: Choice) -> Payload:
        """The vectors that a choice downloads."""
        return self.with_extensions(client, self.select(self.setup.down))

    def download_shapes(self, client: int, round: int, choice: Choice) -> Shapes:
        """Shapes of the payload that ``client`` downloads with this choice, for prices.

        Without a download that is built later, they are those of vectors that exist.
        """
        own = type(self).download is not ServerStrategy.download
        return shapes(self.download(client, round).built() if own else self.payload(client, choice))

    def possible_choices(self) -> Sequence[Choice]:
        """All values that `choose` may return, for ``check``; empty if visits of one round are alike."""
        return ()

    @property
    def decides_without_updates(self) -> bool:
        """Whether downloads follow from rounds, times and reported numbers, which a ledger has.

        Only such runs can be replayed without training. False for subclasses that override a decision, unless they
        override this too.
        """
        decisions = ("download", "download_shapes", "choose", "payload", "download_only_clients")
        return all(getattr(type(self), name) is getattr(ServerStrategy, name) for name in decisions)

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Clients outside the cohort that download and keep the whole model in this round."""
        return ()

    def select(self, keys: Sequence[str]) -> Payload:
        """The global model's vectors of these keys."""
        return {MODEL: {key: self.model[key] for key in keys}}

    @final
    def with_extensions(self, client: int, payload: Payload) -> Payload:
        """The payload with the corrections' slots."""
        for extension in self.extensions:
            payload = payload | extension.down(client)
        return payload

    # --- what comes up ------------------------------------------------------------------------------------------------

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of one client's upload: slot -> key -> numbers."""
        up: dict[str, dict[str, int]] = {MODEL: self.setup.layout.shapes(self.setup.up)}
        for extension in self.extensions:
            up |= extension.up_shapes()
        return {slot: named for slot, named in up.items() if named}  # a slot without vectors is not sent

    def store_shapes(self) -> Shapes:
        """Shapes of what the server stores per client: slot -> key -> numbers."""
        return {}

    def weight(self, reply: Update, model: str, key: str) -> float:
        """The aggregation weight of an update in the mean of one block of one model."""
        return self._weight(reply.client)

    def _weight(self, client: int) -> float:
        samples = int(self.setup.samples[client])
        if self.setup.weights == "trained":
            return float(self.setup.train.usable(samples))
        return float(samples) if self.setup.weights == "size" else 1.0

    @final
    def aggregation_weights(self, clients: Sequence[int]) -> dict[int, float]:
        """client -> aggregation weight in the mean of these clients; the weights add up to 1."""
        weights = {client: self._weight(client) for client in clients}
        total = sum(weights.values()) or 1.0  # where all weights are 0
        return {client: weight / total for client, weight in weights.items()}

    def accumulate(self, reply: Update) -> None:
        """Add an update to the sums of this step, without storing it.

        Updates come in client order; in asynchronous policies in order of arrival, perhaps several of one client.
        """
        for slot, name in self.targets(reply).items():
            for key, vector in reply.payload.get(slot, {}).items():
                self.sums[name, key].add(vector.data, self.weight(reply, name, key))
        for extension in self.extensions:
            extension.accumulate(reply)

    @final
    def accumulate_partial(self, totals: Totals) -> None:
        """Add the partial sums of a step in place of its updates; they include the aggregation weights."""
        for key, total in totals.get(MODEL, {}).items():
            self.sums[GLOBAL, key].add(sum_vector(total), 1.0)

    def step(self) -> None:
        """Make the next models from the sums; a block without any weight stays as it is."""
        before, after = self.models, {name: dict(model) for name, model in self.models.items()}
        for (name, key), total in self.sums.items():
            average = total.mean()
            if average is not None:
                is_buffer, current = key.endswith(BUFFERS), before[name][key].data
                after[name][key] = Vector(average if is_buffer else self._optimised(name, key, current, average))
        self.sums.clear()
        for extension in self.extensions:
            after[GLOBAL] = extension.step(before[GLOBAL], after[GLOBAL])
        self.models = after

    def _optimised(self, name: str, key: str, current: Floats, average: Floats) -> Floats:
        """The server optimizer's step. ValueError if it gives no vector of this block, or changes the current one."""
        current = current.view()
        current.flags.writeable = False  # visits and evaluations under way still read it
        moved = self.optimiser.step(optimised_key(name, key), current, average)
        if not isinstance(moved, np.ndarray) or (moved.shape, moved.dtype) != (current.shape, current.dtype):
            got = f"{moved.dtype} {moved.shape}" if isinstance(moved, np.ndarray) else type(moved).__name__
            raise ValueError(f"the server optimizer's step gives {got} for {key}, not float32 {current.shape}")
        return moved

    # --- what is learned of visits ------------------------------------------------------------------------------------

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits have begun; not all of them need count."""

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits, begun in ``round``, counted: their clients have their downloads."""

    def observe(self, reply: Update) -> None:
        """Remember what `feedback` needs of the vectors of an update that counts, before any rebasing."""

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        """Learn from times and losses of visits, in client order; returns rows of the method's own table, if any."""
        return ()

    def replay_feedback(self, outcome: VisitFeedback, learned: Any) -> None:
        """Learn from a row of the method's own table what `feedback` learned from the visit before."""

    def restore_in_flight(self, client: int, start: Models) -> None:
        """A visit is in flight that began, before the run was interrupted, from these models (`start_model`)."""

    @final
    def take_logged(self) -> dict[str, float]:
        """With those of the extensions."""
        return joined([super().take_logged(), *(extension.take_logged() for extension in self.extensions)])

    # --- what is evaluated --------------------------------------------------------------------------------------------

    def global_evaluation_model(self) -> Payload:
        """The model that is evaluated on the global test set."""
        return {MODEL: dict(self.model)}

    def evaluation_model(self, client: int) -> Payload:
        """The server's blocks of a client's model, if models are evaluated per client; changes nothing.

        Called when the evaluation begins. For a method whose downloads are built later (`Download.build`), called on
        another thread when the task is sent: no `step` lies in between, but visits may have begun and updates may have
        been accumulated, so it reads only what `step` changes, as downloads do.
        """
        return self.select(self.setup.down)

    def evaluation_shapes(self, client: int) -> Shapes:
        """Shapes of `evaluation_model`, for the price of an evaluation."""
        return shapes(self.evaluation_model(client))

    # --- what a checkpoint has beside the models ----------------------------------------------------------------------

    def state(self) -> State:
        """Everything that later rounds depend on, except the models and the store, by name."""
        state = {f"optimiser/{name}": array for name, array in self.optimiser.state().items()}
        for index, extension in enumerate(self.extensions):
            state |= {f"part{index}/{name}": array for name, array in extension.state().items()}
        return state

    def restore(self, models: Models, state: State) -> None:
        """Set the models and the `state`."""
        self.models = dict(models)
        self.optimiser.restore(_under("optimiser/", state))
        for index, extension in enumerate(self.extensions):
            extension.restore(_under(f"part{index}/", state))


def optimised_key(name: str, key: str) -> str:
    """The name of one block of one model in the state of a server optimizer."""
    return key if name == GLOBAL else f"{name}/{key}"


def models_sha256(models: Models) -> str:
    """One hash over the names and numbers of all models."""
    return sha256({MODEL if name == GLOBAL else name: model for name, model in models.items()})


def _under(prefix: str, state: State) -> State:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
