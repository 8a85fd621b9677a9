"""The server side of a run with tiers: each aggregator has the method's server side for its clients.

Liu, Zhang, Song and Letaief, Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641 (HierFAVG)

In a round each aggregator makes a step of its own from the updates of its clients. When aggregators meet what is above
them, this gets the mean of their models, weighted by the updates that these have got since they last met, and they go
on from it. The server optimizer acts at the top alone; aggregators take plain means. Sums are in the order of clients
at an aggregator, and of aggregators above: with one aggregator the models are FedAvg's to the bit, with several that
meet in every round they differ from FedAvg's by rounding.

What a correction carries beside the models (`ServerExtension.carried`) is a mean over clients, whatever updates weigh:
that of SCAFFOLD's control variates. What an aggregator has learned since it last met what is above it changes the mean
there by its share of the clients, once it arrives; what has not arrived is learned with its next message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.aggregation.server import (
    GLOBAL,
    Download,
    LaterPayload,
    Models,
    ServerContext,
    ServerStrategy,
    State,
    VisitFeedback,
)
from coordinator.aggregation.weighted_sum import WeightedSum
from edge.protocol.codecs.update_codec import UpdateCodec
from edge.protocol.messages import Choice, Totals, Update
from edge.protocol.payload import MODEL, Floats, Payload, Vector, shapes, vectors

AGGREGATOR = "aggregator "
"""Prefix of the names of models that an aggregator has for itself, before its number"""
Place = tuple[str, str]
"""(name of a model, key of one of its vectors)"""
StatePlace = tuple[str, int, int, str, str]
"""(kind, tier from 0 at the clients, number in it, model or slot, key) of an array of a checkpoint, which only
`_write_state` and `_read_state` know as text"""
MEETINGS, SIDE, WEIGHT, MODELS, CARRIED = "meetings", "side", "weight", "models", "carried"
START, START_CARRIED = "start", "start carried"
"""Kinds: the number of meetings, the state of a method's server side, and fields of an `Aggregator`"""


def by_aggregator(aggregator_of: NDArray[np.intp], clients: Sequence[int]) -> dict[int, list[int]]:
    """Aggregator -> those of the clients that belong to it, by ascending numbers of aggregators."""
    groups: dict[int, list[int]] = {}
    for client in clients:
        groups.setdefault(int(aggregator_of[client]), []).append(client)
    return dict(sorted(groups.items()))


def own_name(index: int, name: str) -> str:
    """The name of an aggregator's own model among those of the run; ``name``: of the server's."""
    return f"{AGGREGATOR}{index}" if name == GLOBAL else f"{AGGREGATOR}{index}/{name}"


def server_name(name: str) -> str:
    """The name of the server's model of which this is an aggregator's own; its own name for one of the server's."""
    return (name.partition("/")[2] or GLOBAL) if name.startswith(AGGREGATOR) else name


class Means:
    """A stand-in for a method's server side in an aggregator above the lowest tier: it takes means alone."""

    def __init__(self, models: Models, carried: Payload) -> None:
        self.models, self._carried = models, carried

    def carried(self) -> Payload:
        return self._carried

    def carry(self, vectors: Payload) -> None:
        self._carried = vectors


@dataclass
class Aggregator:
    """An aggregator, or the server above all."""

    members: int
    """Clients of it, at least 1: one that has none of its own may get others'"""
    side: ServerStrategy | Means
    """Its models and what it carries with them (`ServerExtension.carried`)"""
    weights: defaultdict[Place, float] = field(default_factory=lambda: defaultdict(float))
    """Weights of the updates that it has got, or those below it, since it last met what is above it"""
    partial_weight: float | None = None
    """Weight of the updates of this round that came as a partial sum"""
    differs: bool = False
    """Whether its models are not the server's, in the lowest tier"""
    start: Models = field(default_factory=dict)
    """The models that it went on from, if the server has mixed others in since (`mix`) and a codec refers to them"""
    start_carried: Payload = field(default_factory=dict)
    """Vectors that it went on carrying, if the server carries others since"""


