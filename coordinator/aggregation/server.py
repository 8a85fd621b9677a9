"""The server half of a method. Its defaults are FedAvg.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629

Subclasses of `Server` can customise by overriding

* ``dispatch``: what goes down to one client, in as many slots as the method needs, and what is chosen for the visit;
* ``weight``: the weight of a reply, which may differ per block;
* ``note``: what is remembered of a reply's vectors for ``feedback``;
* ``fold`` and ``step``: how replies, one after another, become the next global model;
  whoever overrides ``fold``, ``note`` or ``weight`` says in its row that it looks into single replies;
* ``started``, ``received`` and ``feedback``: bookkeeping when visits begin, have counted, and are known to the end;
* ``recall`` and ``resumed``: the same bookkeeping, where a run goes on that was broken off;
* ``listeners``: clients that only download in a round;
* ``evaluated`` or ``scored``: the model that is scored;
* ``state`` and ``restore``: what is remembered beside the model.

A correction may bring a `Part`, which adds slots to what goes down and learns from the replies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import Replace
from coordinator.aggregation.weighted_sum import Sum
from coordinator.records.store import ChoiceRow
from edge.protocol.config import TrainConfig
from edge.protocol.fixed_point import LIMIT, ExactSum, sizes, unfit
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import BUFFERS, MODEL, Layout, Payload, Vector, shapes, vectors

State = dict[str, NDArray[np.generic]]
Model = dict[str, Vector]
"""key -> vector"""


@dataclass(frozen=True)
class Setup:
    """What a server half is made from."""

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
    optimiser: Replace = field(default_factory=Replace)
    asynchronous: bool = False
    """Whether visits begin and end one by one; a round is then a server step at the visit's beginning."""
    sum: Literal["client_order", "fixed_point"] = "client_order"
    """Who adds updates up: the server, in client order; or workers, in fixed point (`edge.protocol.fixed_point`)."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How clients train, for server halves that reckon with their steps."""

    @property
    def turns(self) -> str:
        """What the number of a training message counts: rounds, or visits one by one."""
        return "visit" if self.asynchronous else "round"


@dataclass(frozen=True)
class Dispatch:
    """What the server decides for one visit."""

    client: int
    payload: Payload
    choice: Mapping[str, int] = field(default_factory=dict)
    """Small numbers that ride down with the vectors, by the method's names; always the same names."""


@dataclass(frozen=True)
class Outcome:
    """What is known of one visit when it has counted. Seconds are the virtual clock's."""

    dispatch: Dispatch
    reply: Update
    """Perhaps without its vectors, which `Server.note` has seen"""
    compute_seconds: float
    communication_seconds: float


class Part:
    """A correction's server half: further slots beside the method's own."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def down(self, client: int) -> Payload:
        """Further slots that go down to this client."""
        return {}

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of further slots that come up."""
        return {}

    def fold(self, reply: Update) -> None:
        """Learn from a reply; they come in client order, and none is kept. What goes down changes in `step` alone."""

    def step(self, before: Model, after: Model) -> Model:
        """All replies of a step were folded; returns the next global model, by default the method's ``after``."""
        return after

    def state(self) -> State:
        """What is remembered between rounds."""
        return {}

    def restore(self, state: State) -> None:
        """Inverse of `state`."""


