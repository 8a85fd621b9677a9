"""The server side of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

Subclasses of `ServerStrategy` can customise by overriding

* ``choose`` and ``payload``: the small numbers that are chosen for a visit, and what goes down for such a choice, in as
  many slots as the method needs; or ``download``, where the two cannot be told apart;
* ``possible_choices``: what ``choose`` may return, where that differs from visit to visit;
* ``decides_without_updates``: whether finished runs of the method can be replayed on another fleet;
* ``weight``: the weight of a reply, which may differ per block;
* ``observe``: what is remembered of a reply's vectors for ``feedback``;
* ``accumulate`` and ``step``: how replies, one after another, become the next global model;
  whoever overrides ``accumulate``, ``observe`` or ``weight`` says in its row that it looks into single replies;
* ``started``, ``received`` and ``feedback``: bookkeeping when visits begin, have counted, and are known to the end;
* ``replay_feedback`` and ``restore_in_flight``: the same bookkeeping, where a run goes on that was broken off;
* ``download_only_clients``: clients that only download in a round;
* ``global_evaluation_model`` or ``evaluation_model``: the model that is scored;
* ``state`` and ``restore``: what is remembered beside the model.

A correction may bring a `ServerExtension`, which adds slots to what goes down and learns from the replies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.weighted_sum import WeightedSum
from edge.protocol.config import TrainConfig
from edge.protocol.fixed_point import LIMIT, FixedPointSum, not_summable, sizes
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import BUFFERS, MODEL, Layout, Payload, Vector, shapes, vectors

State = dict[str, NDArray[np.generic]]
Model = dict[str, Vector]
"""key -> vector"""


@dataclass(frozen=True)
class ServerContext:
    """What a server side is made from."""

    layout: Layout
    initial: Payload
    options: Mapping[str, object]
    weights: str
    """``size`` or ``uniform``"""
    down: tuple[str, ...]
    """Keys of the model that go down, where the method does not choose per visit."""
    up: tuple[str, ...]
    """Keys of the model that come up."""
    seed: int
    samples: NDArray[np.int64]
    """(clients,) training examples"""
    histogram: NDArray[np.int64]
    """(clients, classes) training examples"""
    optimiser: ServerOptimizer = field(default_factory=ServerOptimizer)
    asynchronous: bool = False
    """Whether visits begin and end one by one; a round is then a server step at the visit's beginning."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """Who adds updates up: the server, in client order; or workers, in fixed point (`edge.protocol.fixed_point`)."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How clients train, for server sides that reckon with their steps."""

    @property
    def numbering(self) -> str:
        """What the number of a training message counts: rounds, or visits one by one."""
        return "visit" if self.asynchronous else "round"


@dataclass(frozen=True)
class Download:
    """What the server decides for one visit."""

    client: int
    payload: Payload
    choice: Mapping[str, int] = field(default_factory=dict)
    """Small numbers that ride down with the vectors, by the method's names; always the same names."""


@dataclass(frozen=True)
class VisitFeedback:
    """What is known of one visit when it has counted. Seconds are the virtual clock's."""

    dispatch: Download
    reply: Update
    """Perhaps without its vectors, which `ServerStrategy.observe` has seen"""
    compute_seconds: float
    communication_seconds: float


