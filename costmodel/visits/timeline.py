"""The timelines and costs of a batch of visits: each a download, then computing, then an upload.

Where a visit exchanges messages while it computes (`costmodel.visits.exchange`), these are a part of its computing.

The visits of a batch are solved together in numpy, link by link: downloads, computing and uploads wait for each other
only within a visit. Where access points share air, downloads compete with uploads, and where a shared link is much
slower in one direction, acknowledgements do (`costmodel.network.duplex`): `costmodel.visits.event_driver` solves such
batches. `costmodel.clock` simulates the same visits one by one and agrees to the bit. Nothing here reads the
host's clock.

A message begins to flow after the handshake of its connection (`costmodel.network.tcp`), at once or with slow start
(`costmodel.network.senders`), flows over the shared links (`costmodel.network.transfers`), and takes half a round-trip
time more. A message of no bytes takes no time. The download opens the connection: a visit without one uploads over a
connection taken as open. A connection that has not been used for `Transport.reconnect` is closed, and set up again by
the next message, also by an upload after as much computing. An idle radio that connects first (`Transport.promotion`)
delays the handshake.

A battery limits computing and both messages, but not the radio's tails, nor what a device draws while it waits or is
away: these are charged after the visit. The joules per bit of a message are reserved before it begins: a message that
the battery cannot pay for never begins.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.network.senders import Path
from costmodel.network.transfers import SenderNumbers, TransferTimes, transfer_batch
from costmodel.visits.accounting import ComputePhase, Timeline, Transfer, account_visits, computing_watts, radio_joules
from costmodel.visits.event_driver import solve_by_events
from costmodel.visits.exchange import exchange_times
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.messages import Flows, battery_cut, flows, is_closed, message_conditions
from costmodel.visits.work import Works

__all__ = ["Timeline", "solve", "solve_beside"]


def solve(
    starts: ArrayLike,
    works: Works,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics | None = None,
    until: float = math.inf,
) -> Timeline:
    """The timeline of a batch of visits until ``until``, absolute seconds."""
    return solve_beside(None, starts, works, conditions, links, behaviour, until).timeline


def solve_beside(
    leftovers: Leftovers | None,
    starts: ArrayLike,
    works: Works,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics | None = None,
    until: float = math.inf,
    goes_on: bool = False,
) -> Solution:
    """`solve`, while ``leftovers`` go on beside these visits; their clients are not among those of the visits.

    ``goes_on``: whether visits that are cut may go on after ``until``.
    """
    behaviour = behaviour or ClientDynamics()
    start = np.asarray(starts, np.float64)
    assert start.shape == (len(works),) == (len(conditions),), (start.shape, len(works), len(conditions))
    assert np.isfinite(start).all(), start
    if links.by_events and len(works):
        assert leftovers is None, "leftovers where messages share air or windows"
        return Solution(solve_by_events(start, works, conditions, links, behaviour, until))
    visits = len(works)
    if leftovers is not None:
        start, works = np.concatenate((start, leftovers.start)), works.followed_by(leftovers.works)
        conditions = conditions.followed_by(leftovers.conditions)
    messages = _Messages(links, behaviour, leftovers, goes_on)
    lost = behaviour.losses(conditions, start)
    used = conditions.last_message if links.transport.depends_on_disuse else conditions.last_down
    connections = conditions
    if links.transport.reconnect < math.inf:
        connections = conditions.disconnected(np.asarray(is_closed(start, used, links.transport)))
    cut, charge, more = np.minimum(lost, until), conditions.charge, (connections, links, behaviour, messages)
    down = _transfer(DOWN, start, used, works.message_down.astype(np.float64), cut, charge, *more)
    seconds = conditions.compute_seconds(works.flops, works.steps, works.codec_seconds)
    exchange = exchange_times(works, conditions, links, seconds)
    if exchange is not None:
        seconds = seconds + exchange.seconds
    charge = charge - radio_joules(DOWN, down, conditions)
    watts = computing_watts(conditions, exchange, seconds)
    flat = battery_cut(cut, down.end, charge, watts, partial(behaviour.after, conditions))
    compute_end, computed = behaviour.computing(conditions, down.end, seconds)
    computing = ComputePhase(down.end, flat, _by(flat, compute_end), seconds, computed, exchange)
    charge = charge - watts * computed
    if links.transport.depends_on_disuse:
        used = np.where(works.message_down > 0, down.end, used)
        if works.exchanges is not None:
            used = np.where(works.exchanges.trips > 0, computing.end, used)
    up = _transfer(UP, computing.end, used, works.message_up.astype(np.float64), cut, charge, *more)
    if links.transport.reconnect < math.inf:
        renewed = is_closed(up.begin, used, links.transport) & (works.message_up > 0)
        down = replace(down, threshold=np.where(renewed, math.inf, down.threshold))
    # Those that go on are solved direction by direction, and so are the visits beside them.
    is_alone = leftovers is None and not goes_on
    if links.held_up is not None and is_alone and _meet(down, up, works, conditions, links):
        return Solution(solve_by_events(start, works, conditions, links, behaviour, until))
    timeline = account_visits(start, down, computing, up, works, conditions, behaviour, until)
    sent, senders = messages.times, messages.senders
    state = Leftovers(until, start, works, conditions, (sent[DOWN], sent[UP]), (senders[DOWN], senders[UP]), timeline)
    if leftovers is None:
        return Solution(timeline, state=state)
    is_new = np.arange(len(timeline)) < visits
    rests = timeline.only(~is_new).after(leftovers.charged, leftovers.since)
    return Solution(timeline.only(is_new), rests, state)


def _meet(down: Transfer, up: Transfer, works: Works, conditions: Conditions, links: Links) -> bool:
    """Whether some upload begins before some download over the same links ends."""
    downloads = (works.message_down > 0) & np.isfinite(down.begin)
    uploads = (works.message_up > 0) & np.isfinite(up.begin)
    # The server's link is one for all, whatever the site.
    at_server = links.are_held_up(DOWN)[0] or links.are_held_up(UP)[0]
    link = np.zeros(len(works), np.intp) if at_server else conditions.access_link
    places = len(links.capacities(DOWN))
    first, last = np.full(places, math.inf), np.full(places, -math.inf)
    np.minimum.at(first, link[uploads], up.begin[uploads])
    np.maximum.at(last, link[downloads], np.minimum(down.end, down.cut)[downloads])
    return bool((first < last).any())


def _transfer(
    direction: int,
    begin: Doubles,
    used: Doubles,
    nbytes: Doubles,
    cut: Doubles,
    charge: Doubles,
    conditions: Conditions,
    links: Links,
    behaviour: ClientDynamics,
    messages: _Messages,
) -> Transfer:
    """One message of each visit, with the arguments of `costmodel.visits.messages.flows`."""
    since, ends = behaviour.since(conditions, begin), partial(behaviour.after, conditions)
    more = message_conditions(direction, conditions), links.transport, since, ends
    begun = flows(direction, begin, used, nbytes, cut, charge, *more)
    times = messages.sent(direction, begun, conditions)
    end = np.where(nbytes > 0, times.finish + conditions.rtt / 2, begin)
    return Transfer(
        begin,
        begun.cut,
        _by(begun.cut, end),
        begun.bits,
        times.sent,
        times.contention_seconds,
        times.paused,
        times.threshold,
        begun.promotion,
        np.where(nbytes > 0, begun.connect, 0.0),
        times.own_seconds,
        times.access_seconds,
        times.server_seconds,
    )


class _Messages:
    """The messages of a batch, those of visits before it that go on among them, over the links that they share."""

    def __init__(self, links: Links, behaviour: ClientDynamics, leftovers: Leftovers | None, goes_on: bool) -> None:
        self._links, self._behaviour, self._leftovers = links, behaviour, leftovers
        self._keeps_senders = goes_on
        self.times: dict[int, TransferTimes] = {}
        """By direction"""
        self.senders: dict[int, SenderNumbers] = {}
        """By direction, of messages that were cut, if they are kept"""

    def sent(self, direction: int, begun: Flows[Doubles], conditions: Conditions) -> TransferTimes:
        """The times of one message of each visit."""
        begin, size, left = begun.begin.copy(), len(conditions), self._leftovers
        senders: SenderNumbers | None = {} if self._keeps_senders else None
        is_known = np.zeros(size, bool)
        if left is not None:
            first, before = size - len(left), left.messages[direction]
            senders = {first + row: numbers for row, numbers in left.senders[direction].items()}
            goes_on = list(senders)
            begin[goes_on] = left.since
            is_known[first:] = np.isfinite(before.finish)
            # A visit may have been cut at the very instant at which its client was lost.
            is_known[goes_on] = begun.cut[goes_on] <= left.since
            begin[is_known] = math.inf
        times = self._transfer(direction, begin, begun, conditions, senders)
        if left is not None:
            for name, column in vars(times).items():
                column[is_known] = getattr(before, name)[is_known[first:]]
        self.times[direction], self.senders[direction] = times, senders or {}
        return times

    def _transfer(
        self,
        direction: int,
        begin: Doubles,
        begun: Flows[Doubles],
        conditions: Conditions,
        senders: SenderNumbers | None,
    ) -> TransferTimes:
        links, behaviour = self._links, self._behaviour
        sites, paths = links.access_capacity(direction), []
        # Without losses and outages no message needs a path.
        if (conditions.loss > 0).any() or behaviour.variation.has_outages:
            seeds = conditions.loss_seed[:, direction]
            columns = (conditions.rtt, np.asarray(begun.slowly), conditions.loss, begun.threshold, seeds)
            queue, congestion = links.transport.queue_bits, links.congestion
            paths = [
                Path(rtt, slowly, loss, threshold, seed, queue, congestion)
                for rtt, slowly, loss, threshold, seed in zip(*(column.tolist() for column in columns), strict=True)
            ]
        return transfer_batch(
            begin,
            begun.bits,
            conditions.rate(direction),
            links.capacity(direction),
            begun.cut,
            rtt=np.where(begun.slowly, conditions.rtt, 0.0),
            paths=paths,
            access_link=conditions.access_link if sites else None,
            access_capacity=sites,
            capacities=None if links.site_variation is None else partial(links.capacities_at, direction),
            varying=behaviour.varying(conditions, direction),
            outage=behaviour.outages(conditions, direction),
            senders=senders,
        )


def _by(cut: Doubles, times: Doubles) -> Doubles:
    return np.where(times <= cut, times, math.inf)