class TieredServer(ServerStrategy):
    """The server, and the aggregators of all tiers.

    ``models`` are the server's, and those of the aggregators of the lowest tier whose models are others at present.
    """

    def __init__(
        self,
        setup: ServerContext,
        make: Callable[[ServerContext], ServerStrategy],
        aggregator_of: NDArray[np.intp],
        parents: Sequence[NDArray[np.intp]],
        codec: UpdateCodec | None = None,
    ) -> None:
        """``make``: the method's server side. ``aggregator_of``: (clients,). ``parents``: of the aggregators of each
        tier, the lowest first, the number of the one above; 0 is the server above the last. ``codec``: of models on
        their way up."""
        super().__init__(setup)
        self.aggregator_of, self._parents, self._codec = aggregator_of, parents, codec
        self._meetings = 0
        # Aggregators add noise to the sums of their own clients; above them there are means of models.
        self.top = make(replace(setup, privacy=None))
        plain, privacy = replace(setup, optimiser=ServerOptimizer()), setup.privacy
        counts = [np.bincount(aggregator_of, minlength=parents[0].size)]
        for below, above in pairwise(parents):
            counts.append(np.bincount(below, counts[-1], above.size).astype(np.int64))
        members = [np.maximum(of_tier, 1).tolist() for of_tier in counts]
        self.aggregators = [
            make(
                replace(
                    plain,
                    members=count,
                    privacy=None if privacy is None else privacy.at_station(index, count / len(setup.samples)),
                )
            )
            for index, count in enumerate(members[0], 1)
        ]
        for side in self.aggregators:
            side.models = dict(self.top.models)
        self._lowest = list(map(Aggregator, members[0], self.aggregators))
        models, carried = self.top.models, self.top.carried()
        upper = [[Aggregator(count, Means(models, carried)) for count in of_tier] for of_tier in members[1:]]
        self._tiers = [self._lowest, *upper, [Aggregator(len(setup.samples), self.top)]]
        """The aggregators of each tier, and the server above the last"""
        self._placed = [
            (tier, number, aggregator)
            for tier, of_tier in enumerate(self._tiers)
            for number, aggregator in enumerate(of_tier)
        ][::-1]
        """(tier, number in it, aggregator) of all, the server first"""
        self._collect()

    def _collect(self) -> None:
        models: Models = dict(self.top.models)
        for index, aggregator in enumerate(self._lowest):
            if aggregator.differs:
                models |= {own_name(index, name): model for name, model in aggregator.side.models.items()}
        self.models = models

    # --- what a visit has to do with its aggregator -------------------------------------------------------------------

    def of_client(self, client: int) -> ServerStrategy:
        """The server side of the client's aggregator."""
        return self.aggregators[int(self.aggregator_of[client])]

    def place(self, aggregator_of: NDArray[np.intp]) -> None:
        self.aggregator_of = aggregator_of

    def start_model(self, client: int) -> Models:
        return self.of_client(client).start_model(client)

    def targets(self, update: Update) -> Mapping[str, str]:
        return self.of_client(update.client).targets(update)

    def choose(self, client: int, round: int) -> Choice:
        return self.of_client(client).choose(client, round)

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        return self.of_client(client).payload(client, round, choice)

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Each aggregator with a cohort names some of its own clients."""
        chosen = []
        for index, clients in by_aggregator(self.aggregator_of, cohort).items():
            others = self.aggregators[index].download_only_clients(round, clients)
            chosen += [client for client in others if self.aggregator_of[client] == index]
        return sorted(chosen)

    def select(self, keys: Sequence[str]) -> Payload:
        return self.top.select(keys)

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return self.top.up_shapes()

    def weight(self, reply: Update, model: str, key: str) -> float:
        return self.of_client(reply.client).weight(reply, model, key)

    def clipped(self, update: Update, start: Models) -> Update:
        return self.of_client(update.client).clipped(update, start)

    def accumulate(self, reply: Update) -> None:
        self.of_client(reply.client).accumulate(reply)

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        self.of_client(reply.client).observe(reply, start)

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        for index, group in self._dispatches(dispatches).items():
            self.aggregators[index].started(round, group)

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        for index, group in self._dispatches(dispatches).items():
            self.aggregators[index].received(round, group)

    def _dispatches(self, dispatches: Sequence[Download]) -> dict[int, list[Download]]:
        by_client = {dispatch.client: dispatch for dispatch in dispatches}
        groups = by_aggregator(self.aggregator_of, [dispatch.client for dispatch in dispatches])
        return {index: [by_client[client] for client in clients] for index, clients in groups.items()}

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        by_client = {outcome.dispatch.client: outcome for outcome in outcomes}
        rows: list[NamedTuple] = []
        for index, clients in by_aggregator(self.aggregator_of, list(by_client)).items():
            rows += self.aggregators[index].feedback(round, [by_client[client] for client in clients])
        return rows

    def evaluation_model(self, client: int) -> Payload | LaterPayload:
        return self.of_client(client).evaluation_model(client)

    def global_evaluation_model(self) -> Payload:
        return self.top.global_evaluation_model()

    def own_evaluation_models(self) -> list[tuple[list[int], Payload]]:
        """(aggregators, model) of those whose models are not the server's; the same ones, as of aggregators that have
        met what is above them, are together."""
        together: dict[tuple[tuple[str, str, bytes], ...], tuple[list[int], Payload]] = {}
        for index, side in enumerate(self.aggregators):
            if self._lowest[index].differs:
                payload = side.global_evaluation_model()
                same = tuple((slot, key, vector.version) for slot, key, vector in vectors(payload))
                together.setdefault(same, ([], payload))[0].append(index)
        return list(together.values())

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Each aggregator that has got updates makes a step."""
        for side, aggregator in zip(self.aggregators, self._lowest, strict=True):
            for place, total in side.sums.items():
                assert not isinstance(total.weight, np.ndarray), place
                partial = aggregator.partial_weight
                aggregator.weights[place] += total.weight if partial is None else partial
            if side.sums:
                side.step()
                aggregator.differs = True
            aggregator.partial_weight = None
        self._collect()

    def accumulate_sums(self, totals: Totals, clients: Sequence[int]) -> None:
        """The sums of one aggregator's clients, whose weights add up to 1."""
        (index,) = by_aggregator(self.aggregator_of, clients)
        self.aggregators[index].accumulate_sums(totals, clients)
        self._lowest[index].partial_weight = sum(self.setup.weight_of(client) for client in clients)

    def meet(self, tier: int, present: NDArray[np.bool_]) -> None:
        """Aggregators of a tier meet what is above them; those of the tiers below have met them in this round.

        ``present``: (aggregators,) those whose models count. All of them, and those below them, go on from the new
        models. Above the last tier the server makes its step.
        """
        for number, above in enumerate(self._tiers[tier + 1]):
            before = above.side.models
            sums = self.top.sums if above.side is self.top else defaultdict[Place, WeightedSum](WeightedSum)
            for index in np.flatnonzero((self._parents[tier] == number) & present).tolist():
                below = self._tiers[tier][index]
                arrived = self._sent(below.side.models, before, tier, index)
                for (name, key), weight in below.weights.items():
                    if weight > 0:
                        sums[name, key].add(arrived[name][key].data, weight)
                        above.weights[name, key] += weight
            if above.side is self.top:
                self._step_top()
                continue
            models = {name: dict(model) for name, model in before.items()}
            for (name, key), total in sums.items():
                mean = total.mean()
                assert mean is not None, key
                models[name][key] = Vector(mean)
            above.side.models = models
        for below in self._tiers[tier]:
            below.weights.clear()
        self._meetings += 1
        self._go_on(tier)
        self._carry(tier, present)

    def _step_top(self) -> None:
        """The server takes the mean, and the server optimizer's step: the method's own was each aggregator's."""
        self.top.step_scale = 1.0
        ServerStrategy.step(self.top)
        self._tiers[-1][0].weights.clear()

    def mix(self, index: int, mixing: float) -> None:
        """The server mixes the models of one aggregator of the only tier into its own, which go on from the result.

        ``mixing``: a of (1 - a) w + a w_aggregator, the mean that the server optimizer gets; 0: none has arrived.
        """
        before, aggregator = self.top.models, self._lowest[index]
        if mixing > 0:
            arrived = self._sent(aggregator.side.models, aggregator.start or before, 0, index)
            for (name, key), weight in aggregator.weights.items():
                if weight > 0:
                    if mixing < 1:
                        self.top.sums[name, key].add(before[name][key].data, 1 - mixing)
                    self.top.sums[name, key].add(arrived[name][key].data, mixing)
            self._step_top()
            self._meetings += 1
        aggregator.weights.clear()
        for other in self._lowest:
            other.differs = other is not aggregator
            if self._codec is not None:
                other.start = other.start or before
        aggregator.start = {}
        self._carry_one(aggregator, mixing > 0)
        aggregator.side.models = dict(self.top.models)
        self._collect()

    def _sent(self, models: Models, above: Models, tier: int, index: int) -> Models:
        """An aggregator's models as they arrive above it; ``above``: the ones that it went on from."""
        if self._codec is None:
            return models

        def reference(slot: str, key: str) -> Floats:
            return above[GLOBAL if slot == MODEL else slot][key].data

        payload = {MODEL if name == GLOBAL else name: model for name, model in models.items()}
        # Clients have the numbers before those of aggregators.
        sender = len(self.setup.samples) + sum(parents.size for parents in self._parents[:tier]) + index
        raw, frames, _ = self._codec.encode(sender, self._meetings, payload, reference, {})
        arrived = self._codec.decode(sender, self._meetings, raw, frames, reference, shapes(payload))
        return {GLOBAL if slot == MODEL else slot: dict(model) for slot, model in arrived.items()}

    def _go_on(self, tier: int) -> None:
        """The aggregators of a tier, and those below them, go on from the models above them."""
        for lower in range(tier, -1, -1):
            for aggregator, parent in zip(self._tiers[lower], self._parents[lower].tolist(), strict=True):
                models = self._tiers[lower + 1][parent].side.models
                aggregator.side.models = models if lower else dict(models)
        for aggregator in self._lowest:
            aggregator.differs = tier + 1 < len(self._parents)
        self._collect()

    def _carry(self, tier: int, arrived: NDArray[np.bool_]) -> None:
        """Let all of a tier, and those below it, go on with what is carried above it once some of it has arrived."""
        if not self.top.carried():
            return
        before = [above.side.carried() for above in self._tiers[tier + 1]]
        for number, above in enumerate(self._tiers[tier + 1]):
            indices = np.flatnonzero((self._parents[tier] == number) & arrived).tolist()
            above.side.carry(_mean_carried(above, [self._tiers[tier][index] for index in indices]))
        for lower in range(tier, -1, -1):
            after = [above.side.carried() for above in self._tiers[lower + 1]]
            before_below = [aggregator.side.carried() for aggregator in self._tiers[lower]]
            for index, parent in enumerate(self._parents[lower].tolist()):
                carried, is_in = before_below[index], lower == tier and arrived[index]
                moved = after[parent] if is_in else _moved(carried, before[parent], after[parent])
                self._tiers[lower][index].side.carry(moved)
            before = before_below

    def _carry_one(self, aggregator: Aggregator, has_arrived: bool) -> None:
        """The same when one aggregator alone goes on: what it has learned since its start counts by its clients, not
        less for its staleness."""
        before, carried = self.top.carried(), aggregator.side.carried()
        start, aggregator.start_carried = aggregator.start_carried or before, {}
        if not before or not has_arrived:
            aggregator.side.carry(_moved(carried, start, before))
            return
        share, after = aggregator.members / len(self.setup.samples), dict[str, dict[str, Vector]]()
        for slot, key, vector in vectors(before):
            change = carried[slot][key].data.astype(np.float64) - start[slot][key].data
            after.setdefault(slot, {})[key] = Vector((vector.data + share * change).astype(np.float32))
        for server in (self.top, aggregator.side):
            server.carry(after)
        for other in self._lowest:
            other.start_carried = {} if other is aggregator else other.start_carried or before

    def take_logged(self) -> dict[str, float]:
        """Name -> its mean over the aggregators that have logged it."""
        by_name: dict[str, list[float]] = {}
        for server in (self.top, *self.aggregators):
            for name, value in server.take_logged().items():
                by_name.setdefault(name, []).append(value)
        return {name: float(np.mean(values)) for name, values in by_name.items()}

    # --- what a checkpoint has beside the models ----------------------------------------------------------------------

    def state(self) -> State:
        arrays: dict[StatePlace, NDArray[np.generic]] = {(MEETINGS, 0, 0, "", ""): np.array([self._meetings])}
        is_between = any(aggregator.differs for aggregator in self._lowest)
        for tier, number, aggregator in self._placed:
            groups = {START: aggregator.start, START_CARRIED: aggregator.start_carried}
            if isinstance(aggregator.side, ServerStrategy):
                side = aggregator.side.state()
                arrays |= {(SIDE, tier, number, "", name): array for name, array in side.items()}
            else:
                groups[CARRIED] = aggregator.side.carried()
                if is_between and aggregator.side.models is not self.top.models:
                    groups[MODELS] = aggregator.side.models
            for (name, key), weight in aggregator.weights.items():
                arrays[WEIGHT, tier, number, name, key] = np.array([weight])
            for kind, group in groups.items():
                arrays |= {(kind, tier, number, name, key): vector.data for name, key, vector in vectors(group)}
        return _write_state(arrays)

    def restore(self, models: Models, state: State) -> None:
        stored = defaultdict[tuple[str, int, int], dict[str, State]](dict)
        for (kind, tier, number, group, key), array in _read_state(state).items():
            stored[kind, tier, number].setdefault(group, {})[key] = array
        self._meetings = int(stored[MEETINGS, 0, 0][""][""][0])
        of_server = {name: model for name, model in models.items() if not name.startswith(AGGREGATOR)}
        for tier, number, aggregator in self._placed:
            if isinstance(aggregator.side, Means):
                aggregator.side.models = _like(of_server, stored[MODELS, tier, number]) or self.top.models
                aggregator.side.carry(_like(self.top.carried(), stored[CARRIED, tier, number]))
            else:
                names = {name: own_name(number, name) for name in (of_server if tier == 0 else ())}
                own_models = {name: models[other] for name, other in names.items() if other in models}
                aggregator.differs = bool(own_models)
                aggregator.side.restore(own_models or of_server, stored[SIDE, tier, number].get("", {}))
            aggregator.start = _like(of_server, stored[START, tier, number])
            aggregator.start_carried = _like(self.top.carried(), stored[START_CARRIED, tier, number])
            weights = stored[WEIGHT, tier, number].items()
            aggregator.weights.clear()
            aggregator.weights |= {(name, key): float(weight[0]) for name, of in weights for key, weight in of.items()}
        self._collect()


