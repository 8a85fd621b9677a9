"""The time of what goes back and forth while visits compute: round trips, links and a server's device, all shared.

A local step of split learning is a chain: the device computes, its activations go up, the server's device computes, a
gradient comes down, the device computes. A visit's steps are one after another, so that they take the sum of these
times: of computing, of bytes at the rate of the client's own link, of a round-trip time for each trip, and of the
server's device. Thousands of steps are reckoned at once, not one by one.

The server's device serves steps in order of arrival, and they queue for it (`costmodel.visits.server_queue`). The
server's link and their sites' links serve all that are under way: a visit asks for as much of a link as it would use on
the average of its steps; where all ask for more than there is, it is shared in the max-min fair way, and those that get
less take so much longer. So a wait for others' messages within a step is not reckoned where all fit on the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.network.tcp import FRAME_BITS, wire_bits
from costmodel.visits.server_queue import queue_seconds
from costmodel.visits.work import Works


@dataclass(frozen=True)
class ExchangeTimes:
    """Of the exchange of each visit; arrays of shape (visits,)."""

    seconds: Doubles
    """Beyond those for which the device computes"""
    down_seconds: Doubles
    """For which its own link takes all messages to it, of ``seconds``"""
    up_seconds: Doubles
    down_bits: Doubles
    """Of all messages to it, on the wire"""
    up_bits: Doubles
    trip_seconds: Doubles
    """Of round trips, of ``seconds``"""
    served: Doubles
    """For which the server's device computes"""
    queued: Doubles
    """For which a visit waits for that device, which computes for others"""
    access_down: Doubles
    """For which it waits for links that others use: its site's, then the server's, in each direction"""
    server_down: Doubles
    access_up: Doubles
    server_up: Doubles

    def __getitem__(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> ExchangeTimes:
        """The times of the visits of a mask, or at these indices."""
        return ExchangeTimes(**{name: column[which] for name, column in vars(self).items()})

    def done(self, part: Doubles) -> ExchangeTimes:
        """The times as far as the exchange is done; ``part``: (visits,) of each."""
        return ExchangeTimes(**{name: column * part for name, column in vars(self).items()})

    @staticmethod
    def joined(each: Sequence[ExchangeTimes]) -> ExchangeTimes:
        """The times of all of these, one after the other."""
        names = vars(each[0])
        return ExchangeTimes(**{name: np.concatenate([getattr(one, name) for one in each]) for name in names})


def exchange_times(
    works: Works, conditions: Conditions, links: Links, own_seconds: Doubles, leave: bool = True
) -> ExchangeTimes | None:
    """The times of visits that are under way together; None if all compute alone.

    ``own_seconds``: (visits,) for which each device computes; ``leave``: as of `queue_seconds`.
    """
    exchanges = works.exchanges
    if exchanges is None:
        return None
    nbytes = {DOWN: exchanges.bytes_down, UP: exchanges.bytes_up}
    bits = {way: wire_bits(nbytes[way].astype(np.float64)) * conditions.noise[:, way] for way in (DOWN, UP)}
    most = _most_with_losses(conditions)
    on_links = {way: bits[way] / np.minimum(conditions.rate(way), most) for way in (DOWN, UP)}
    trips, served = exchanges.trips * conditions.rtt, exchanges.server_seconds
    whole = own_seconds + on_links[DOWN] + on_links[UP] + trips + served
    for_all = np.zeros(len(works), np.intp)
    turns = exchanges.trips.astype(np.float64)
    own, service = (
        np.divide(part, turns, out=np.zeros_like(part), where=turns > 0) for part in (whole - served, served)
    )
    queued = queue_seconds(own, service, turns, leave)
    whole = whole + queued
    takes = {}
    for way, name in ((DOWN, "down"), (UP, "up")):
        takes[f"server_{name}"] = _shared(bits[way], whole, for_all, (links.capacity(way),))
        takes[f"access_{name}"] = _shared(bits[way], whole, conditions.access_link, links.access_capacity(way))
    # A visit waits for one link: that for which it waits longest.
    longest, first = np.max([*takes.values()], axis=0), np.argmax([*takes.values()], axis=0)
    waits = {name: np.where(first == index, longest - whole, 0.0) for index, name in enumerate(takes)}
    return ExchangeTimes(
        longest - own_seconds, on_links[DOWN], on_links[UP], bits[DOWN], bits[UP], trips, served, queued, **waits
    )


def _most_with_losses(conditions: Conditions) -> Doubles:
    """(visits,) bit/s on the wire of which a window that halves at each loss lets no more through on the average.

    M. Mathis, J. Semke, J. Mahdavi and T. Ott, The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, ACM
    SIGCOMM Computer Communication Review 27, 1997: sqrt(3 / 2 p) segments a round trip for losses of probability p.
    """
    loss = conditions.loss
    segments = np.sqrt(np.divide(1.5, loss, out=np.full_like(loss, np.inf), where=loss > 0))
    a_trip = FRAME_BITS * segments
    return np.divide(a_trip, conditions.rtt, out=np.full_like(a_trip, np.inf), where=conditions.rtt > 0)


def _shared(amounts: Doubles, seconds: Doubles, place: NDArray[np.intp], capacities: tuple[float, ...]) -> Doubles:
    """Seconds in which each visit gets its amount of what is shared at its place; at least ``seconds``."""
    asked = np.divide(amounts, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    given = asked.copy()
    for number, capacity in enumerate(capacities):
        here = np.flatnonzero((place == number) & (asked > 0))
        given[here] = fair_shares(asked[here], capacity)
    return np.divide(amounts, given, out=seconds.copy(), where=given < asked)


def fair_shares(asked: Doubles, capacity: float) -> Doubles:
    """Max-min fair shares of a capacity: all get what they ask for, or an equal share where that is less."""
    if asked.sum() <= capacity:
        return asked
    order, left, given = np.argsort(asked, kind="stable"), capacity, np.empty_like(asked)
    for place, index in enumerate(order.tolist()):
        given[index] = min(float(asked[index]), left / (len(order) - place))
        left -= given[index]
    return given
