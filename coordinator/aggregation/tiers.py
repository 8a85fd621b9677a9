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
from dataclasses import replace
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
TOP = "top/"
"""Prefix of the names of the server's own state"""
MEETINGS = "meetings"
"""Name of the number of meetings so far in `TieredServer.state`"""
WEIGHT, BETWEEN, CAME, CARRIED = "weight|", "between|", "came|", "carried|"
"""Prefixes of the names of weights since aggregators last met what is above them, of the models of tiers above the
lowest, of those that aggregators went on from, and of what is carried with the models of either"""


def by_aggregator(aggregator_of: NDArray[np.intp], clients: Sequence[int]) -> dict[int, list[int]]:
    """Aggregator -> those of the clients that belong to it, by ascending numbers of aggregators."""
    groups: dict[int, list[int]] = {}
    for client in clients:
        groups.setdefault(int(aggregator_of[client]), []).append(client)
    return dict(sorted(groups.items()))


def server_name(name: str) -> str:
    """The name of the server's model of which this is an aggregator's own; its own name for one of the server's."""
    if not name.startswith(AGGREGATOR):
        return name
    return name.partition("/")[2] or GLOBAL


class TieredServer(ServerStrategy):
    """The server, and the aggregators of the lowest tier.

    ``models`` are the server's, and those of the aggregators whose models are others at present.
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
        self.top = make(setup)
        plain = replace(setup, optimiser=ServerOptimizer())
        counts = [np.bincount(aggregator_of, minlength=parents[0].size)]
        for below, above in pairwise(parents):
            counts.append(np.bincount(below, counts[-1], above.size).astype(np.int64))
        self._members = [np.maximum(each, 1) for each in counts]
        """Of each tier, (aggregators,) clients of each; one that has none of its own may get others'"""
        self.aggregators = [make(replace(plain, members=int(count))) for count in self._members[0]]
        for aggregator in self.aggregators:
            aggregator.models = dict(self.top.models)
        self._between: list[list[Models]] = [[self.top.models] * above.size for above in parents[1:]]
        """Of each tier above the lowest, the models of its aggregators"""
        self._carried: list[list[Payload]] = [[self.top.carried()] * above.size for above in parents[1:]]
        """Of the same, what they carry"""
        self._came_with: dict[int, Payload] = {}
        """Aggregator -> what it went on carrying, if the server carries other vectors since (`mix`)"""
        self._weights: list[dict[tuple[str, str], NDArray[np.float64]]] = [{} for _ in parents]
        """Of each tier, (model, key) -> (aggregators,) weights of the updates that these have got, or those below them,
        since they last met what is above them"""
        self._came: dict[int, Models] = {}
        """Aggregator -> the models that it went on from, if the server has mixed others in since (`mix`); empty without
        a codec"""
        self._partial: dict[int, float] = {}
        """Aggregator -> weight of the updates of this round that came as partial sums"""
        self._own: set[int] = set()
        """Aggregators whose models are not the server's"""
        self._collect()

    def _collect(self) -> None:
        models: Models = dict(self.top.models)
        for index in sorted(self._own):
            for name, model in self.aggregators[index].models.items():
                models[f"{AGGREGATOR}{index}" if name == GLOBAL else f"{AGGREGATOR}{index}/{name}"] = model
        self.models = models

    # --- what a visit has to do with its aggregator -------------------------------------------------------------------

    def of_client(self, client: int) -> ServerStrategy:
        """The server side of the client's aggregator."""
        return self.aggregators[int(self.aggregator_of[client])]

    def start_model(self, client: int) -> Models:
        return self.of_client(client).start_model(client)

    def targets(self, update: Update) -> Mapping[str, str]:
        return self.of_client(update.client).targets(update)

    def choose(self, client: int, round: int) -> Choice:
        return self.of_client(client).choose(client, round)

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        return self.of_client(client).payload(client, round, choice)

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Of each aggregator with a cohort, its own clients."""
        chosen = []
        for index, own in by_aggregator(self.aggregator_of, cohort).items():
            others = self.aggregators[index].download_only_clients(round, own)
            chosen += [client for client in others if self.aggregator_of[client] == index]
        return sorted(chosen)

    def select(self, keys: Sequence[str]) -> Payload:
        return self.top.select(keys)

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return self.top.up_shapes()

    def weight(self, reply: Update, model: str, key: str) -> float:
        return self.of_client(reply.client).weight(reply, model, key)

    def accumulate(self, reply: Update) -> None:
        self.of_client(reply.client).accumulate(reply)

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        self.of_client(reply.client).observe(reply, start)

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        for index, own in self._dispatches(dispatches).items():
            self.aggregators[index].started(round, own)

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        for index, own in self._dispatches(dispatches).items():
            self.aggregators[index].received(round, own)

    def _dispatches(self, dispatches: Sequence[Download]) -> dict[int, list[Download]]:
        by_client = {dispatch.client: dispatch for dispatch in dispatches}
        groups = by_aggregator(self.aggregator_of, [dispatch.client for dispatch in dispatches])
        return {index: [by_client[client] for client in own] for index, own in groups.items()}

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
        by_client = {outcome.dispatch.client: outcome for outcome in outcomes}
        rows: list[NamedTuple] = []
        for index, own in by_aggregator(self.aggregator_of, list(by_client)).items():
            rows += self.aggregators[index].feedback(round, [by_client[client] for client in own])
        return rows

    def evaluation_model(self, client: int) -> Payload | LaterPayload:
        return self.of_client(client).evaluation_model(client)

    def global_evaluation_model(self) -> Payload:
        return self.top.global_evaluation_model()

    def own_evaluation_models(self) -> list[tuple[list[int], Payload]]:
        """(aggregators, model) of those whose models are not the server's; the same ones, as of aggregators that have
        met what is above them, are together."""
        together: dict[tuple[tuple[str, str, bytes], ...], tuple[list[int], Payload]] = {}
        for index in sorted(self._own):
            payload = self.aggregators[index].global_evaluation_model()
            same = tuple((slot, key, vector.version) for slot, key, vector in vectors(payload))
            together.setdefault(same, ([], payload))[0].append(index)
        return list(together.values())

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Each aggregator that has got updates makes a step."""
        for index, aggregator in enumerate(self.aggregators):
            for place, total in aggregator.sums.items():
                assert not isinstance(total.weight, np.ndarray), place
                self._weigh(0, place, index, self._partial.get(index, total.weight))
            if aggregator.sums:
                aggregator.step()
                self._own.add(index)
        self._partial.clear()
        self._collect()

    def _weigh(self, tier: int, place: tuple[str, str], index: int, weight: float) -> None:
        self._weights[tier].setdefault(place, np.zeros(self._parents[tier].size))[index] += weight

    def accumulate_sums(self, totals: Totals, clients: Sequence[int]) -> None:
        """The sums of one aggregator's clients, whose weights add up to 1."""
        (index,) = by_aggregator(self.aggregator_of, clients)
        self.aggregators[index].accumulate_sums(totals, clients)
        self._partial[index] = sum(self._weight(client) for client in clients)

    def meet(self, tier: int, present: NDArray[np.bool_]) -> None:
        """Aggregators of a tier meet what is above them; those of the tiers below have met them in this round.

        ``present``: (aggregators,) those whose models count. All of them, and those below them, go on from the new
        models. Above the last tier the server makes its step.
        """
        parents, weights = self._parents[tier], self._weights[tier]
        is_last = tier + 1 == len(self._parents)
        above = [self.top.models] if is_last else self._between[tier]
        for parent in range(len(above)):
            sums = self.top.sums if is_last else defaultdict[tuple[str, str], WeightedSum](WeightedSum)
            for index in np.flatnonzero((parents == parent) & present).tolist():
                own = self.aggregators[index].models if tier == 0 else self._between[tier - 1][index]
                own = self._sent(own, above[parent], tier, index)
                for place, each in weights.items():
                    if each[index] > 0:
                        name, key = place
                        sums[place].add(own[name][key].data, float(each[index]))
                        if not is_last:
                            self._weigh(tier + 1, place, parent, float(each[index]))
            if is_last:  # the mean, and the server optimizer's step: the method's own was each aggregator's
                self.top.step_scale = 1.0
                ServerStrategy.step(self.top)
                above[parent] = self.top.models
            else:
                models = {name: dict(model) for name, model in above[parent].items()}
                for (name, key), total in sums.items():
                    mean = total.mean()
                    assert mean is not None, key
                    models[name][key] = Vector(mean)
                above[parent] = models
        weights.clear()
        self._meetings += 1
        self._go_on(tier, above)
        self._carry(tier, present)

    def mix(self, index: int, mixing: float) -> None:
        """The server mixes the models of one aggregator of the only tier into its own, which go on from the result.

        ``mixing``: a of (1 - a) w + a w_aggregator, the mean that the server optimizer gets; 0: none has arrived.
        """
        before = self.top.models
        if mixing > 0:
            own = self._sent(self.aggregators[index].models, self._came.get(index, before), 0, index)
            for (name, key), each in self._weights[0].items():
                if each[index] > 0:
                    if mixing < 1:
                        self.top.sums[name, key].add(before[name][key].data, 1 - mixing)
                    self.top.sums[name, key].add(own[name][key].data, mixing)
            self.top.step_scale = 1.0
            ServerStrategy.step(self.top)
            self._meetings += 1
        for each in self._weights[0].values():
            each[index] = 0.0
        for other in range(len(self.aggregators)) if self._codec is not None else ():
            self._came.setdefault(other, before)
        self._came.pop(index, None)
        self._carry_one(index, mixing > 0)
        self.aggregators[index].models = dict(self.top.models)
        self._own = set(range(len(self.aggregators))) - {index}
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

    def _go_on(self, tier: int, above: Sequence[Models]) -> None:
        """The aggregators of a tier, and those below them, go on from the models above them."""
        for lower in range(tier, 0, -1):
            self._between[lower - 1] = above = [above[parent] for parent in self._parents[lower].tolist()]
        for aggregator, parent in zip(self.aggregators, self._parents[0].tolist(), strict=True):
            aggregator.models = dict(above[parent])
        self._own = set() if tier + 1 == len(self._parents) else set(range(len(self.aggregators)))
        self._collect()

    def _carry(self, tier: int, arrived: NDArray[np.bool_]) -> None:
        """Let all of a tier, and those below it, go on with what is carried above it once some of it has arrived."""
        if not self.top.carried():
            return
        is_last = tier + 1 == len(self._parents)
        stands = [[aggregator.carried() for aggregator in self.aggregators], *self._carried, [self.top.carried()]]
        above, counts = stands[tier + 1], [len(self.setup.samples)] if is_last else self._members[tier + 1].tolist()
        after = []
        for parent, (before, count) in enumerate(zip(above, counts, strict=True)):
            indices = np.flatnonzero((self._parents[tier] == parent) & arrived).tolist()
            after.append(self._mean_carried(before, stands[tier], tier, indices, count))
        if is_last:
            self.top.carry(after[0])
        else:
            self._carried[tier] = after
        for lower in range(tier, -1, -1):
            moved = [
                after[parent] if lower == tier and arrived[index] else _moved(own, above[parent], after[parent])
                for index, (own, parent) in enumerate(zip(stands[lower], self._parents[lower].tolist(), strict=True))
            ]
            if lower:
                self._carried[lower - 1] = moved
            else:
                for aggregator, own in zip(self.aggregators, moved, strict=True):
                    aggregator.carry(own)
            above, after = stands[lower], moved

    def _carry_one(self, index: int, has_arrived: bool) -> None:
        """The same when one aggregator alone goes on: what it has learned since it came counts by its clients, not less
        for its staleness."""
        before, own = self.top.carried(), self.aggregators[index].carried()
        start = self._came_with.pop(index, before)
        if not before or not has_arrived:
            self.aggregators[index].carry(_moved(own, start, before))
            return
        share, after = int(self._members[0][index]) / len(self.setup.samples), dict[str, dict[str, Vector]]()
        for slot, key, vector in vectors(before):
            change = own[slot][key].data.astype(np.float64) - start[slot][key].data
            after.setdefault(slot, {})[key] = Vector((vector.data + share * change).astype(np.float32))
        self.top.carry(after)
        self.aggregators[index].carry(after)
        for other in set(range(len(self.aggregators))) - {index}:
            self._came_with.setdefault(other, before)

    def _mean_carried(
        self, before: Payload, below: Sequence[Payload], tier: int, indices: Sequence[int], count: int
    ) -> Payload:
        """The mean over ``count`` clients, of which those below these aggregators of a tier have theirs."""
        weights = self._members[tier][list(indices)].tolist()
        after = {slot: dict(named) for slot, named in before.items()}
        for slot, key, vector in vectors(before if indices else {}):
            total = WeightedSum()
            total.add(vector.data, float(count - sum(weights)))
            for index, weight in zip(indices, weights, strict=True):
                total.add(below[index][slot][key].data, float(weight))
            mean = total.mean()
            assert mean is not None, key
            after[slot][key] = Vector(mean)
        return after

    def take_logged(self) -> dict[str, float]:
        """Of each name the mean over the aggregators that have logged it."""
        found: dict[str, list[float]] = {}
        for server in (self.top, *self.aggregators):
            for name, value in server.take_logged().items():
                found.setdefault(name, []).append(value)
        return {name: float(np.mean(values)) for name, values in found.items()}

    # --- what a checkpoint has beside the models ----------------------------------------------------------------------

    def state(self) -> State:
        state: State = {f"{TOP}{name}": array for name, array in self.top.state().items()}
        state[MEETINGS] = np.array([self._meetings])
        for index, aggregator in enumerate(self.aggregators):
            state |= {f"{AGGREGATOR}{index}/{name}": array for name, array in aggregator.state().items()}
        for tier, weights in enumerate(self._weights):
            state |= {f"{WEIGHT}{tier}|{name}|{key}": each for (name, key), each in weights.items()}
        for tier, between in enumerate(self._between):  # those that meet the server next have other models until then
            for index, models in enumerate(between):
                if self._own and models is not self.top.models:
                    state |= {
                        f"{BETWEEN}{tier}|{index}|{name}|{key}": vector.data
                        for name, model in models.items()
                        for key, vector in model.items()
                    }
        for tier, carried in enumerate((self._came_with, *map(dict, map(enumerate, self._carried)))):
            for index, payload in carried.items():
                state |= {f"{CARRIED}{tier}|{index}|{slot}|{key}": each.data for slot, key, each in vectors(payload)}
        for index, models in self._came.items():
            state |= {
                f"{CAME}{index}|{name}|{key}": vector.data
                for name, model in models.items()
                for key, vector in model.items()
            }
        return state

    def restore(self, models: Models, state: State) -> None:
        server = {name: model for name, model in models.items() if not name.startswith(AGGREGATOR)}

        def under(prefix: str) -> State:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self.top.restore(server, under(TOP))
        self._meetings = int(state[MEETINGS][0])
        self._between = [[self.top.models] * len(each) for each in self._between]
        self._own = set()
        for index, aggregator in enumerate(self.aggregators):
            whose = f"{AGGREGATOR}{index}"
            own = {
                GLOBAL if name == whose else name.removeprefix(f"{whose}/"): model
                for name, model in models.items()
                if name == whose or name.startswith(f"{whose}/")
            }
            if own:
                self._own.add(index)
            aggregator.restore(own or server, under(f"{whose}/"))
        for text, array in under(WEIGHT).items():
            tier, name, key = text.split("|")
            self._weights[int(tier)][name, key] = np.array(array, np.float64)
        for text, array in under(BETWEEN).items():
            tier, number, name, key = text.split("|")
            before = self._between[int(tier)][int(number)]
            changed = {each: dict(model) for each, model in before.items()}
            changed[name][key] = Vector(np.asarray(array, np.float32))
            self._between[int(tier)][int(number)] = changed
        carried: dict[tuple[int, int], Payload] = {}
        for text, array in under(CARRIED).items():
            tier, number, slot, key = text.split("|")
            whole = carried.setdefault((int(tier), int(number)), {})
            whole.setdefault(slot, {})[key] = Vector(np.asarray(array, np.float32))
        self._came_with = {index: whole for (at, index), whole in carried.items() if at == 0}
        for at, of_tier in enumerate(self._carried, start=1):
            of_tier[:] = [carried.get((at, index), before) for index, before in enumerate(of_tier)]
        self._came = {}
        for text, array in under(CAME).items():
            number, name, key = text.split("|")
            self._came.setdefault(int(number), {}).setdefault(name, {})[key] = Vector(np.asarray(array, np.float32))
        self._collect()


def _moved(own: Payload, before: Payload, after: Payload) -> Payload:
    """What is carried at an aggregator when ``after`` is in place of ``before``, which it went on with: with the same
    difference from it."""
    moved: Payload = {}
    for slot, key, vector in vectors(own):
        start, end = before[slot][key], after[slot][key]
        if vector is not start:
            differs = vector.data != start.data
            moved_by = vector.data.astype(np.float64) - start.data
            # Where nothing has changed, also the sign of 0 is that above.
            end = Vector(np.where(differs, end.data + moved_by, end.data).astype(np.float32))
        moved.setdefault(slot, {})[key] = end
    return moved