class Server:
    """The server half of FedAvg, and the base of all others."""

    sends_the_same: ClassVar[bool] = False
    """Of a half with a `dispatch` of its own: whether what it decides, and how much it sends, follow from the round."""

    def __init__(self, setup: Setup, parts: Sequence[Part] = ()) -> None:
        self.setup = setup
        self.parts = parts
        self.optimiser = setup.optimiser
        self.model: Model = dict(setup.initial[MODEL])
        self.sums = {key: Sum() for key in setup.up}
        """Of what was folded since the last step, by key of the model"""

    def dispatch(self, client: int, round: int) -> Dispatch:
        """What goes down to ``client``; changes nothing."""
        return Dispatch(client, self.joined(client, self.some(self.setup.down)))

    def some(self, keys: Sequence[str]) -> Payload:
        """These keys of the global model."""
        return {MODEL: {key: self.model[key] for key in keys}}

    def joined(self, client: int, payload: Payload) -> Payload:
        """The payload with the corrections' slots."""
        for part in self.parts:
            payload = payload | part.down(client)
        return payload

    def started(self, round: int, dispatches: Sequence[Dispatch]) -> None:
        """These visits have begun; not all of them need count."""

    def received(self, round: int, dispatches: Sequence[Dispatch]) -> None:
        """These visits, begun in ``round``, have counted: their clients hold what they were sent."""

    def recall(self, outcome: Outcome, learned: ChoiceRow) -> None:
        """Learn again, from the ledger, what `feedback` learned of a visit when it had ended."""

    def resumed(self, client: int, model: Model) -> None:
        """A visit is under way that began, before the run was broken off, when this was the global model."""

    def listeners(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Clients outside the cohort that download the whole model in this round, and keep it."""
        return ()

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """Shapes of what one client sends."""
        wanted: dict[str, dict[str, int]] = {MODEL: self.setup.layout.shapes(self.setup.up)}
        for part in self.parts:
            wanted |= part.up_shapes()
        return {slot: named for slot, named in wanted.items() if named}  # a slot without a vector leaves no trace

    def evaluated(self) -> Payload:
        """The model that is scored on the global test set."""
        return {MODEL: dict(self.model)}

    def scored(self, client: int) -> Payload:
        """What a client joins with what it kept, where methods are scored client by client."""
        return self.some(self.setup.down)

    def weight(self, reply: Update, key: str) -> float:
        """How much a reply counts in the mean of one block."""
        return self._weight(reply.client)

    def shares(self, clients: Sequence[int]) -> dict[int, float]:
        """Which part of the mean each of these clients is, by `weight`, where the mean is theirs alone."""
        weights = {client: self._weight(client) for client in clients}
        total = sum(weights.values())
        return {client: weight / total for client, weight in weights.items()}

    def _weight(self, client: int) -> float:
        return float(self.setup.samples[client]) if self.setup.weights == "size" else 1.0

    def note(self, reply: Update) -> None:
        """A visit has counted: remember what `feedback` needs of the vectors that came up, as they came."""

    def fold(self, reply: Update) -> None:
        """Add a reply to the sums of this step; it is not kept.

        They come in client order; in asynchronous policies as they arrive, and a client may send several.
        """
        for key, total in self.sums.items():
            total.add(reply.payload[MODEL][key].data, self.weight(reply, key))
        for part in self.parts:
            part.fold(reply)

    def take(self, totals: Totals) -> None:
        """In place of folding every reply of a step: what they add up to, each with its share."""
        for key, total in self.sums.items():
            total.add(ExactSum(totals[MODEL][key]).vector(), 1.0)

    def step(self) -> None:
        """Make the next global model from what was folded; without any weight a block stays as it is."""
        before = dict(self.model)
        for key, total in self.sums.items():
            average = total.mean()
            if average is not None:
                is_buffer = key.endswith(BUFFERS)
                moved = average if is_buffer else self.optimiser.step(key, self.model[key].data, average)
                self.model[key] = Vector(moved)
        self.sums = {key: Sum() for key in self.setup.up}
        for part in self.parts:
            self.model = part.step(before, self.model)

    def feedback(self, round: int, outcomes: Sequence[Outcome]) -> list[ChoiceRow]:
        """Learn from how the visits went, in client order; returns what the ledger should show of it."""
        return []

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


def check_reply(server: Server, reply: Update) -> str | None:
    """Why a reply cannot be used, or None: shapes as asked for, every number finite.

    Where workers add updates up, what comes without vectors was found fit by its worker.
    """
    whose = f"client {reply.client}, {server.setup.turns} {reply.round}"
    in_workers = server.setup.sum == "fixed_point"
    wanted, got = server.up_shapes(), shapes(reply.payload)
    if got != wanted and not (in_workers and not got):
        return f"{whose}: shapes {got} instead of {wanted}"
    for name, number in reply.numbers.items():
        if not math.isfinite(number):
            return f"{whose}: {name} = {number} (training diverged?)"
    for slot, key, vector in vectors(reply.payload):
        problem = unfit(vector.data, LIMIT if in_workers else math.inf)
        if problem is not None:
            return f"{whose}: {slot}/{key} {problem}"
    return None


def check_totals(server: Server, totals: Totals) -> str | None:
    """Why what workers have added up cannot be used, or None: shapes as asked for."""
    wanted, got = server.up_shapes(), sizes(totals)
    return None if got == wanted else f"shapes {got} instead of {wanted}"