class ServerExtension:
    """A correction's server side: further slots beside the method's own."""

    def __init__(self, setup: ServerContext) -> None:
        self.setup = setup

    def down(self, client: int) -> Payload:
        """Further slots that go down to this client."""
        return {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of further slots that come up."""
        return {}

    def accumulate(self, reply: Update) -> None:
        """Learn from a reply; they come in client order, and none is kept. What goes down changes in `step` alone."""

    def step(self, before: Model, after: Model) -> Model:
        """All replies of a step were folded; returns the next global model, by default the method's ``after``."""
        return after

    def state(self) -> State:
        """What is remembered between rounds."""
        return {}

    def restore(self, state: State) -> None:
        """Inverse of `state`."""


class ServerStrategy:
    """The server side of FedAvg, and the base of all others."""

    def __init__(self, setup: ServerContext, parts: Sequence[ServerExtension] = ()) -> None:
        self.setup = setup
        self.parts = parts
        self.optimiser = setup.optimiser
        self.model: Model = dict(setup.initial[MODEL])
        self.sums = {key: WeightedSum() for key in setup.up}
        """Of what was folded since the last step, by key of the model"""

    def download(self, client: int, round: int) -> Download:
        """What goes down to ``client``; changes nothing."""
        choice = self.choose(client, round)
        return Download(client, self.payload(client, choice), choice)

    def choose(self, client: int, round: int) -> Mapping[str, int]:
        """The small numbers that ride down in a visit; changes nothing."""
        return {}

    def possible_choices(self) -> Sequence[Mapping[str, int]]:
        """All that `choose` may return, for ``check``; none where visits of the same round are alike."""
        return ()

    def payload(self, client: int, choice: Mapping[str, int]) -> Payload:
        """The vectors that go down for a choice."""
        return self.with_extensions(client, self.select(self.setup.down))

    @property
    def decides_without_updates(self) -> bool:
        """Whether what goes down, and to whom, follows from rounds, times and reported numbers, which a ledger has.

        Only such runs can be replayed without training. A class that chooses for itself says so itself.
        """
        own, base = type(self), ServerStrategy
        deciding = ("download", "choose", "payload", "download_only_clients")
        return all(getattr(own, name) is getattr(base, name) for name in deciding)

    def select(self, keys: Sequence[str]) -> Payload:
        """These keys of the global model."""
        return {MODEL: {key: self.model[key] for key in keys}}

    def with_extensions(self, client: int, payload: Payload) -> Payload:
        """The payload with the corrections' slots."""
        for part in self.parts:
            payload = payload | part.down(client)
        return payload

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits have begun; not all of them need count."""

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """These visits, begun in ``round``, have counted: their clients hold what they were sent."""

    def replay_feedback(self, outcome: VisitFeedback, learned: Any) -> None:
        """Learn again, from the row of the method's own table, what `feedback` learned of a visit when it had ended."""

    def restore_in_flight(self, client: int, model: Model) -> None:
        """A visit is under way that began, before the run was broken off, when this was the global model."""

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Clients outside the cohort that download the whole model in this round, and keep it."""
        return ()

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of what one client sends."""
        wanted: dict[str, dict[str, int]] = {MODEL: self.setup.layout.shapes(self.setup.up)}
        for part in self.parts:
            wanted |= part.up_shapes()
        return {slot: named for slot, named in wanted.items() if named}  # a slot without a vector leaves no trace

    def global_evaluation_model(self) -> Payload:
        """The model that is scored on the global test set."""
        return {MODEL: dict(self.model)}

    def evaluation_model(self, client: int) -> Payload:
        """What a client joins with what it kept, where methods are scored client by client."""
        return self.select(self.setup.down)

    def weight(self, reply: Update, key: str) -> float:
        """How much a reply counts in the mean of one block."""
        return self._weight(reply.client)

    def aggregation_weights(self, clients: Sequence[int]) -> dict[int, float]:
        """Which part of the mean each of these clients is, by `weight`, where the mean is theirs alone."""
        weights = {client: self._weight(client) for client in clients}
        total = sum(weights.values())
        return {client: weight / total for client, weight in weights.items()}

    def _weight(self, client: int) -> float:
        return float(self.setup.samples[client]) if self.setup.weights == "size" else 1.0

    def observe(self, reply: Update) -> None:
        """A visit has counted: remember what `feedback` needs of the vectors that came up, as they came."""

    def accumulate(self, reply: Update) -> None:
        """Add a reply to the sums of this step; it is not kept.

        They come in client order; in asynchronous policies as they arrive, and a client may send several.
        """
        for key, total in self.sums.items():
            total.add(reply.payload[MODEL][key].data, self.weight(reply, key))
        for part in self.parts:
            part.accumulate(reply)

    def accumulate_partial(self, totals: Totals) -> None:
        """In place of folding every reply of a step: what they add up to, each with its share."""
        for key, total in self.sums.items():
            total.add(FixedPointSum(totals[MODEL][key]).vector(), 1.0)

    def step(self) -> None:
        """Make the next global model from what was folded; without any weight a block stays as it is."""
        before = dict(self.model)
        for key, total in self.sums.items():
            average = total.mean()
            if average is not None:
                is_buffer = key.endswith(BUFFERS)
                moved = average if is_buffer else self.optimiser.step(key, self.model[key].data, average)
                self.model[key] = Vector(moved)
        self.sums = {key: WeightedSum() for key in self.setup.up}
        for part in self.parts:
            self.model = part.step(before, self.model)

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        """Learn from how the visits went, in client order; returns rows of the method's own table, if it has one."""
        return ()

    def state(self) -> State:
        """Everything but the model that later rounds depend on, by name."""
        state = {f"optimiser/{name}": array for name, array in self.optimiser.state().items()}
        for index, part in enumerate(self.parts):
            state |= {f"part{index}/{name}": array for name, array in part.state().items()}
        return state

    def restore(self, model: Model, state: State) -> None:
        """Inverse of `state`, with the model."""
        self.model = dict(model)
        self.optimiser.restore(_under("optimiser/", state))
        for index, part in enumerate(self.parts):
            part.restore(_under(f"part{index}/", state))


def _under(prefix: str, state: State) -> State:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def check_reply(server: ServerStrategy, reply: Update) -> str | None:
    """Why a reply cannot be used, or None: shapes as asked for, every number finite.

    Where workers add updates up, what comes without vectors was found fit by its worker.
    """
    whose = f"client {reply.client}, {server.setup.numbering} {reply.round}"
    in_workers = server.setup.sum == "fixed_point"
    wanted, got = server.up_shapes(), shapes(reply.payload)
    if got != wanted and not (in_workers and not got):
        return f"{whose}: shapes {got} instead of {wanted}"
    for name, number in reply.numbers.items():
        if not math.isfinite(number):
            return f"{whose}: {name} = {number} (training diverged?)"
    for slot, key, vector in vectors(reply.payload):
        problem = not_summable(vector.data, LIMIT if in_workers else math.inf)
        if problem is not None:
            return f"{whose}: {slot}/{key} {problem}"
    return None


def check_partial_shapes(server: ServerStrategy, totals: Totals) -> str | None:
    """Why what workers have added up cannot be used, or None: shapes as asked for."""
    wanted, got = server.up_shapes(), sizes(totals)
    return None if got == wanted else f"shapes {got} instead of {wanted}"
