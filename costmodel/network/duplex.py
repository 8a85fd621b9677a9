"""Both directions of shared links at once: each takes from the other what its acknowledgements need.

Acknowledgements are traffic: a frame of 66 bytes for every two segments. And they wait in the queue of the direction in
which they travel. While the narrow direction of a link is full, its queue is, too, and a round trip takes longer by as
long as that queue lasts. The windows of the other direction do not grow with it: acknowledgements that wait behind
frames arrive in bursts, and so do the segments that they let go, which overflow the wide direction's own queue although
it is empty most of the time. A longer queue holds more of them, and makes round trips longer by as much: what comes
through the wide direction depends on the rate of the narrow one, and hardly on queues, round trips and its own rate.
It is more where each message is held back by its own client's link, whose queue it has for itself.

Bursts from acknowledgements: L. Zhang, S. Shenker, D. Clark, Observations on the dynamics of a congestion control
algorithm: the effects of two-way traffic, SIGCOMM 1991. Slow uplinks: L. Kalampoukas, A. Varma, K. Ramakrishnan,
Improving TCP throughput over two-way asymmetric links, SIGMETRICS 1998. Nothing here knows of visits or events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel.network.fair_link import FairLink
from costmodel.network.links import Links
from costmodel.network.tcp import FRAME_NBYTES

# RFC 1122 asks for an acknowledgement of every second segment; with timestamps its frame has 66 bytes.
ACK_SHARE = 66 / (2 * FRAME_NBYTES)
# The rate of n messages in the wide direction, over the rate of the narrow one while that is full: FIRST + n MORE. It
# fits what was measured with 1 to 8 downloads: 1.5 for one, 1.6 to 2.6 for two, 2.2 for four, 3.8 for eight.
FIRST, MORE = 1.25, 0.3
# The same for each message where clients' own links hold them back: 2.5 to 3.5 behind links of 5 Mbit/s, 4.4 to 4.8
# behind links of 20 Mbit/s.
OWN = 3.0


def held_rate(wide: float, narrow: float, messages: int, *, is_full: bool) -> float:
    """Bit/s that ``messages`` send at most together over a link of ``wide`` bit/s whose other direction, of ``narrow``
    bit/s, is full.

    ``is_full``: whether clients' own links would let them fill this direction, too.
    """
    return min(wide, (FIRST + messages * MORE if is_full else messages * OWN) * narrow)


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
        self._flows = [0] * len(self._fast)
        self._is_settled = True

    def joined(self, direction: int, access_link: int) -> None:
        """Count a flow that has joined."""
        self._count(direction, access_link, 1)

    def left(self, direction: int, access_link: int) -> None:
        """No longer count a flow that has ended or left."""
        self._count(direction, access_link, -1)

    def resized(self, direction: int, capacities: tuple[float, ...]) -> None:
        """The rates of the links in a direction have changed: of the server's link, then of each site's."""
        self._is_settled = False
        if direction == self._wide:
            self._fast = capacities
        else:
            self._slow = capacities

    def changed(self) -> None:
        """The cap of a flow has changed."""
        self._is_settled = False

    def settle(self, now: float) -> None:
        """Set the capacities of both directions for the present flows."""
        if self._is_settled:
            return
        self._is_settled = True
        asked = _with_server(self._wide_link.demands(), self._fast)
        asked_back = _with_server(self._narrow_link.demands(), self._slow)
        room = list(self._fast)
        for place, (fast, slow) in enumerate(zip(self._fast, self._slow, strict=True)):
            if self._are_held_up[place] and self._flows[place] and asked_back[place] >= slow:
                room[place] = held_rate(fast, slow, self._flows[place], is_full=asked[place] >= fast)
        self._wide_link.resize(now, room[0], room[1:])
        rates = _with_server(self._wide_link.rates(), self._fast)
        rest = [
            max(slow - ACK_SHARE * rate, slow / 2) if is_held_up else slow
            for slow, rate, is_held_up in zip(self._slow, rates, self._are_held_up, strict=True)
        ]
        self._narrow_link.resize(now, rest[0], rest[1:])

    def _count(self, direction: int, access_link: int, flows: int) -> None:
        self._is_settled = False
        if direction == self._wide:
            self._flows[0] += flows
            if len(self._flows) > 1:
                self._flows[1 + access_link] += flows


def _with_server(rates: list[float], capacity: tuple[float, ...]) -> list[float]:
    """``rates`` of each site's flows, each within its ``capacity``, after those of the server's link."""
    if len(capacity) == 1:
        return rates
    return [math.fsum(map(min, rates, capacity[1:])), *rates]
