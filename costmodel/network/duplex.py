"""Both directions of shared links at once: each takes from the other what its acknowledgements need.

Acknowledgements are traffic: a frame of 66 bytes for every two segments. And they wait in the queue of the direction in
which they travel. While the narrow direction of a link is full, its queue is, too, and a round trip takes longer by as
long as that queue lasts. The windows of the other direction do not grow with it: acknowledgements that wait behind
frames arrive in bursts, and so do the segments that they let go, which overflow the wide direction's own queue although
it is empty most of the time. So what comes through the wide direction is a few times the rate of the narrow one
(`held_rate`): the less of the wide direction it takes, the rarer bursts meet. It is never more than the windows that
are open, in each lengthened round trip (`open_windows`). A queue takes time to fill; until it is full, open windows go
through, in round trips that grow (`filling_rate`). All of it is continuous in rates, queue, round trips and losses.

Bursts from acknowledgements: L. Zhang, S. Shenker, D. Clark, Observations on the dynamics of a congestion control
algorithm: the effects of two-way traffic, SIGCOMM 1991. Slow uplinks: L. Kalampoukas, A. Varma, K. Ramakrishnan,
Improving TCP throughput over two-way asymmetric links, SIGMETRICS 1998. Nothing here knows of visits or events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from costmodel.network.fair_link import FairLink
from costmodel.network.links import Links
from costmodel.network.tcp import FRAME_NBYTES
from costmodel.network.window_sharing import WindowLink

# RFC 1122 asks for an acknowledgement of every second segment; with timestamps its frame has 66 bytes.
ACK_SHARE = 66 / (2 * FRAME_NBYTES)
# The rate of n messages in the wide direction over the rate of the narrow one, while that holds them: FIRST + n MORE
# where they nearly fill the wide direction, and up to n OWN more where they leave it idle, so that bursts rarely meet:
# e times fewer of these with each 1 / BURSTS of the wide direction that they take. Fitted to the cells of
# docs/evidence/clock.md.
FIRST, MORE, OWN = 0.9, 0.2, 3.0
BURSTS = 16.0
# Senders that fill a queue double their windows in a round trip: what comes is at most twice what leaves.
FILLING = 2.0
LEAST_RTT = 1e-3
ROUNDING = 1e-9


class WideFlow(NamedTuple):
    """A message in the wide direction."""

    rtt: float
    """Seconds, without queues"""
    limit: float
    """Bit/s that its own link and its window let through"""
    is_window: bool
    """Whether its window does, and has no queue at its own link"""


@lru_cache(1024)
def held_rate(wide: float, narrow: float, messages: int) -> float:
    """Bit/s that ``messages`` send at most together over a link of ``wide`` bit/s whose other direction, of ``narrow``
    bit/s, has a full queue."""
    most = (FIRST + messages * (MORE + OWN)) * narrow
    if math.isinf(wide):
        return most

    def surplus(rate: float) -> float:
        return (FIRST + messages * (MORE + OWN * math.exp(-BURSTS * rate / wide))) * narrow - rate

    least, most = 0.0, min(wide, most)
    if surplus(most) >= 0.0:
        return most
    while (rate := (least + most) / 2) not in (least, most):  # to the bit, so that all drivers agree
        least, most = (rate, most) if surplus(rate) > 0.0 else (least, rate)
    return least


class WideFlows:
    """The messages in the wide direction of one link, as sums over them."""

    def __init__(self, wide: float) -> None:
        self._wide = wide
        self._flows: dict[int, WideFlow] = {}
        self._rtts, self._on_path, self._own = 0.0, 0.0, 0

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def rtt(self) -> float:
        """Seconds, their mean."""
        return self._rtts / len(self._flows)

    @property
    def have_small_windows(self) -> bool:
        """Whether none of them fills a queue, as after losses."""
        return not self._own

    def put(self, order: int, flow: WideFlow) -> None:
        """Count a flow, in the place of one of the same order."""
        if order in self._flows:
            self.drop(order)
        self._flows[order] = flow
        self._count(flow, 1)

    def drop(self, order: int) -> None:
        """No longer count a flow."""
        self._count(self._flows.pop(order), -1)
        if not self._flows:  # no rounding is left behind
            self._rtts, self._on_path = 0.0, 0.0

    def resize(self, wide: float) -> None:
        """The link has another rate."""
        if wide != self._wide:
            flows, self._flows, self._wide = self._flows, {}, wide
            self._rtts, self._on_path, self._own = 0.0, 0.0, 0
            for order, flow in flows.items():
                self.put(order, flow)

    def _count(self, flow: WideFlow, times: int) -> None:
        self._rtts += times * flow.rtt
        self._on_path += times * min(flow.limit, self._wide) * flow.rtt
        self._own += times * (not flow.is_window)

    def open_windows(self, queue_bits: float) -> float:
        """Bits that they have under way at most: what is on the path and in its queue, or in the queues of their own
        links where these are more. Small windows leave queues empty."""
        on_path = min(self._on_path, self._wide * self.rtt)
        return max(on_path + queue_bits, self._own * queue_bits) if self._own else on_path


def filling_rate(windows: float, rtt: float, seconds: float) -> float:
    """Bit/s, as a mean over a queue that takes ``seconds`` to fill to as many seconds of waiting: ``windows`` bits go
    through in each round trip, which begins at ``rtt`` and becomes longer as the queue does."""
    return windows * math.log1p(seconds / rtt) / seconds


class Duplex:
    """The capacities of the two directions of shared links, while messages flow in both.

    Each direction is a `FairLink` or a `WindowLink`: `joined` and `left` for each of its flows, then `settle` after all
    of an instant.
    """

    def __init__(self, links: Links, by_direction: Mapping[int, FairLink | WindowLink]) -> None:
        assert links.held_up is not None
        self._wide = links.held_up
        self._wide_link, self._narrow_link = by_direction[self._wide], by_direction[1 - self._wide]
        # Of the server's link, then of each site's; the flows are those of the wide direction.
        self._fast, self._slow = links.capacities(self._wide), links.capacities(1 - self._wide)
        self._are_held_up = links.are_held_up(self._wide)
        self._flows = [WideFlows(fast) for fast in self._fast]
        # Of the narrow direction: bits that wait before it, and by how many a second they grow since then.
        self._queue_bits = links.transport.queue_bits
        self._waiting, self._surplus, self._since = [0.0] * len(self._fast), [0.0] * len(self._fast), 0.0
        self._is_settled = True
        self._until = math.inf

    def joined(self, direction: int, access_link: int, order: int, flow: WideFlow) -> None:
        """Count a flow that has joined, or whose limit has changed."""
        self._is_settled = False
        if direction == self._wide:
            for place in self._places(access_link):
                self._flows[place].put(order, flow)

    def left(self, direction: int, access_link: int, order: int) -> None:
        """No longer count a flow that has ended or left."""
        self._is_settled = False
        if direction == self._wide:
            for place in self._places(access_link):
                self._flows[place].drop(order)

    def resized(self, direction: int, capacities: tuple[float, ...]) -> None:
        """The rates of the links in a direction have changed: of the server's link, then of each site's."""
        self._is_settled = False
        if direction == self._wide:
            self._fast = capacities
            for flows, fast in zip(self._flows, capacities, strict=True):
                flows.resize(fast)
        else:
            self._slow = capacities

    def filled(self) -> None:
        """A queue may be full."""
        self._is_settled, self._until = False, math.inf

    def settle(self, now: float) -> float:
        """Set the capacities of both directions for the present flows.

        Returns when a queue will be full if no flow changes, unless that was the last answer; else inf.
        """
        if self._is_settled:
            return math.inf
        self._is_settled = True
        self._let_queues_grow(now, _with_server(self._narrow_link.demands(), self._slow))
        room, until = list(self._fast), math.inf
        for place, (fast, slow) in enumerate(zip(self._fast, self._slow, strict=True)):
            flows = self._flows[place]
            if not self._are_held_up[place] or not flows or self._surplus[place] <= 0:
                continue
            rtt, waiting = max(flows.rtt, LEAST_RTT), self._queue_bits / slow
            full_at = now + (self._queue_bits - self._waiting[place]) / self._surplus[place]
            if full_at > now:
                room[place] = min(fast, filling_rate(flows.open_windows(self._queue_bits), rtt, waiting))
                until = min(until, full_at)
                continue
            room[place] = held_rate(fast, slow, len(flows))
            if flows.have_small_windows:
                room[place] = min(room[place], flows.open_windows(self._queue_bits) / (rtt + waiting))
        self._wide_link.resize(now, room[0], room[1:])
        rates = _with_server(self._wide_link.rates(), self._fast)
        rest = [
            max(slow - ACK_SHARE * rate, slow / 2) if is_held_up else slow
            for slow, rate, is_held_up in zip(self._slow, rates, self._are_held_up, strict=True)
        ]
        self._narrow_link.resize(now, rest[0], rest[1:])
        is_known, self._until = until == self._until, until
        return math.inf if is_known else until

    def _let_queues_grow(self, now: float, asked: list[float]) -> None:
        """Let the queues of the narrow direction grow until now, and by what is ``asked`` from now on."""
        seconds, self._since = now - self._since, now
        for place, slow in enumerate(self._slow):
            grown = self._waiting[place] + self._surplus[place] * seconds
            # A sum of steps may miss a full queue by rounding.
            is_full = grown >= self._queue_bits * (1 - ROUNDING)
            self._waiting[place] = self._queue_bits if is_full else max(grown, 0.0)
            self._surplus[place] = min(asked[place], FILLING * slow) - slow

    def _places(self, access_link: int) -> tuple[int, ...]:
        """The server's link, and that of a site if there are any."""
        return (0,) if len(self._flows) == 1 else (0, 1 + access_link)


def _with_server(rates: list[float], capacity: tuple[float, ...]) -> list[float]:
    """``rates`` of each site's flows, each within its ``capacity``, after those of the server's link."""
    if len(capacity) == 1:
        return rates
    return [math.fsum(map(min, rates, capacity[1:])), *rates]
