"""The server side of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

A subclass of `ServerStrategy` must override nothing, and may override, group by group

its models
* ``models``, set after ``super().__init__``: the models by name, from the initial ones of the run's workers;
* ``start_model`` and ``targets``: the models that a visit of a client starts from, and the one that each slot of an
  update is a new version of; so norm checks, no-op updates and asynchronous policies know what has changed;

what goes down
* ``choose`` and ``payload``: the numbers chosen for a visit, and the vectors that such a choice downloads, in as many
  slots as the method needs; a `LaterPayload` where they take arithmetic. Where visits have parts of the model, those of
  slot ``model`` are whole here, and `download_of` takes the visit's part of them;
* ``download_only_clients``: clients that only download in a round;

what comes up
* ``up_shapes`` and ``store_shapes``: the vectors of an upload, and those that the server stores per client, with
  ``store.put`` and ``store.get``;
* ``weight``: the aggregation weight of an update, which may differ per model, block and layer;
* ``accumulate`` and ``step``: how updates, one after another, become the next models; ``step_scale``: a factor on the
  way to the mean. ``accumulate`` changes nothing that ``payload`` reads, since other visits of the round may not have
  been sent yet. The spec of a subclass that overrides ``accumulate``, ``observe``, ``weight`` or ``targets`` sets
  `individual_updates`;

what is learned of visits
* ``started``, ``received`` and ``feedback``: bookkeeping when visits begin, when they count, and when their times and
  losses are known; ``observe``: statistics of an update's vectors that ``feedback`` needs; ``replay_feedback``: the
  same in a resumed run, which has rows and no vectors;

what is evaluated, and what a checkpoint has
* ``global_evaluation_model`` or ``evaluation_model``: the model that is evaluated;
* ``state`` and ``restore``: state beside the models.

All else is ``final``. What follows from the options alone is said by the spec (`coordinator.methods.spec`).

`ServerStrategy.log` logs a number of the round, in any of these calls but those on another thread
(`LaterPayload.build`). The server side of a correction is a `ServerExtension`: it adds slots to downloads and learns
from updates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.submodels import Submodels
from coordinator.aggregation.weighted_sum import WeightedSum
from coordinator.privacy.central_noise import CentralNoise
from coordinator.records.client_vectors import ClientVectors
from edge.protocol.codecs.update_codec import DownloadFrame
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
from edge.protocol.secure_sum import SecureSum
from edge.protocol.submodels import SliceMap
from edge.protocol.variant import PLAIN, Variant, expect_other_names

State = dict[str, NDArray[np.generic]]
Model = dict[str, Vector]
"""key -> vector"""
Models = dict[str, Model]
"""name -> model. A model is replaced, never changed in place."""
GLOBAL = "global"
"""The name of the only model of most methods."""
NEVER = -1
"""The server steps before the last download of a client that has had none"""
MOST_PARTS = 4096
"""Vectors of parts that are kept for visits with the same part"""


@dataclass(frozen=True)
class ServerContext:
    """The facts of a run that a server side is made from."""

    layout: Layout
    initial: Payload
    """The initial models, each in the slot `initial_slot` of its number"""
    options: Options
    """Options of the method and of its corrections, in one object"""
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
    submodels: Submodels | None = None
    """The parts of the model that clients hold; None: all hold the whole model"""
    adapters: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Key of each vector of adapters -> shapes of its tensors (`coordinator.aggregation.adapters`)"""
    privacy: CentralNoise | None = None
    """The noise on sums of clipped updates, where clients have central differential privacy"""
    weight_cap: int | None = None
    """``privacy.weight_cap``"""
    secure: SecureSum | None = None
    """The integers that updates are added up as, where the server sees their sums alone"""
    members: int | None = None
    """Clients that belong to the aggregator which the server side is for; None: it is for all clients"""

    @property
    def client_count(self) -> int:
        """Clients of this server side."""
        return len(self.samples) if self.members is None else self.members

    @property
    def initial_models(self) -> list[Model]:
        """The initial models: one, or as many independent ones as the method's spec says."""
        return [dict(self.initial[initial_slot(index)]) for index in range(len(self.initial))]

    def weight_of(self, client: int) -> float:
        """The aggregation weight of a client's updates, as ``aggregate.weights`` says."""
        samples = int(self.samples[client])
        if self.weight_cap is not None:
            return min(samples / self.weight_cap, 1.0)
        if self.weights == "trained":
            return float(self.train.usable(samples))
        return float(samples) if self.weights == "size" else 1.0

    def visit_name(self, client: int, number: int) -> str:
        """A training visit in words, for errors: rounds count from 1, visits as in the ledger."""
        return f"client {client}, visit {number}" if self.asynchronous else f"client {client}, round {number + 1}"


