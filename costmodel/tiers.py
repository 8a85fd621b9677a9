"""Aggregators between clients and the server: which clients belong to each, and the messages that they exchange with
what is above them.

Clients' visits to their aggregator are those of `costmodel.clock.Clock`, over the LANs of `Links.below`. Nothing here
knows when aggregators average, or what they send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.clock import Clock
from costmodel.config import FleetConfig
from costmodel.fleet.availability import first_available
from costmodel.fleet.csv_table import CsvTable
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.model_demand import fits
from costmodel.fleet.recorded_clients import members
from costmodel.network.bandwidth import DOWN, UP, Constant
from costmodel.network.links import Links
from costmodel.visits.messages import is_closed
from costmodel.visits.work import Works

GIGABYTE = 1e9

# --- which clients belong to each -------------------------------------------------------------------------------------


def assigned(
    config: FleetConfig,
    clients: int,
    histogram: NDArray[np.int64] | None = None,
    recorded: CsvTable | None = None,
) -> NDArray[np.intp]:
    """(clients,) The aggregator of each client, by ``fleet.tiers.assign``; but for a file's, as many to each.

    ``histogram``: (clients, classes) training examples, for ``alike`` and ``mixed``; ``recorded``:
    `FleetInputs.memberships`, for ``file``. Nothing is drawn. ValueError for cells that name no client or aggregator, a
    client twice, or leave one out.
    """
    count, numbers = config.tiers.count, np.arange(clients)
    assert 0 < count <= clients, (count, clients)
    if config.tiers.assign == "turn":
        return numbers % count
    if config.tiers.assign == "place":
        return numbers * count // clients
    if config.tiers.assign == "file":
        assert recorded is not None
        return members(recorded, "fleet.tiers.file", clients, tuple(map(str, range(count))))
    assert histogram is not None
    assert len(histogram) == clients, (histogram.shape, clients)
    if config.tiers.assign == "mixed":
        return _mixed(np.asarray(histogram, np.int64), count)
    aggregator_of = np.empty(clients, np.intp)
    aggregator_of[_by_label(histogram)] = numbers * count // clients
    return aggregator_of


def _by_label(histogram: NDArray[np.int64]) -> NDArray[np.intp]:
    """(clients,) Clients in order of their most frequent label, then of the next one; ties: the lower label first."""
    rows, rest = np.arange(len(histogram)), histogram.copy()
    first = rest.argmax(axis=1)
    rest[rows, first] = -1
    return np.lexsort((rest.argmax(axis=1), first))


def _mixed(histogram: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """(clients,) Each client, the largest first, to the aggregator with room whose labels it brings nearest to those of
    all clients: the least sum of squared differences.
    """
    clients = len(histogram)
    # count times (an aggregator's labels less its share of all labels): whole numbers, so that ties are exact.
    excess = np.tile(-histogram.sum(axis=0), (count, 1))  # (aggregators, classes)
    members = np.zeros(count, np.int64)
    least, more = divmod(clients, count)
    aggregator_of = np.empty(clients, np.intp)
    largest_first = np.argsort(-histogram.sum(axis=1), kind="stable")
    for place, client in enumerate(largest_first.tolist()):
        has_room = np.flatnonzero(members < least + (place >= clients - more))
        aggregator = has_room[(excess[has_room] * histogram[client]).sum(axis=1).argmin()]
        excess[aggregator] += count * histogram[client]
        members[aggregator] += 1
        aggregator_of[client] = aggregator
    return aggregator_of


def parents(config: FleetConfig) -> list[NDArray[np.intp]]:
    """Of each level, the lowest first, (aggregators,) the aggregator above each one; 0, the server, at the top."""
    sizes = [tier.count for tier in (config.tiers, config.tiers.above) if tier.count]
    return [np.arange(size) % above for size, above in zip(sizes, [*sizes[1:], 1], strict=True)]


# --- messages above clients -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TierMessages:
    """One message of each aggregator of a level; arrays of shape (aggregators,), times in absolute seconds.

    Of aggregators without a message, times are inf and costs 0.
    """

    start: Doubles
    end: Doubles
    """The time at which the last byte has arrived; inf where the aggregator was lost before"""
    lost: Doubles
    """The time at which the message lost its aggregator; inf: never"""
    nbytes: NDArray[np.int64]
    """Whole bytes sent, without headers"""
    joules: Doubles
    """Of the aggregator meanwhile: its radio or port, and its baseline"""
    contention_seconds: Doubles
    """Seconds lost to other messages over the same links"""
    held_seconds: Doubles
    """Seconds for which these links set the rate of the message"""
    price: Doubles
    """Of these bytes, in the currency of ``fleet.tiers.price``"""


class TierClock:
    """The virtual time and cost of messages between aggregators and what is above them, level by level.

    Level 0 is that of the clients' aggregators (``fleet.tiers``); above it there may be one more
    (``fleet.tiers.above``). Each level is a fleet of its own with a clock of its own: an aggregator's network is its
    way up (WAN), and a message up or down a visit without computing. Its draws are keyed by the level, so that clients
    have the draws that they have without tiers.

    All messages of a call share the links of their level max-min fair: the server's link at the top, and the LANs of
    the aggregators above where there are some. A LAN and a WAN have no link in common, nor have two levels: so the
    level-by-level solution is the solution of all flows together, clients' messages included. Messages of two calls do
    not contend, so all that may be under way at the same time in one direction belong into one call.

    An aggregator has at most two messages in each direction in a ``round``, of which the second is marked by
    ``is_second``: each has draws of its own.
    """

    def __init__(self, config: FleetConfig, clocks: tuple[Clock, ...]) -> None:
        """``clocks``: of the levels, the lowest first."""
        self._clocks, self._parents = clocks, parents(config)
        self._prices = (config.tiers.price, config.tiers.above.price)

    @classmethod
    def build(cls, config: FleetConfig, *, streams: Streams, inputs: FleetInputs | None = None) -> TierClock:
        """Draw the aggregators; ``streams`` and ``inputs`` are those of the clients' fleet. ValueError as of
        `Fleet.build`."""
        inputs = inputs or FleetInputs()
        rows_alone = FleetInputs(inputs.devices, inputs.networks)
        tiers = [tier for tier in (config.tiers, config.tiers.above) if tier.count]
        clocks = []
        for level, tier in enumerate(tiers):
            table = replace(
                tier.fleet(config.server, config.transport, config.scale, config.seed),
                trace_assign=config.trace_assign,
                radio_energy=config.radio_energy,
            )
            recorded = rows_alone if level or inputs.aggregators is None else inputs.aggregators
            try:
                fleet = Fleet.build(tier.count, table, streams=_of_level(level, streams), inputs=recorded)
            except ValueError as error:
                raise ValueError(f"fleet.tiers{'.above' * level}: {error}") from None
            for above in tiers[level + 1 : level + 2]:
                fleet = replace(fleet, links=Links.below(above, config.transport).times(config.scale))
                fleet.links.check("fleet.scale")
            clocks.append(Clock(fleet))
        return cls(config, tuple(clocks))

    @property
    def levels(self) -> int:
        """Levels of aggregators."""
        return len(self._clocks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of aggregators of each level, the lowest first."""
        return tuple(len(clock.fleet) for clock in self._clocks)

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """The aggregators of each level, the lowest first."""
        return tuple(clock.fleet for clock in self._clocks)

    def fleet(self, level: int) -> Fleet:
        """The aggregators of a level."""
        return self._clocks[level].fleet

    def parent(self, level: int) -> NDArray[np.intp]:
        """(aggregators,) The aggregator above each one; 0, the server, at the top."""
        return self._parents[level]

    # --- messages -------------------------------------------------------------------------------------------------

    def up(
        self,
        level: int,
        ready: Doubles,
        which: NDArray[np.bool_],
        nbytes: int,
        round: int,
        *,
        is_second: bool = False,
    ) -> TierMessages:
        """Send ``nbytes`` from each aggregator of ``which`` (aggregators,) up, from ``ready`` on (absolute seconds).

        One that is ready at inf sends nothing. A connection that was lost, or never was, is made first.
        """
        return self._messages(UP, level, ready, which, nbytes, round, is_second)

    def down(
        self,
        level: int,
        begin: Doubles,
        which: NDArray[np.bool_],
        nbytes: int,
        round: int,
        *,
        is_second: bool = False,
    ) -> TierMessages:
        """Send ``nbytes`` down to each aggregator of ``which``, with the arguments of `up`."""
        return self._messages(DOWN, level, begin, which, nbytes, round, is_second)

    def _messages(
        self,
        direction: int,
        level: int,
        begin: Doubles,
        which: NDArray[np.bool_],
        nbytes: int,
        round: int,
        is_second: bool,
    ) -> TierMessages:
        clock, begins = self._clocks[level], np.asarray(begin, np.float64)
        behaviour, links = clock.fleet.behaviour, clock.fleet.links
        chosen = np.flatnonzero(which & (begins < math.inf))
        conditions, starts = clock.conditions(chosen, round, order=int(is_second)), begins[chosen]
        sent, none = np.full(chosen.size, nbytes, np.int64), np.zeros(chosen.size, np.int64)
        nothing = np.zeros(chosen.size)
        works = Works(*((none, sent) if direction == UP else (sent, none)), nothing, none, nothing)
        # A visit connects with its download. Without one, a client's upload goes over the connection that it has.
        is_new = (conditions.last_down <= behaviour.since(conditions, starts)) & (direction == UP)
        is_new &= ~np.asarray(is_closed(starts, conditions.last_message, links.transport))
        handshake = np.where(is_new, links.transport.connect_round_trips * conditions.rtt, 0.0)
        timeline = clock.solve(starts + handshake, works, conditions)
        joules = timeline.joules_spent + conditions.transmit_watts * handshake
        # An upload leaves the sender above as idle as it was.
        kept = np.full(chosen.size, direction == UP) & ~is_new
        clock.passed(conditions, replace(timeline, down_end=np.where(kept, math.inf, timeline.down_end)))
        delivered = timeline.bytes_up if direction == UP else timeline.bytes_down
        everyone = partial(_scattered, len(clock.fleet), chosen)
        return TierMessages(
            start=everyone(starts, math.inf),
            end=everyone(timeline.up_end, math.inf),
            lost=everyone(timeline.lost, math.inf),
            nbytes=everyone(delivered, 0).astype(np.int64),
            joules=everyone(joules, 0.0),
            contention_seconds=everyone(timeline.contention_seconds, 0.0),
            held_seconds=everyone(
                timeline.access_down + timeline.access_up + timeline.server_down + timeline.server_up, 0.0
            ),
            price=everyone(delivered * (self._prices[level] / GIGABYTE), 0.0),
        )

    def aggregation_seconds(self, level: int, nbytes: int, count: int) -> float:
        """Virtual seconds that what is above a level needs to handle ``count`` updates of ``nbytes`` together."""
        return self.fleet(level).links.handling_seconds(nbytes, count)

    # --- aggregators ----------------------------------------------------------------------------------------------

    def needed_rate(self, level: int, direction: int) -> float:
        """Bit/s with which what is above a level delays no message, whenever they are sent; inf where rates vary."""
        fleet = self.fleet(level)
        if not isinstance(fleet.behaviour.variation, Constant):
            return math.inf
        return float((fleet.up if direction == UP else fleet.down).sum())

    def idle_watts(self, level: int) -> Doubles:
        """(aggregators,) The baseline of each device, which it draws at all times."""
        fleet = self.fleet(level)
        return np.array([device.idle_watts for device in fleet.devices], np.float64)[fleet.device_of]

    def is_there(self, level: int, aggregator: int, time: float) -> bool:
        """Whether an aggregator is available at ``time``, absolute seconds."""
        return self.fleet(level).behaviour.availability.interval(aggregator, time)[0]

    def first_there(self, level: int, aggregator: int, time: float) -> float:
        """The time, ``time`` at the earliest, at which an aggregator is available; inf: never again."""
        return first_available(self.fleet(level).behaviour.availability, [aggregator], time)

    def check_memory(self, level: int, needed_bytes: int) -> list[str]:
        """The names of the level's devices that cannot hold ``needed_bytes``."""
        return [device.name for device in self.fleet(level).devices if not fits(needed_bytes, device.memory_bytes)]

    # --- state ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Doubles]:
        """The state that later messages depend on, by name with its level before it: (aggregators, ..) each."""
        levels = enumerate(self._clocks)
        return {f"tier{level}/{name}": array for level, clock in levels for name, array in clock.state().items()}

    def restore(self, now: float, state: Mapping[str, Doubles]) -> None:
        """Set the state of `state`, at time ``now``."""
        for level, clock in enumerate(self._clocks):
            prefix = f"tier{level}/"
            own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            clock.restore(now, own)


def _of_level(level: int, streams: Streams) -> Streams:
    """Streams of a level, under purposes of its own."""
    return lambda purpose, index, client: streams(f"tier {level}: {purpose}", index, client)


def _scattered(
    aggregators: int, chosen: NDArray[np.intp], values: NDArray[np.number[Any]], otherwise: float
) -> Doubles:
    """(aggregators,) ``values`` of those chosen, ``otherwise`` of the others."""
    everyone = np.full(aggregators, otherwise)
    everyone[chosen] = values
    return everyone
