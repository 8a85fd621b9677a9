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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from costmodel.network.fair_link import FairLink
from costmodel.network.links import Links
from costmodel.network.tcp import FRAME_NBYTES

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


def open_windows(flows: Sequence[WideFlow], wide: float, queue_bits: float) -> float:
    """Bits that these flows have under way at most over a link of ``wide`` bit/s: what is on the path and in its queue,
    or in the queues of their own links where these are more. Small windows, as after losses, leave queues empty."""
    rtt = math.fsum(flow.rtt for flow in flows) / len(flows)
    on_path = min(math.fsum(min(flow.limit, wide) * flow.rtt for flow in flows), wide * rtt)
    own = sum(not flow.is_window for flow in flows)
    return max(on_path + queue_bits, own * queue_bits) if own else on_path


def filling_rate(windows: float, rtt: float, seconds: float) -> float:
    """Bit/s, as a mean over a queue that takes ``seconds`` to fill to as many seconds of waiting: ``windows`` bits go
    through in each round trip, which begins at ``rtt`` and becomes longer as the queue does."""
    return windows * math.log1p(seconds / rtt) / seconds


class Duplex:
    """The capacities of the two directions of shared links, while messages flow in both.

    Each direction is a `FairLink`: `joined` and `left` for each of its flows, then `settle` after all of an instant.
    """

    def __init__(self, links: Links, by_direction: Mapping[int, FairLink]) -> None:
        assert links.held_up is not None
        self._wide = links.held_up
        self._wide_link, self._narrow_link = by_direction[self._wide], by_direction[1 - self._wide]
        # Of the server's link, then of each site's; the flows are those of the wide direction.
        self._fast, self._slow = links.capacities(self._wide), links.capacities(1 - self._wide)
        self._are_held_up = links.are_held_up(self._wide)
        self._flows: list[dict[int, WideFlow]] = [{} for _ in self._fast]
        # Of the narrow direction: bits that wait before it, and since when they grow in number.
        self._queue_bits = links.transport.queue_bits
        self._waiting, self._surplus = [0.0] * len(self._fast), [0.0] * len(self._fast)
        self._since = -math.inf
        self._is_settled = True

    def joined(self, direction: int, access_link: int, order: int, flow: WideFlow) -> None:
        """Count a flow that has joined, or whose limit has changed."""
        self._is_settled = False
        if direction == self._wide:
            for place in self._places(access_link):
                self._flows[place][order] = flow

    def left(self, direction: int, access_link: int, order: int) -> None:
        """No longer count a flow that has ended or left."""
        self._is_settled = False
        if direction == self._wide:
            for place in self._places(access_link):
                del self._flows[place][order]

    def resized(self, direction: int, capacities: tuple[float, ...]) -> None:
        """The rates of the links in a direction have changed: of the server's link, then of each site's."""
        self._is_settled = False
        if direction == self._wide:
            self._fast = capacities
        else:
            self._slow = capacities

    def changed(self) -> None:
        """A queue may be full."""
        self._is_settled = False

    def settle(self, now: float) -> float:
        """Set the capacities of both directions for the present flows; returns when they change, if no flow does."""
        if self._is_settled:
            return math.inf
        self._is_settled = True
        self._let_queues_grow(now, _with_server(self._narrow_link.demands(), self._slow))
        room, until = list(self._fast), math.inf
        for place, (fast, slow) in enumerate(zip(self._fast, self._slow, strict=True)):
            flows, left = [*self._flows[place].values()], self._queue_bits - self._waiting[place]
            if not self._are_held_up[place] or not flows or self._surplus[place] <= 0:
                continue
            rtt = max(math.fsum(flow.rtt for flow in flows) / len(flows), LEAST_RTT)
            windows, waiting = open_windows(flows, fast, self._queue_bits), self._queue_bits / slow
            if left <= 0:
                room[place] = held_rate(fast, slow, len(flows))
                if all(flow.is_window for flow in flows):
                    room[place] = min(room[place], windows / (rtt + waiting))
            else:
                room[place] = min(fast, filling_rate(windows, rtt, waiting))
                until = min(until, now + left / self._surplus[place])
        self._wide_link.resize(now, room[0], room[1:])
        rates = _with_server(self._wide_link.rates(), self._fast)
        rest = [
            max(slow - ACK_SHARE * rate, slow / 2) if is_held_up else slow
            for slow, rate, is_held_up in zip(self._slow, rates, self._are_held_up, strict=True)
        ]
        self._narrow_link.resize(now, rest[0], rest[1:])
        return until

    def _let_queues_grow(self, now: float, asked: list[float]) -> None:
        """Let the queues of the narrow direction grow until now, and by what is ``asked`` from now on."""
        seconds = now - self._since if self._since > -math.inf else 0.0
        self._since = now
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
