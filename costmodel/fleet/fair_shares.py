"""Where fair shares of links are not what TCP gives: said before a run, with the key that follows windows instead."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from costmodel import units
from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import DOWN, UP

LONGER = 2.5
"""Times as long as by fair shares: the longest measured round, over a queue of a tenth of its path
(docs/evidence/clock.md)"""
LEAST_CONTENTION = 0.1
"""Below, links are seldom full, and shares hardly matter"""


def doubts(fleet: Fleet, visits: int, contention: float, by_windows: bool = True) -> Iterator[str]:
    """A sentence if messages of ``visits`` at a time may fill a shared link whose queue is shorter than its longest
    path, or whose segments are lost: of the link that is asked for most.

    ``contention``: the share of the seconds of messages for which others delay them; ``by_windows``: whether windows
    may share these links.
    """
    links, transport = fleet.links, fleet.links.transport
    if links.by_events or transport.congestion == "bbr" or contention < LEAST_CONTENTION:
        return
    everybody, asked = np.arange(len(fleet)), list[tuple[float, float, float, str]]()
    sites = fleet.access_link_of(everybody) if links.site_down else np.zeros(len(fleet), np.intp)
    for direction, own, way in ((DOWN, fleet.down, "down"), (UP, fleet.up, "up")):
        for place, capacity in enumerate(links.capacities(direction)):
            members = everybody if place == 0 else np.flatnonzero(sites == place - 1)
            if members.size and capacity < math.inf:
                at_once = max(visits * members.size / len(fleet), 1.0)
                rtt, name = float(fleet.rtt[members].max()), "the server's link" if place == 0 else f"a {links.access}"
                asked.append((at_once * float(own[members].mean()) / capacity, rtt, capacity, f"{name} {way}"))
    demand, rtt, capacity, name = max(asked, default=(0.0, 0.0, 0.0, ""))
    if demand <= 1.0:
        return
    path = capacity * rtt
    why = f"segments are lost, and {name} is shared"
    if transport.queue_bits < path:
        of = f"{units.format_bytes(path / 8)} of a path ({units.format_rate(capacity)} x {units.format_seconds(rtt)})"
        why = f"fleet.transport.queue = {units.format_bytes(transport.queue)}: shorter than the {of} over {name}"
    elif not fleet.loses_segments:
        return
    more = f"rounds may take up to {LONGER:g} times as long as fair shares say"
    yield f"{why}: {more}" + ("; fleet.transport.sharing = windows follows each sender" if by_windows else "")
