"""The bottleneck of a round: what would have to be faster for the round to be shorter.

Each visit's seconds are divided among what set its pace (`costmodel.visits.accounting.Timeline`): of a message, the
client's own link, the link or air that the clients of a site share, the server's link, or round trips; and computing.
From these follows by how much earlier each visit would have ended if one of them had been twice as fast, and from the
ends when the round would have. The bottleneck is what shortens the round most: where the visits of a round have several
causes, this is not always the largest part of the last one. That is exact unless messages get in each other's way, at
other times than they did; then the visits are solved again for each cause that may be the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from coordinator.records.schema import (
    AIR,
    BOTTLENECKS,
    COMPUTE,
    DEADLINE,
    OWN_LINK,
    ROUND_TRIPS,
    SERVER,
    SERVER_LINK,
    WAITING,
)

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.arrays import Doubles
    from costmodel.visits.timeline import Timeline

ROUNDING = 1e-12
"""Share of a time that rounding may change"""
FASTER = 2.0
"""How many times as fast"""
SAVED = 1 - 1 / FASTER
"""Share of its seconds that something saves if it is `FASTER`"""
CLOSE = 0.2
"""Share of the first cause's effect, as foreseen, from which another may have a larger one"""


def bottleneck(
    timeline: Timeline,
    access: str,
    end_of: Callable[[Doubles], float] | None = None,
    solve: Callable[[str], Timeline] | None = None,
    *,
    waited: float = 0.0,
    handling: float = 0.0,
    above: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """The bottleneck of a round with these visits, of which none is interrupted; one of `BOTTLENECKS`.

    ``access``: `Links.access`. ``end_of``: ends of the visits (visits,) -> the round's end; by default the
    last of them. ``solve``: part of the fleet -> these visits if it were `FASTER` (`Clock.solve_if_faster`); for links
    that are shared. Seconds that the round takes beside its visits: ``waited`` before them, ``handling`` of their
    updates by the server; ``above``: bottleneck -> seconds that the messages of aggregators would save if it were
    `FASTER`.
    """
    ends, by_visits = timeline.end, _saved(timeline, access)
    round_ends = end_of or (lambda times: float(times.max()))
    end = round_ends(ends)
    sooner = {WAITING: SAVED * waited, SERVER: SAVED * handling, **above}
    beside = dict(sooner)
    for name, seconds in by_visits.items():
        sooner[name] = sooner.get(name, 0.0) + end - round_ends(ends - seconds)
    parts = {SERVER_LINK: "server", COMPUTE: "compute", ROUND_TRIPS: "trips"}
    parts |= {} if timeline.exchange is None else {SERVER: "device"}
    # Air is faster where the links are that send through it: what holds a message back tells the two apart.
    parts |= {} if access == AIR else {OWN_LINK: "own", access: "access"}
    close = [name for name in parts if sooner[name] >= CLOSE * max(sooner.values())]
    if solve is not None and len(close) > 1:
        for name in close:
            sooner[name] = beside.get(name, 0.0) + end - round_ends(solve(parts[name]).end)
    first = max(filter(sooner.__contains__, BOTTLENECKS), key=lambda name: sooner[name])
    if sooner[first] > ROUNDING * abs(end):
        return first
    # Nothing twice as fast ends it earlier: its time is over, or it has waited for a client that was lost.
    return DEADLINE if end < float(ends.max()) else WAITING


def _saved(timeline: Timeline, access: str) -> dict[str, Doubles]:
    """Bottleneck -> (visits,) seconds that each visit would save if it were `FASTER`."""
    own, shared, server = (
        getattr(timeline, f"{link}_down") + getattr(timeline, f"{link}_up") for link in ("own", "access", "server")
    )
    ends = np.isfinite(timeline.up_end)  # a visit that is lost ends when it is
    parts = own + shared + server + timeline.computed + timeline.paused_seconds
    device = np.zeros(len(timeline))
    if timeline.exchange is not None:
        device = timeline.exchange.served + timeline.exchange.queued
        parts = parts + device
    with np.errstate(invalid="ignore"):
        trips = np.maximum(np.where(ends, timeline.up_end - timeline.start, parts) - parts, 0.0)
    # Behind a faster link that is shared, a message runs at most at its client's own rate.
    most = timeline.contention_seconds
    saved = {
        OWN_LINK: SAVED * own,
        SERVER_LINK: np.minimum(SAVED * server, most),
        COMPUTE: SAVED * timeline.computed,
        WAITING: SAVED * timeline.paused_seconds,
        access: np.minimum(SAVED * shared, most),
        ROUND_TRIPS: SAVED * trips,
        SERVER: SAVED * device,
    }
    return {name: np.where(ends, seconds, 0.0) for name, seconds in saved.items()}
