"""The aggregators of a run with tiers between its rounds: who takes part, when each is ready, and their messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import ServerStrategy
from coordinator.aggregation.tiers import TieredServer, by_aggregator
from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import LAN, SERVER_LINK, WAN, AggregatorRow
from coordinator.rounds.budget import CLIENTS, RunLimits
from coordinator.rounds.ports import Arrays
from coordinator.rounds.stations import RoundEnd, Stations
from coordinator.rounds.tier_schedule import TierSchedule
from costmodel.fleet.availability import first_available

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Clock
    from costmodel.tiers import TierClock, TierMessages

UP_SIDE, DOWN_SIDE = "up", "down"
"""Directions of messages between an aggregator and what is above it"""
TIERS = "tiers|"
"""Prefix of the names of the tiers' arrays in a checkpoint"""
CHARGED, UPDATED, CLOCK = "charged ", "updated ", "clock "
"""Prefixes of names in `Tiers.state`"""


class Tiers(Stations):
    """The aggregators of one run as its stations. They wait for each other when they meet what is above them.

    Each has rounds of its own: its visits begin when it is ready, go over its own network (`fleet.tiers`), and its step
    waits for its own clients alone, as the round policy says. In the ledger the k-th rounds of all aggregators are one
    round, which ends when the last of them does; so it may begin, with its first visit, before the round before it has
    ended. After ``tiers.interval`` rounds the aggregators send their models up (HierFAVG's kappa_2; with a tier above
    them, this meets the server after as many meetings as the second number says). The server makes its step when the
    last model has come, which ends the round. Its model goes down when the next round begins, or when it is evaluated
    on clients at a cost, to the aggregators that take part until they meet again; so the initial model does before the
    first.

    A round that would end after the budget of virtual seconds is charged until then, and changes nothing: a step in
    part would still have to reach the server. Late visits to an aggregator go on with its next visits.

    Subclasses can customise by overriding

    - ``begin_round``: who begins a round;
    - ``give_up``, ``is_awaited`` and ``ended_by``: what follows if nobody can;
    - ``make_steps``: what is sent after the steps of a round;
    - ``state`` and ``restore``, with what they remember.
    """

    steps_in_part = False

    def __init__(
        self,
        schedule: TierSchedule,
        clients: Clock,
        clock: TierClock,
        aggregator_of: NDArray[np.intp],
        nbytes: Mapping[str, int],
        prices: Sequence[float],
        draw: Callable[[int], np.random.Generator],
        limits: RunLimits,
        on_loss: str = "wait",
        evaluates_between: bool = False,
    ) -> None:
        """``clients``: the clock of visits. ``aggregator_of``: (clients,). ``nbytes``: direction -> bytes of a message
        between an aggregator and what is above it. ``prices``: of a gigabyte, by tier. ``draw``: round -> generator of
        the aggregators that take part from it on. ``limits``: of all messages. ``on_loss``: as ``fleet.tiers.on_loss``.
        ``evaluates_between``: whether there is something to evaluate while aggregators have models of their own."""
        intervals = (*schedule.intervals, 1)[: clock.levels]
        self.schedule, self.clock = replace(schedule, interval=intervals), clock
        self.is_asynchronous = schedule.is_asynchronous
        super().__init__(clients)
        self.home, self.nbytes = aggregator_of, nbytes
        self.aggregator_of = aggregator_of
        """(clients,) in this round; -1: none. At ``home`` but for those whose aggregator is away"""
        self.on_loss, self.evaluates_between = on_loss, evaluates_between
        self.clients = by_aggregator(aggregator_of, range(aggregator_of.size))
        """Aggregator -> the clients that belong to it"""
        self.limits, self._prices, self._draw = limits, prices, draw
        size = clock.sizes[0]
        self.ready = np.zeros(size)
        """(aggregators,) absolute seconds at which each of the lowest tier can begin its next round; inf: never"""
        self.present = np.ones(size, bool)
        """(aggregators,) those that take part until all meet the server"""
        self.begins = np.zeros(size, bool)
        """(aggregators,) those that take part in this round"""
        self.waits = np.zeros(size, bool)
        """(aggregators,) those that have made all steps before they meet what is above them"""
        self.together = True
        """Whether all wait for the server's model"""
        self._met = 0
        """Meetings of the lowest tier so far"""
        self._rounds, self._came = np.zeros(size, np.int64), np.zeros(size)
        """(aggregators,) rounds of each since its models came down, and when they did, absolute seconds"""
        self._updated = [np.zeros(each, bool) for each in clock.sizes]
        """Of each tier, (aggregators,) those that have got updates, or those below them, since they last met"""
        self._charged = [np.zeros(each) for each in clock.sizes]
        """Of each tier, (aggregators,) absolute seconds until which their waiting is charged"""
        self.spent_bytes, self.spent_price = 0, 0.0
        self._now = 0.0
        """Absolute seconds at which the round before this one has ended"""

    @property
    def least(self) -> tuple[int, float]:
        """(bytes, price) of the messages between two steps of the server."""
        nbytes, price, last = 0, 0.0, self.schedule.steps_above(self.clock.levels - 1)
        for tier, size in enumerate(self.clock.sizes):
            often = last // self.schedule.steps_above(tier)
            each = self.nbytes[UP_SIDE] + self.nbytes[DOWN_SIDE]
            messages = often * self.schedule.taking_part(tier, size)
            nbytes += messages * each
            price += messages * each / 1e9 * self._prices[tier]
        return nbytes, price

    def choose(self, round: int) -> None:
        """Choose the aggregators that take part from a round on."""
        draw, sizes = self._draw(round), self.clock.sizes
        order = draw.permutation(sizes[0])
        for tier in range(1, len(sizes)):  # of one tier above: only those below its chosen ones
            chosen = draw.permutation(sizes[tier])[: self.schedule.taking_part(tier, sizes[tier])]
            order = order[np.isin(self.clock.parent(tier - 1)[order], chosen)]
        self.present = np.isin(np.arange(sizes[0]), order[: self.schedule.taking_part(0, sizes[0])])

    def open(self, record: RoundRecord, now: float) -> str | None:
        """Begin a round: send the server's models down to aggregators that wait for them; returns the rule that refuses
        this."""
        self._now = now
        if not self.together:
            return None
        rule = self.limits.refuses_messages(self.spent_bytes, self.spent_price, *self.least)
        if rule is None:
            self.choose(record.round)
            self.send_down(record, now)
        return rule

    def locate(self, server: ServerStrategy) -> None:
        self.begin_round()
        server.place(np.where(self.aggregator_of < 0, self.home, self.aggregator_of))

    def of(self, client: int) -> int:
        return int(self.aggregator_of[client])

    def by_station(self, clients: Sequence[int]) -> Mapping[int, Sequence[int]]:
        return by_aggregator(self.aggregator_of, clients)

    def taking_part(self, clients: list[int]) -> list[int]:
        return [client for client in clients if self.start(self.of(client)) < math.inf]

    def start(self, station: int) -> float:
        return float(self.ready[station]) if station >= 0 and self.begins[station] else math.inf

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        if self.visits_clock.is_there is None:
            return None
        return lambda client: self.is_there_at(client, self.start(self.of(client)))

    def is_there_at(self, client: int, time: float) -> bool:
        return self.visits_clock.fleet.behaviour.availability.interval(client, time)[0]

    def first_there(self, clients: Sequence[int], time: float) -> float:
        if self.visits_clock.is_there is None or time == math.inf:
            return time
        return first_available(self.visits_clock.fleet.behaviour.availability, clients, time)

    def wait(self, station: int, until: float) -> None:
        self.ready[station] = until

    def begin_round(self) -> None:
        """Find who takes part in a round, and where the clients of aggregators go that are away when theirs begins."""
        self.begins = self.present & ~self.waits & np.isfinite(self.ready)
        places = [
            index
            for index in np.flatnonzero(self.begins).tolist()
            if not self.clock.is_there(0, index, float(self.ready[index]))
        ]
        self.aggregator_of = self.home
        if self.on_loss == "wait":
            for index in places:
                self.ready[index] = self.clock.first_there(0, index, float(self.ready[index]))
            return
        there = self.begins.copy()
        there[places] = False
        if places:
            self.aggregator_of = self.home.copy()
        following = np.flatnonzero(there)
        for index in places:
            after = following[following > index] if (following > index).any() else following
            goes_to = after[0] if self.on_loss == "move" and after.size else -1
            self.aggregator_of[self.home == index] = goes_to

    @property
    def is_awaited(self) -> bool:
        waits = self.waits & self.present & np.isfinite(self.ready)
        return bool(waits.any()) or any(updated.any() for updated in self._updated[1:])

    def give_up(self) -> bool:
        if not (self.is_awaited and self.begins.any()):
            return False
        self.waits |= self.begins
        return True

    def ended_by(self) -> str:
        return CLIENTS

    def _present_at(self, tier: int) -> NDArray[np.bool_]:
        """Those of a tier below which somebody takes part."""
        present = self.present
        for lower in range(tier):
            above = np.zeros(self.clock.sizes[lower + 1], bool)
            above[self.clock.parent(lower)[present]] = True
            present = above
        return present

    def send_down(self, record: RoundRecord, now: float, is_second: bool = False) -> None:
        """Send the server's models to the aggregators that take part, tier by tier, from now on. ``is_second``: as of
        `_down`."""
        ready, never = np.full(1, now), [np.full(size, math.inf) for size in self.clock.sizes]
        for tier in reversed(range(self.clock.levels)):
            ready = self._down(record, tier, ready, never[tier], is_second)
        self._begin(ready)

    def _begin(self, ready: NDArray[np.float64]) -> None:
        """Models have come down."""
        self.ready, self._came, self.together = ready, ready.copy(), False
        self._rounds[:], self.waits[:] = 0, False

    def _down(
        self,
        record: RoundRecord,
        tier: int,
        above: NDArray[np.float64],
        otherwise: NDArray[np.float64],
        is_second: bool = False,
    ) -> NDArray[np.float64]:
        """When the aggregators of a tier have got what those above send from ``above`` on; inf: they send nothing.

        ``otherwise``: of those that get nothing. ``is_second``: after a meeting, in a round that may have begun with
        another message down.
        """
        begin = above[self.clock.parent(tier)]
        present = self._present_at(tier) & np.isfinite(begin)
        messages = self.clock.down(tier, begin, present, self.nbytes[DOWN_SIDE], record.round, is_second=is_second)
        self._record(record, tier, DOWN_SIDE, messages, present)
        return np.where(present, messages.end, otherwise)

    def begin_evaluation(self, record: RoundRecord, now: float) -> Mapping[int, float]:
        """Where all wait for the server's model, it goes down now, unless budgets refuse the next messages."""
        if self.together:
            if self.limits.refuses_messages(self.spent_bytes, self.spent_price, *self.least) is not None:
                return {}
            self.choose(record.round + 1)  # as the next round would
            self.send_down(record, now, is_second=True)
        starts = {
            index: self.clock.first_there(0, index, float(self.ready[index]))
            for index in np.flatnonzero(self.present & np.isfinite(self.ready)).tolist()
        }
        return {index: start for index, start in starts.items() if start < math.inf}

    def end_evaluation(self, station: int, end: float) -> None:
        self.ready[station] = max(end, float(self.ready[station]))

    def last(self, record: RoundRecord, ends: Mapping[int, float]) -> int | None:
        latest = dict(ends)
        for row in record.aggregators:
            if row.tier == 0 and row.direction == UP_SIDE and row.aggregator in latest:
                latest[row.aggregator] = row.end_s or latest[row.aggregator]
        return super().last(record, latest)

    def saved_above(self, record: RoundRecord, station: int) -> dict[str, float]:
        saved = dict.fromkeys((WAN, SERVER_LINK, LAN), 0.0)
        for row in record.aggregators:
            if row.end_s and self._is_on_way(station, row):
                saved[WAN] += (row.end_s - row.start_s - row.held_s) / 2
                above = SERVER_LINK if row.tier == self.clock.levels - 1 else LAN
                saved[above] += min(row.held_s / 2, row.shared_s)
        return saved

    def _is_on_way(self, index: int, row: AggregatorRow) -> bool:
        """Whether a message is of this aggregator of the lowest tier, or of one above it."""
        for tier in range(row.tier):
            index = int(self.clock.parent(tier)[index])
        return row.aggregator == index

    def note_updates(self, stations: Iterable[int]) -> None:
        self._updated[0][list(stations)] = True

    def beginning(self, index: int, time: float) -> float:
        """When a round of an aggregator begins that is ready at ``time``: when one of its clients is there."""
        return self.first_there(self.clients.get(index, []), time)

    def make_steps(self, record: RoundRecord, ends: Mapping[int, float]) -> RoundEnd:
        """Aggregators have made their steps; all meet what is above them if none is to begin another round before.

        One without visits goes on when the first other has made its step.
        """
        self.ready = np.where(self.begins, np.maximum(self.ready, min(ends.values(), default=-math.inf)), self.ready)
        for index, end in ends.items():
            self.ready[index] = end
        self._rounds += self.begins
        for index in np.flatnonzero(self.begins & np.isfinite(self.ready)).tolist():
            self.waits[index] = self._has_all_steps(index)
        ready = np.where(self.present, self.ready, math.inf)
        if (np.isfinite(ready) & ~self.waits).any():
            stepped = self.ready[self.begins & np.isfinite(self.ready)]
            return RoundEnd(float(stepped.max(initial=record.start)), is_new=False)
        arrivals, end = self.meet(record, ready)
        meetings = [partial(TieredServer.meet, tier=tier, present=arrived) for tier, arrived in enumerate(arrivals)]
        return RoundEnd(end, meetings, self.together and bool(arrivals[-1].any()))

    def _has_all_steps(self, index: int) -> bool:
        """Whether an aggregator has made its last step before it sends its model up."""
        if self.schedule.seconds:
            return self.beginning(index, float(self.ready[index])) >= float(self._came[index]) + self.schedule.seconds
        return bool(self._rounds[index] >= self.schedule.rounds)

    def meet(self, record: RoundRecord, ready: NDArray[np.float64]) -> tuple[list[NDArray[np.bool_]], float]:
        """Send models up as the schedule says after a round, and down again to tiers that do not meet the server.

        Only aggregators that have got updates since they last met send any. One above the lowest tier may have got them
        in earlier meetings: if nothing arrives in this one, it sends when the last of those below it is ready, or when
        the last message from them is lost. ``ready``: (aggregators,) when each of the lowest tier has made its step,
        inf for those that take no part. Returns (of each tier that meets what is above it, the aggregators whose models
        arrive; when the round ends).
        """
        self._met += 1
        meetings, arrivals, before = self.schedule.meetings(self._met), [], []
        end = float(ready[np.isfinite(ready)].max(initial=record.start))
        for tier in range(meetings):
            sent = np.isfinite(ready) & self._updated[tier]
            messages = self.clock.up(tier, ready, sent, self.nbytes[UP_SIDE], record.round)
            self._record(record, tier, UP_SIDE, messages, sent)
            arrived = sent & np.isfinite(messages.end)
            self._updated[tier][:] = False
            parent = self.clock.parent(tier)
            above = np.full(int(parent.max()) + 1, -math.inf)
            np.maximum.at(above, parent[arrived], messages.end[arrived])
            counts = np.bincount(parent[arrived], minlength=above.size)
            for index, count in enumerate(counts.tolist()):
                seconds = self.clock.aggregation_seconds(tier, count * self.nbytes[UP_SIDE], count)
                above[index] = above[index] + seconds if count else math.inf
            if tier + 1 < self.clock.levels:
                self._updated[tier + 1] |= counts > 0
            if tier + 1 < meetings:  # one to which nothing comes may have got updates in earlier meetings
                known = np.where(sent, messages.lost, ready)
                is_known = np.isfinite(known)
                waited = np.full(above.size, -math.inf)
                np.maximum.at(waited, parent[is_known], known[is_known])
                waited[waited == -math.inf] = self._now  # none below it has a model to go on from
                above = np.where((counts == 0) & self._updated[tier + 1], waited, above)
            arrivals.append(arrived)
            before.append(ready)
            ready = above
            end = float(ready[np.isfinite(ready)].max(initial=end))
        if meetings < self.clock.levels:
            for tier in reversed(range(meetings)):
                ready = self._down(record, tier, ready, before[tier], is_second=True)
            self._begin(ready)
        else:
            self.together = True
        return arrivals, end

    def _record(
        self, record: RoundRecord, tier: int, direction: str, messages: TierMessages, sent: NDArray[np.bool_]
    ) -> None:
        """Add the messages that were ``sent`` to the record, with the energy of waiting before them."""
        charged = self._charged[tier]
        for index in np.flatnonzero(sent).tolist():
            start, end = float(messages.start[index]), float(messages.end[index])
            idle = float(self.clock.idle_watts(tier)[index]) * max(start - float(charged[index]), 0.0)
            row = AggregatorRow(
                record.round,
                tier,
                index,
                direction,
                start,
                end if math.isfinite(end) else None,
                int(messages.nbytes[index]),
                float(messages.joules[index]),
                idle,
                float(messages.contention_seconds[index]),
                float(messages.price[index]),
                float(messages.held_seconds[index]),
            )
            record.aggregators.append(row)
            charged[index] = max(end if math.isfinite(end) else start, float(charged[index]))
            self.spent_bytes += row.nbytes
            self.spent_price += row.price

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What later rounds depend on, by name."""
        charged = {f"{CHARGED}{tier}": each for tier, each in enumerate(self._charged)}
        updated = {f"{UPDATED}{tier}": each for tier, each in enumerate(self._updated)}
        spent = np.array([self.spent_bytes, self.spent_price])
        own: dict[str, NDArray[np.generic]] = {"ready": self.ready, "present": self.present, "spent": spent}
        own |= {"waits": self.waits, "rounds": self._rounds, "came": self._came}
        own["met"] = np.array([self._met, self.together])
        return own | charged | updated | {f"{CLOCK}{name}": each for name, each in self.clock.state().items()}

    def restore(self, now: float, state: Arrays) -> None:
        """Inverse of `state`, at time ``now``."""
        self.ready = np.asarray(state["ready"], np.float64)
        self.present = np.asarray(state["present"], bool)
        self.waits, self._came = np.array(state["waits"], bool), np.array(state["came"], np.float64)
        self._rounds = np.array(state["rounds"], np.int64)
        self._met, self.together = int(state["met"][0]), bool(state["met"][1])
        nbytes, self.spent_price = np.asarray(state["spent"], np.float64).tolist()
        self.spent_bytes = int(nbytes)
        for tier in range(self.clock.levels):
            self._charged[tier] = np.array(state[f"{CHARGED}{tier}"], np.float64)
            self._updated[tier] = np.array(state[f"{UPDATED}{tier}"], bool)
        of_clock = {
            name.removeprefix(CLOCK): np.asarray(each, np.float64)
            for name, each in state.items()
            if name.startswith(CLOCK)
        }
        self.clock.restore(now, of_clock)