def _write_state(arrays: Mapping[StatePlace, NDArray[np.generic]]) -> State:
    return {"|".join(map(str, place)): array for place, array in arrays.items()}


def _read_state(state: State) -> dict[StatePlace, NDArray[np.generic]]:
    """The inverse of `_write_state`."""
    parts = ((text.split("|", 4), array) for text, array in state.items())
    return {(kind, int(tier), int(number), group, key): array for (kind, tier, number, group, key), array in parts}


def _like(groups: Payload, stored: Mapping[str, State]) -> Payload:
    """The stored vectors, in the order of such models or slots; empty if there are none."""
    return {
        name: {key: Vector(np.asarray(stored[name][key], np.float32)) for key in group}
        for name, group in (groups if stored else {}).items()
    }


def _mean_carried(above: Aggregator, below: Sequence[Aggregator]) -> Payload:
    """The mean over the clients of one aggregator, of which those of these below it have theirs."""
    before = above.side.carried()
    after = {slot: dict(model) for slot, model in before.items()}
    for slot, key, vector in vectors(before if below else {}):
        total = WeightedSum()
        total.add(vector.data, float(above.members - sum(aggregator.members for aggregator in below)))
        for aggregator in below:
            total.add(aggregator.side.carried()[slot][key].data, float(aggregator.members))
        mean = total.mean()
        assert mean is not None, key
        after[slot][key] = Vector(mean)
    return after


def _moved(carried: Payload, before: Payload, after: Payload) -> Payload:
    """The vectors carried at an aggregator when ``after`` is in place of ``before``, which it went on with: with the
    same difference from it."""
    moved: Payload = {}
    for slot, key, vector in vectors(carried):
        start, end = before[slot][key], after[slot][key]
        if vector is not start:
            differs = vector.data != start.data
            moved_by = vector.data.astype(np.float64) - start.data
            # Where nothing has changed, also the sign of 0 is that above.
            end = Vector(np.where(differs, end.data + moved_by, end.data).astype(np.float32))
        moved.setdefault(slot, {})[key] = end
    return moved
