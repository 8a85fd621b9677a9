"""A batch of flows over shared links, solved at once: a closed form where no link is ever full, `FairLink` where one
is.

Which of the two it is makes no difference to the result, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.network.fair_link import FairLink
from costmodel.network.tcp import INITIAL_WINDOW_BITS, SlowStart
from costmodel.network.water_filling import SLACK

Doubles = NDArray[np.float64]
Varying = Callable[[int, float], tuple[float, float]]
"""(flow, now) -> (cap in bit/s from now on, 0 is paused; absolute seconds of the next change, inf is never)."""

# Instants of one flow, in the order in which they are handled at one time.
_LEAVE, _CHANGE, _JOIN = range(3)


@dataclass(frozen=True)
class TransferTimes:
    """How the flows of one batch fared; arrays of shape (flows,)."""

    finish: Doubles
    """Absolute seconds at which the last bit was sent; inf if that was not by ``until``."""
    sent: Doubles
    """Bits sent by ``until`` or ``finish``, whichever is first."""
    held: Doubles
    """Seconds lost to sharing by then, as in `Served`."""
    paused: Doubles
    """Seconds with a cap of 0 by then; inf for a flow that is paused for ever and not cut."""


@dataclass(frozen=True)
class _Batch:
    """The flows of a batch, each array of shape (flows,)."""

    start: Doubles
    bits: Doubles
    cap: Doubles
    until: Doubles
    site: NDArray[np.intp]
    rtt: Doubles

    def only(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> _Batch:
        return _Batch(*(each[which] for each in vars(self).values()))


def transfer_batch(
    start: ArrayLike,
    bits: ArrayLike,
    cap: ArrayLike | None,
    capacity: float,
    until: ArrayLike = math.inf,
    *,
    rtt: ArrayLike = 0.0,
    site: ArrayLike | None = None,
    site_capacity: Sequence[float] = (),
    varying: Varying | None = None,
) -> TransferTimes:
    """Send each flow over a link of ``capacity`` bit/s; a flow that is not done by its ``until`` leaves it then.

    ``start`` and ``until`` in absolute seconds (inf: never), ``bits`` >= 0 and ``cap`` >= 0 in bit/s (0: paused) have
    shape (flows,), and so has ``site``, the indices into ``site_capacity`` (bit/s); ``until`` may be one for all. A
    flow of zero bits ends when it starts. If caps are ``varying``, ``cap`` is not looked at. Flows with an ``rtt`` > 0
    (seconds) start slowly (`costmodel.network.tcp`).
    """
    assert cap is not None or varying, "neither cap nor varying"
    first = np.asarray(start, np.float64)
    flows = _Batch(
        first,
        np.asarray(bits, np.float64),
        np.broadcast_to(np.asarray(0.0 if cap is None or varying else cap, np.float64), first.shape),
        np.broadcast_to(np.asarray(until, np.float64), first.shape),
        np.broadcast_to(np.asarray(0 if site is None else site, np.intp), first.shape),
        np.broadcast_to(np.asarray(rtt, np.float64), first.shape),
    )
    assert flows.bits.shape == first.shape == (first.size,), (flows.bits.shape, first.shape)
    assert (flows.bits >= 0).all(), bits
    assert (np.isfinite(flows.cap) & (flows.cap >= 0)).all(), cap
    assert (flows.site >= 0).all() and flows.site.max(initial=0) < max(len(site_capacity), 1), site
    live = np.flatnonzero((flows.bits > 0) & (first < flows.until))
    shared = TransferTimes(
        np.where((flows.bits == 0) & (first <= flows.until), first, math.inf), *np.zeros((3, first.size))
    )
    if not varying:
        some = flows.only(live)
        alone = _uncontended(some)
        if _fits(some, alone.finish, capacity, site_capacity):
            for name, column in vars(alone).items():
                getattr(shared, name)[live] = column
            return shared
    _event_by_event(flows, live.tolist(), FairLink(capacity, site_capacity), varying, shared)
    return shared


def _fits(flows: _Batch, finish: Doubles, capacity: float, site_capacity: Sequence[float]) -> bool:
    """Whether no link would ever be full if all flows ran at their caps."""
    links = [(np.ones(finish.size, bool), capacity)]
    links += [(flows.site == site, each) for site, each in enumerate(site_capacity)]
    return all(
        float(flows.cap[which].sum()) <= room * SLACK or _peak(flows.only(which), finish[which]) <= room * SLACK
        for which, room in links
    )


def _peak(flows: _Batch, finish: Doubles) -> float:
    """The largest sum of the caps of flows under way together, were all to run at them."""
    end = np.minimum(finish, flows.until)
    starts, ends = np.argsort(flows.start), np.argsort(end)
    # At one instant flows leave before others join.
    joining = np.zeros(2 * end.size, bool)
    joining[np.searchsorted(end[ends], flows.start[starts], side="right") + np.arange(end.size)] = True
    change = np.empty(joining.size)
    change[joining] = flows.cap[starts]
    change[~joining] = -flows.cap[ends]
    return float(np.cumsum(change).max(initial=0.0))


def _uncontended(flows: _Batch) -> TransferTimes:
    """How flows fare that all run at their caps: `SlowStart` for many, in the same arithmetic."""
    shared = TransferTimes(np.full(flows.start.size, math.inf), *np.zeros((3, flows.start.size)))
    shared.paused[flows.cap == 0] = (flows.until - flows.start)[flows.cap == 0]
    which = np.flatnonzero(flows.cap > 0)
    now, left, window = flows.start[which], flows.bits[which], np.full(which.size, INITIAL_WINDOW_BITS)
    cap, until, rtt = flows.cap[which], flows.until[which], flows.rtt[which]
    while which.size:
        window[window >= cap * rtt] = math.inf
        part = np.minimum(window, left)
        end = now + part / cap
        cut = end > until
        shared.sent[which] += np.where(cut, np.minimum(cap * np.maximum(until - now, 0.0), part), part)
        left = left - part
        last = (left <= 0.0) & ~cut
        shared.finish[which[last]] = end[last]
        waits = end < now + rtt
        now = np.where(waits, now + rtt, end)
        window = np.where(waits, window * 2.0, math.inf)
        goes_on = ~cut & ~last
        which, now, left, window, cap, until, rtt = (
            each[goes_on] for each in (which, now, left, window, cap, until, rtt)
        )
    return shared


def _event_by_event(
    flows: _Batch, live: Sequence[int], link: FairLink, varying: Varying | None, shared: TransferTimes
) -> None:
    """Fill in how flows fare, event by event, in the order that the module promises."""
    start, bits, cap, until, site, rtt = (each.tolist() for each in vars(flows).values())
    agenda = [(start[flow], _JOIN, flow) for flow in live]
    agenda += [(until[flow], _LEAVE, flow) for flow in live if until[flow] < math.inf]
    heapify(agenda)
    under_way: dict[int, SlowStart] = {}
    active: set[int] = set()

    def off(flow: int, finish: float) -> None:
        sending = under_way.pop(flow)
        shared.finish[flow], shared.sent[flow] = finish, sending.sent
        shared.held[flow], shared.paused[flow] = sending.held, sending.paused

    def broken_off(flow: int, now: float) -> None:
        if flow in active:
            active.remove(flow)
            under_way[flow].broken_off(link.remove(now, flow))
        off(flow, math.inf)

    def cap_now(flow: int, now: float, follow: bool) -> float:
        if varying is None:
            return float(cap[flow])
        rate, change = varying(flow, now)
        assert change > now, (flow, now, change)
        if follow and change < math.inf:
            heappush(agenda, (change, _CHANGE, flow))
        return rate

    def join(flow: int, now: float) -> None:
        rate = cap_now(flow, now, follow=flow not in under_way)
        sending = under_way.setdefault(flow, SlowStart(bits[flow], rtt[flow]))
        active.add(flow)
        link.join(now, flow, sending.next_part(now, rate), rate, site[flow])

    while (now := min(link.next_finish(), agenda[0][0] if agenda else math.inf)) < math.inf:
        for flow, served in link.finished(now):
            active.remove(flow)
            resume = under_way[flow].part_sent(served)
            if resume is None:
                off(flow, now)
            else:
                heappush(agenda, (resume, _JOIN, flow))
        while agenda and agenda[0][0] == now:
            _, kind, flow = heappop(agenda)
            if kind == _JOIN and (flow in under_way or start[flow] == now):
                join(flow, now)
            elif kind == _CHANGE and flow in under_way:
                changed = cap_now(flow, now, follow=True)
                if flow in active:
                    link.change(now, flow, changed)
            elif kind == _LEAVE and flow in under_way:
                broken_off(flow, now)
    for flow in sorted(under_way):
        broken_off(flow, math.inf)