@dataclass(frozen=True)
class LaterPayload:
    """A payload that takes arithmetic, so that it is built on another thread when it is sent."""

    shapes: Shapes
    """For prices; the built payload must have these"""
    build: Callable[[], Payload]
    """Depends on nothing but what it has captured, since the server side may have made a step since: on views of the
    store, and on models, which are never changed in place"""
    frames: Callable[[], Mapping[tuple[str, str], DownloadFrame]] = dict
    """(slot, key) -> the frame that a real device decodes this vector from; the others travel as they are"""


def payload_shapes(payload: Payload | LaterPayload) -> Shapes:
    """Shapes of a payload, whether it is built yet or not."""
    return payload.shapes if isinstance(payload, LaterPayload) else shapes(payload)


@dataclass(frozen=True)
class Download:
    """The server side's decision for one visit."""

    client: int
    payload: Payload
    """Empty if it is built later"""
    choice: Choice = field(default_factory=dict)
    """Small numbers that are downloaded with the vectors: integers or finite floats, of Python or numpy, 8 bytes each;
    a method uses the same names in every visit"""
    later: LaterPayload | None = None
    variant: Variant = PLAIN
    """How the visit differs from others beside the method's choices; its numbers are downloaded with these"""

    def __post_init__(self) -> None:
        """ValueError for a choice that is no number, or has the name of a number of the variant."""
        if self.choice:
            expect_other_names(self.choice)
        choice: dict[str, int | float] = {}
        for name, value in self.choice.items():
            number = value.item() if isinstance(value, np.generic) else value
            if isinstance(number, int) and -(2**63) <= number < 2**63:
                choice[name] = int(number)  # of a flag, too
            elif isinstance(number, float) and math.isfinite(number):
                choice[name] = number
            else:
                raise ValueError(f"choice: {name} = {value!r}: must be an integer of 64 bits, or a finite float")
        object.__setattr__(self, "choice", choice)

    @property
    def shapes(self) -> Shapes:
        """Shapes of the payload, built or not."""
        return payload_shapes(self.payload if self.later is None else self.later)

    def built(self) -> Payload:
        """The payload."""
        return self.payload if self.later is None else self.later.build()


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

    def carried(self) -> Payload:
        """Vectors that travel with the model between aggregators and what is above them (``fleet.tiers``), by slot.

        Of each, a meeting takes the mean over clients (`coordinator.aggregation.tiers`). A correction without any has
        no aggregators, since its server side would learn of some clients alone.
        """
        return {}

    def carry(self, vectors: Payload) -> None:
        """Go on with these in place of what is `carried`."""

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
        self.step_scale = 1.0
        """Factor on the way from a block to the clients' mean, before the server optimizer gets that"""
        self.store = setup.store
        self.models: Models = {GLOBAL: setup.initial_models[0]}
        """Hashed into the chain, checkpointed, optimised and resumed by name"""
        self.sums: defaultdict[tuple[str, str], WeightedSum] = defaultdict(WeightedSum)
        """(model, key) -> sum of the updates since the last step"""
        self._parts_of: Models = {}
        self._parts: dict[tuple[SliceMap, str, int], tuple[Vector, Model]] = {}
        """(part, key, id of a vector) -> the vector, and its numbers that all visits with the part share"""

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

    @final
    def part_of(self, model: Model, variant: Variant) -> Model:
        """The vectors of a model that a visit of this variant has: all, or its part of each."""
        submodels = self.setup.submodels
        if submodels is None:
            return model
        slices, part = submodels.slices(variant), Model()
        if self._parts_of is not self.models or len(self._parts) >= MOST_PARTS:
            self._parts_of, self._parts = self.models, {}
        for key, vector in model.items():
            place = slices, key, id(vector)
            if place not in self._parts:
                self._parts[place] = vector, slices.taken({key: vector})
            part |= self._parts[place][1]
        return part

    @final
    def parts_of(self, models: Models, variant: Variant) -> Models:
        """`part_of` each of these models."""
        if self.setup.submodels is None:
            return models
        return {name: self.part_of(model, variant) for name, model in models.items()}

    @final
    def reference_slots(self, update: Update) -> Mapping[str, str]:
        """Slot of an update -> slot of its visit's download that it is a new version of; others hold changes."""
        return {slot: MODEL if name == GLOBAL else name for slot, name in self.targets(update).items()}

    # --- what goes down -----------------------------------------------------------------------------------------------

    @final
    def download(self, client: int, round: int) -> Download:
        """The download of a visit of ``client`` that begins now; changes nothing."""
        submodels = self.setup.submodels
        variant = PLAIN if submodels is None else submodels.variant(client, round)
        return self.download_of(client, round, self.choose(client, round), variant)

    @final
    def download_of(self, client: int, round: int, choice: Choice, variant: Variant) -> Download:
        """The download of a visit with this choice and variant, which has its part of the global model."""
        payload = self.payload(client, round, choice)
        if isinstance(payload, LaterPayload):
            return Download(client, {}, choice, self._part_later(payload, variant), variant)
        return Download(client, self._part(payload, variant), choice, variant=variant)

    def _part(self, payload: Payload, variant: Variant) -> Payload:
        if self.setup.submodels is None:
            return payload
        return {slot: self.part_of(vectors, variant) if slot == MODEL else vectors for slot, vectors in payload.items()}

    def _part_later(self, later: LaterPayload, variant: Variant) -> LaterPayload:
        submodels = self.setup.submodels
        if submodels is None:
            return later
        slices = submodels.slices(variant)
        part = {slot: slices.of(sizes) if slot == MODEL else sizes for slot, sizes in later.shapes.items()}

        def build() -> Payload:
            return {slot: slices.taken(whole) if slot == MODEL else whole for slot, whole in later.build().items()}

        return replace(later, shapes=part, build=build)

    def choose(self, client: int, round: int) -> Choice:
        """The small numbers that a visit downloads; changes nothing."""
        return {}

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        """The vectors that a visit with this choice downloads, each model whole; changes nothing."""
        return self.with_extensions(client, self.select(self.setup.down))

    def charged(self, down: Shapes, since: int) -> Shapes:
        """The shapes that a download of shapes ``down`` is charged for; others where a client makes a part of it from
        what it has. ``since``: server steps before the client's last whole download, or `NEVER`."""
        return down

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Clients outside the cohort that download and keep the whole model in this round."""
        return ()

    def select(self, keys: Sequence[str]) -> Payload:
        """The global model's vectors of these keys."""
        model = self.model
        return {MODEL: {key: model[key] for key in keys if key in model}}

    @final
    def with_extensions(self, client: int, payload: Payload) -> Payload:
        """The payload with the corrections' slots."""
        for extension in self.extensions:
            payload = payload | extension.down(client)
        return payload

    @final
    def carried(self) -> Payload:
        """The vectors that the corrections carry between aggregators and what is above them."""
        return {slot: vectors for extension in self.extensions for slot, vectors in extension.carried().items()}

    @final
    def carry(self, vectors: Payload) -> None:
        """Go on with these in place of what is `carried`."""
        for extension in self.extensions:
            extension.carry({slot: vectors[slot] for slot in extension.carried()})

    # --- what comes up ------------------------------------------------------------------------------------------------

    def place(self, aggregator_of: NDArray[np.intp]) -> None:
        """(clients,) The aggregator with which each client trains from now on; for server sides that have any."""

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of one client's upload: slot -> key -> numbers."""
        up: dict[str, dict[str, int]] = {MODEL: self.setup.layout.shapes(self.setup.up)}
        for extension in self.extensions:
            up |= extension.up_shapes()
        return {slot: sizes for slot, sizes in up.items() if sizes}  # a slot without vectors is not sent

    @final
    def part_up_shapes(self, variant: Variant) -> Shapes:
        """Shapes of the upload of a visit of this variant."""
        up, submodels = self.up_shapes(), self.setup.submodels
        if submodels is None:
            return up
        return {slot: submodels.slices(variant).of(sizes) for slot, sizes in up.items()}

    def store_shapes(self) -> Shapes:
        """Shapes of what the server stores per client: slot -> key -> numbers."""
        return {}

    def weight(self, reply: Update, model: str, key: str) -> float:
        """The aggregation weight of an update in the mean of one block of one model: finite, and at least 0."""
        return self.setup.weight_of(reply.client)

    def clipped(self, update: Update, start: Models) -> Update:
        """An update that counts, as it is summed: clipped where clients have central differential privacy.

        ``start``: the models that its visit started from.
        """
        privacy = self.setup.privacy
        if privacy is None or not update.payload:
            return update
        return privacy.clipped(update, self.part_of(start[GLOBAL], update.variant))

    @final
    def aggregation_weights(self, clients: Sequence[int]) -> dict[int, float]:
        """client -> aggregation weight in the mean of these clients; the weights add up to 1."""
        weights = {client: self.setup.weight_of(client) for client in clients}
        total = sum(weights.values()) or 1.0  # where all weights are 0
        return {client: weight / total for client, weight in weights.items()}

    @final
    def partial_weights(self, clients: Sequence[int]) -> dict[int, float]:
        """client -> the weight with which a worker adds its update up: `aggregation_weights`, or ratios of secure
        aggregation."""
        secure = self.setup.secure
        if secure is None:
            return self.aggregation_weights(clients)
        return {client: secure.ratio(self.setup.weight_of(client)) for client in clients}

    def accumulate(self, reply: Update) -> None:
        """Add an update to the sums of this step, without storing it.

        Updates come in client order; in asynchronous policies in order of arrival, perhaps several of one client.
        """
        submodels, privacy = self.setup.submodels, self.setup.privacy
        if privacy is not None:
            privacy.receive(self.setup.weight_of(reply.client))
        for slot, name in self.targets(reply).items():
            for key, vector in reply.payload.get(slot, {}).items():
                weight = self.weight(reply, name, key)
                if submodels is None:
                    self.sums[name, key].add(vector.data, weight)
                    continue
                slices = submodels.slices(reply.variant)
                counted = submodels.counted(slices, reply.client, key)
                size = self.models[name][key].data.size
                if counted is None and slices.is_whole(key, size):
                    self.sums[name, key].add(vector.data, weight)
                    continue
                self.sums[name, key].add_at(size, slices.places(key), vector.data, weight, counted)
        for extension in self.extensions:
            extension.accumulate(reply)

    def accumulate_sums(self, totals: Totals, clients: Sequence[int]) -> None:
        """Add the partial sums of these clients' updates in place of these; they include the aggregation weights."""
        if self.setup.privacy is not None:
            self.setup.privacy.receive(sum(map(self.setup.weight_of, clients)))
        for key, total in totals.get(MODEL, {}).items():
            self.sums[GLOBAL, key].add(sum_vector(total), 1.0)

    def step(self) -> None:
        """Make the next models from the sums; a block without any weight stays as it is."""
        before, after = self.models, {name: dict(model) for name, model in self.models.items()}
        privacy = self.setup.privacy
        if privacy is not None:  # blocks get noise whether updates have arrived or not
            for key in self.setup.up:
                self.sums.setdefault((GLOBAL, key), WeightedSum())
        for (name, key), total in self.sums.items():
            current = before[name][key].data
            average = total.mean(current)
            if privacy is not None:
                average = privacy.mean(key, current, average)
            if average is not None:
                if not key.endswith(BUFFERS):
                    average = self._optimised(key if name == GLOBAL else f"{name}/{key}", current, average)
                    if total.missing is not None:  # a step along no change may move, too
                        average[total.missing] = current[total.missing]
                after[name][key] = Vector(average)
        self.sums.clear()
        for extension in self.extensions:
            after[GLOBAL] = extension.step(before[GLOBAL], after[GLOBAL])
        if privacy is not None:
            privacy.end_step()
        self.models = after

    def _optimised(self, key: str, current: Floats, average: Floats) -> Floats:
        """The server optimizer's step. ValueError if it gives no vector of this block, or changes the current one."""
        current = current.view()
        current.flags.writeable = False  # visits and evaluations under way still read it
        if self.step_scale != 1.0:
            way = average.astype(np.float64) - current
            average = (current + self.step_scale * way).astype(np.float32)
        moved = self.optimiser.step(key, current, average)
        if not isinstance(moved, np.ndarray) or (moved.shape, moved.dtype) != (current.shape, current.dtype):
            got = f"{moved.dtype} {moved.shape}" if isinstance(moved, np.ndarray) else type(moved).__name__
            raise ValueError(f"the server optimizer's step gives {got} for {key}, not float32 {current.shape}")
        return moved

    # --- what is learned of visits ------------------------------------------------------------------------------------

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits have begun; not all of them need count."""

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits, begun in ``round``, counted: their clients have their downloads."""

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        """Remember what `feedback` needs of the vectors of an update that counts, before any rebasing.

        ``start()`` gives the models that its visit started from (`start_model`).
        """

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        """Learn from times and losses of visits, in client order; returns rows of the method's own table, if any."""
        return ()

    def replay_feedback(self, outcome: VisitFeedback, learned: Any) -> None:
        """Learn from a row of the method's own table what `feedback` learned from the visit before."""

    def take_logged(self) -> dict[str, float]:
        """With those of the extensions."""
        return joined([super().take_logged(), *(extension.take_logged() for extension in self.extensions)])

    # --- what is evaluated --------------------------------------------------------------------------------------------

    def global_evaluation_model(self) -> Payload:
        """The model that is evaluated on the global test set."""
        return {MODEL: dict(self.model)}

    def evaluation_model(self, client: int) -> Payload | LaterPayload:
        """The server's blocks of a client's model, if models are evaluated per client; changes nothing.

        Called when the evaluation begins.
        """
        return self._part(self.select(self.setup.down), self.evaluation_variant(client))

    @final
    def evaluation_choice(self, client: int, round: int) -> Choice:
        """The choices of an evaluation of a client's model: those of a visit that would begin now."""
        return Download(client, {}, self.choose(client, round)).choice

    @final
    def evaluation_variant(self, client: int) -> Variant:
        """The variant of an evaluation of a client's model."""
        return PLAIN if self.setup.submodels is None else self.setup.submodels.own_variant(client)

    @final
    def global_evaluation_variant(self) -> Variant:
        """The variant of an evaluation on the global test set."""
        return PLAIN if self.setup.submodels is None else self.setup.submodels.global_variant()

    # --- what a checkpoint has beside the models ----------------------------------------------------------------------

    def state(self) -> State:
        """Everything that later rounds depend on, except the models and the store, by name."""
        state = {f"optimiser/{name}": array for name, array in self.optimiser.state().items()}
        for index, extension in enumerate(self.extensions):
            state |= {f"part{index}/{name}": array for name, array in extension.state().items()}
        if self.setup.privacy is not None:
            state |= self.setup.privacy.state()
        return state if self.setup.submodels is None else state | self.setup.submodels.state()

    def restore(self, models: Models, state: State) -> None:
        """Set the models and the `state`."""
        self.models = dict(models)

        def under(prefix: str) -> State:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self.optimiser.restore(under("optimiser/"))
        for index, extension in enumerate(self.extensions):
            extension.restore(under(f"part{index}/"))
        if self.setup.privacy is not None:
            self.setup.privacy.restore(state)
        if self.setup.submodels is not None:
            self.setup.submodels.restore(state)


def models_sha256(models: Models) -> str:
    """One hash over the names and numbers of all models."""
    return sha256({MODEL if name == GLOBAL else name: model for name, model in models.items()})
