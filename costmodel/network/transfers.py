"""A batch of flows over shared links: in closed form where no link is ever full, else by `FairLink`.

Both give the same result, to the bit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.arrays import Doubles
from costmodel.network.fair_link import FairLink, Served
from costmodel.network.one_link import OneLink
from costmodel.network.senders import INITIAL_WINDOW_BITS, Path, Sender, sender
from costmodel.network.water_filling import SLACK

Varying = Callable[[int, float], tuple[float, float]]
"""(flow, now) -> (cap in bit/s from now on, 0 is paused; absolute seconds of the next change, inf is never)."""

Capacities = Callable[[float], tuple[tuple[float, ...], float]]
"""now -> (bit/s of the shared link, then of each access link; absolute seconds of the next change, inf is never)."""

Outage = Callable[[int, float], bool]
"""(flow, now) -> whether its cap of 0 is an outage, after which its sender has to wait for its timer."""

SenderNumbers = dict[int, tuple[float, ...]]
"""flow -> `costmodel.network.senders.Sender.numbers` of one that was broken off."""

# Events of one flow, in the order in which they are handled at one time.
_LEAVE, _CHANGE, _JOIN = range(3)
_ALL = sys.maxsize
"""In place of a flow, where the rates of shared links change: after all flows' own changes at that time"""


@dataclass(frozen=True)
class TransferTimes:
    """The ends and totals of the flows of one batch; arrays of shape (flows,)."""

    finish: Doubles
    """Absolute seconds at which the last bit was sent; inf if not by ``until``."""
    sent: Doubles
    """Bits sent by ``until`` or ``finish``, whichever is first."""
    contention_seconds: Doubles
    """Seconds lost to contention by then, as in `Served`."""
    paused: Doubles
    """Seconds with a cap of 0 by then, or of waiting for the timer after an outage; inf for a flow that is paused for
    ever and not cut."""
    threshold: Doubles
    """`costmodel.network.senders.Path.threshold` of each sender's next message."""
    own_seconds: Doubles
    """Seconds by then for which the flow's own cap set its rate, and no round trip was waited for."""
    access_seconds: Doubles
    """Seconds for which its access link set it."""
    server_seconds: Doubles
    """Seconds for which the server's link set it."""

    @classmethod
    def none(cls, finish: Doubles, threshold: Doubles) -> TransferTimes:
        """Times of flows of which nothing has been sent."""
        sent, contention, paused, own, access, server = np.zeros((6, finish.size))
        return cls(finish, sent, contention, paused, threshold, own, access, server)


@dataclass(frozen=True)
class _Batch:
    """The flows of a batch, each array of shape (flows,)."""

    start: Doubles
    bits: Doubles
    cap: Doubles
    until: Doubles
    access_link: NDArray[np.intp]
    rtt: Doubles

    def only(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> _Batch:
        return _Batch(*(column[which] for column in vars(self).values()))


def transfer_batch(
    start: ArrayLike,
    bits: ArrayLike,
    cap: ArrayLike | None,
    capacity: float,
    until: ArrayLike = math.inf,
    *,
    rtt: ArrayLike = 0.0,
    access_link: ArrayLike | None = None,
    access_capacity: Sequence[float] = (),
    capacities: Capacities | None = None,
    paths: Sequence[Path] = (),
    varying: Varying | None = None,
    outage: Outage | None = None,
    senders: SenderNumbers | None = None,
) -> TransferTimes:
    """Send each flow over a link of ``capacity`` bit/s; a flow that has not ended by its ``until`` is cut then.

    ``start`` and ``until`` in absolute seconds (inf: never), ``bits`` >= 0 and ``cap`` >= 0 in bit/s (0: paused) have
    shape (flows,), and so has ``access_link``, indices into ``access_capacity`` (bit/s); ``until`` may be one for all.
    A flow of zero bits ends when it starts. With ``varying`` caps, ``cap`` is ignored; with ``capacities``, links have
    their rates at each time. Flows with an ``rtt`` > 0 (seconds) start slowly (`costmodel.network.senders`); ``paths``,
    one each, are needed for those that lose segments or whose caps of 0 may be an ``outage``.

    ``senders``: those of the flows that have been broken off at ``start`` and go on; on return, of those that are cut.
    """
    assert cap is not None or varying, "neither cap nor varying"
    if paths:
        rtt = [path.rtt if path.starts_slowly else 0.0 for path in paths]
    first = np.asarray(start, np.float64)
    flows = _Batch(
        first,
        np.asarray(bits, np.float64),
        np.broadcast_to(np.asarray(0.0 if cap is None or varying else cap, np.float64), first.shape),
        np.broadcast_to(np.asarray(until, np.float64), first.shape),
        np.broadcast_to(np.asarray(0 if access_link is None else access_link, np.intp), first.shape),
        np.broadcast_to(np.asarray(rtt, np.float64), first.shape),
    )
    assert flows.bits.shape == first.shape == (first.size,), (flows.bits.shape, first.shape)
    assert (flows.bits >= 0).all(), flows.bits
    assert (np.isfinite(flows.cap) & (flows.cap >= 0)).all(), flows.cap
    links = max(len(access_capacity), 1)
    assert ((flows.access_link >= 0) & (flows.access_link < links)).all(), flows.access_link
    # Flows of zero bits end when they start.
    finish = np.where((flows.bits == 0) & (first <= flows.until), first, math.inf)
    times = TransferTimes.none(finish, _thresholds(paths, first.size))
    live = np.flatnonzero((flows.bits > 0) & (flows.start < flows.until))
    if not varying and capacities is None and senders is None:
        live_paths = [paths[flow] for flow in live.tolist()] if paths else []
        solved = _at_once(flows.only(live), live_paths, capacity, access_capacity)
        if solved is not None:
            for name, column in vars(solved).items():
                getattr(times, name)[live] = column
            return times
    loop = _EventLoop(flows, paths, FairLink(capacity, access_capacity), varying, outage, times, senders or {})
    loop.capacities = capacities
    loop.run(live.tolist())
    if senders is not None:
        senders.clear()
        senders.update(loop.cut)
    return times


def _thresholds(paths: Sequence[Path], flows: int) -> Doubles:
    """(flows,) before the messages; ``paths`` may be none at all."""
    return np.array([path.threshold for path in paths], np.float64) if paths else np.full(flows, math.inf)


def _at_once(
    flows: _Batch, paths: Sequence[Path], capacity: float, access_capacity: Sequence[float]
) -> TransferTimes | None:
    """The times of flows with rates that never change; None where the general loop has to find them."""
    if capacity == math.inf and access_capacity:
        return _each_at_once(flows, paths, access_capacity)
    uncontended = _uncontended(flows, paths)
    shared = [(np.ones(flows.start.size, bool), capacity)]
    shared += [(flows.access_link == index, rate) for index, rate in enumerate(access_capacity)]
    if all(  # no link would ever be full if all flows ran at their caps
        float(flows.cap[which].sum()) <= rate * SLACK
        or _peak(flows.only(which), uncontended.finish[which]) <= rate * SLACK
        for which, rate in shared
    ):
        return uncontended
    if access_capacity or any(path.is_lossy for path in paths) or not (flows.cap > 0).all():
        return None
    del uncontended
    link = OneLink(flows.start, flows.bits, flows.cap, flows.until, flows.rtt, capacity)
    link.run()
    size = flows.start.size
    nothing = np.zeros((2, size))
    return TransferTimes(
        *(link.finish, link.sent, link.contention_seconds, nothing[0]),
        *(_thresholds(paths, size), link.own_seconds, nothing[1], link.held_seconds),
    )


def _each_at_once(flows: _Batch, paths: Sequence[Path], access_capacity: Sequence[float]) -> TransferTimes | None:
    """`_at_once` where the access links share nothing: each by itself, of which the memory of one is needed."""
    size = flows.start.size
    times = TransferTimes(*np.empty((len(fields(TransferTimes)), size)))
    by_link = np.argsort(flows.access_link, kind="stable")
    bounds = np.searchsorted(flows.access_link[by_link], np.arange(len(access_capacity) + 1)).tolist()
    for rate, (first, last) in zip(access_capacity, pairwise(bounds), strict=True):
        which = by_link[first:last]
        own_paths = [paths[flow] for flow in which.tolist()] if paths else []
        solved = _at_once(flows.only(which), own_paths, rate, ())
        if solved is None:
            return None
        solved = replace(solved, access_seconds=solved.server_seconds, server_seconds=solved.access_seconds)
        for name, column in vars(solved).items():
            getattr(times, name)[which] = column
    return times


def _peak(flows: _Batch, finish: Doubles) -> float:
    """The largest sum of the caps of simultaneous flows, if all run at their caps; bit/s."""
    end = np.minimum(finish, flows.until)
    starts, ends = np.argsort(flows.start), np.argsort(end)
    # At one instant flows leave before others join.
    joining = np.zeros(2 * end.size, bool)
    joining[np.searchsorted(end[ends], flows.start[starts], side="right") + np.arange(end.size)] = True
    change = np.empty(joining.size)
    change[joining] = flows.cap[starts]
    change[~joining] = -flows.cap[ends]
    return float(np.cumsum(change).max(initial=0.0))


def _uncontended(flows: _Batch, paths: Sequence[Path]) -> TransferTimes:
    """The times of flows that all run at their caps: `Sender` for many flows, in the same arithmetic."""
    size = flows.start.size
    times = TransferTimes.none(np.full(size, math.inf), _thresholds(paths, size))
    times.paused[flows.cap == 0] = (flows.until - flows.start)[flows.cap == 0]
    lossy = np.array([path.is_lossy for path in paths], bool) if paths else np.zeros(size, bool)
    for flow in np.flatnonzero(lossy & (flows.cap > 0)).tolist():
        _alone(flow, flows, sender(float(flows.bits[flow]), paths[flow]), times)
    which = np.flatnonzero((flows.cap > 0) & ~lossy)
    now, left, window = flows.start[which], flows.bits[which], np.full(which.size, INITIAL_WINDOW_BITS)
    cap, until, rtt = flows.cap[which], flows.until[which], flows.rtt[which]
    while which.size:
        window[window >= cap * rtt] = math.inf
        part = np.minimum(window, left)
        end = now + part / cap
        cut = end > until
        times.sent[which] += np.where(cut, np.minimum(cap * np.maximum(until - now, 0.0), part), part)
        left = left - part
        last = (left <= 0.0) & ~cut
        times.finish[which[last]] = end[last]
        waits = end < now + rtt
        own = np.where(waits & ~last & ~cut, 0.0, np.minimum(end, until) - now)
        times.own_seconds[which] += np.maximum(own, 0.0)
        now = np.where(waits, now + rtt, end)
        window = np.where(waits, window * 2.0, math.inf)
        goes_on = ~cut & ~last
        which, now, left, window, cap, until, rtt = (
            column[goes_on] for column in (which, now, left, window, cap, until, rtt)
        )
    return times


def _alone(flow: int, flows: _Batch, message: Sender, times: TransferTimes) -> None:
    """The times of one flow at its cap, part by part."""
    now: float | None = float(flows.start[flow])
    cap, until = float(flows.cap[flow]), float(flows.until[flow])
    while now is not None:
        if now >= until:
            break
        bits, rate = message.next_part(now, cap)
        end = now + bits / rate
        if end > until:
            message.broken_off(until, Served(until, min(rate * (until - now), bits), 0.0, 0.0))
            break
        now = message.part_sent(Served(end, bits, 0.0, 0.0))
    else:
        times.finish[flow] = end
    times.sent[flow], times.threshold[flow] = message.sent, message.threshold
    times.own_seconds[flow] = message.own_seconds


class _EventLoop:
    """Event-by-event transfer of a batch over a link that may be full, in the order that `FairLink` specifies."""

    def __init__(
        self,
        flows: _Batch,
        paths: Sequence[Path],
        link: FairLink,
        varying: Varying | None,
        outage: Outage | None,
        times: TransferTimes,
        broken_off: SenderNumbers,
    ) -> None:
        """``times`` are filled in as flows end; ``broken_off``: senders that go on."""
        self._start, self._bits, self._cap, self._until, self._access_link, self._rtt = (
            column.tolist() for column in vars(flows).values()
        )
        self._paths, self._link, self._varying, self._outage, self._times = paths, link, varying, outage, times
        self._queue: list[tuple[float, int, int]] = []
        self._under_way: dict[int, Sender] = {}
        self._sending: set[int] = set()
        self._broken_off = broken_off
        self.capacities: Capacities | None = None
        """Rates of the shared links, if they change"""
        self._capacities_until = -math.inf
        self.cut: SenderNumbers = {}
        """Senders that were cut"""

    def run(self, flows: Sequence[int]) -> None:
        """Transfer these flows of the batch."""
        queue, link = self._queue, self._link
        queue += [(self._start[flow], _JOIN, flow) for flow in flows if flow not in self._broken_off]
        for flow in flows:
            if flow in self._broken_off:
                self._go_on(flow)
        queue += [(self._until[flow], _LEAVE, flow) for flow in flows if self._until[flow] < math.inf]
        heapify(queue)
        while (now := min(link.next_finish(), queue[0][0] if queue else math.inf)) < math.inf:
            for flow, served in link.finished(now):
                self._sending.remove(flow)
                resume = self._under_way[flow].part_sent(served)
                if resume is None:
                    self._end(flow, now)
                else:
                    heappush(queue, (resume, _JOIN, flow))
            while queue and queue[0][0] == now:
                _, kind, flow = heappop(queue)
                if flow == _ALL:
                    if self._sending:
                        self._follow_capacities(now)
                elif kind == _JOIN and (flow in self._under_way or self._start[flow] == now):
                    self._join(flow, now)
                elif flow in self._under_way:
                    self._change(flow, now) if kind == _CHANGE else self._cut(flow, now)
        for flow in sorted(self._under_way):
            self._cut(flow, math.inf)

    def _follow_capacities(self, now: float) -> None:
        """Give the shared links their present rates, until the next change."""
        if self.capacities is not None and now >= self._capacities_until:
            (server, *sites), self._capacities_until = self.capacities(now)
            self._link.resize(now, server, sites)
            if self._capacities_until < math.inf:
                heappush(self._queue, (self._capacities_until, _CHANGE, _ALL))

    def _go_on(self, flow: int) -> None:
        """Let a flow that was broken off go on: its part, or the next one when that may begin."""
        start, message = self._start[flow], self._new_sender(flow)
        self._queue.append((start, _CHANGE, flow))  # to follow its cap, and to see whether an outage has ended
        begins = message.tries_at if message.is_stalled else message.resumes_at
        if begins < math.inf:
            self._queue.append((max(start, begins), _JOIN, flow))

    def _new_sender(self, flow: int) -> Sender:
        path = self._paths[flow] if self._paths else Path(self._rtt[flow], self._rtt[flow] > 0)
        message = self._under_way[flow] = sender(self._bits[flow], path, self._broken_off.get(flow, ()))
        return message

    def _join(self, flow: int, now: float) -> None:
        cap = self._cap_now(flow, now, follow=flow not in self._under_way)
        if flow not in self._under_way:
            self._new_sender(flow)
        message = self._under_way[flow]
        if self._is_outage(flow, now, cap):
            message.stalls(now)
        elif message.may_begin(now):
            self._follow_capacities(now)
            self._sending.add(flow)
            self._link.join(now, flow, *message.next_part(now, cap), self._access_link[flow])

    def _change(self, flow: int, now: float) -> None:
        cap, message = self._cap_now(flow, now, follow=True), self._under_way[flow]
        if self._is_outage(flow, now, cap):
            if flow in self._sending:
                self._sending.remove(flow)
                message.stalls(now, self._link.remove(now, flow))
        elif message.is_stalled:
            time = message.try_at(now)
            if time is not None:
                heappush(self._queue, (time, _JOIN, flow))
        elif flow in self._sending:
            self._link.change(now, flow, message.cap(cap))

    def _is_outage(self, flow: int, now: float, cap: float) -> bool:
        return cap == 0 and self._outage is not None and self._outage(flow, now)

    def _cap_now(self, flow: int, now: float, follow: bool) -> float:
        """The cap of a flow; with ``follow``, its next change is put into the queue."""
        if self._varying is None:
            return float(self._cap[flow])
        cap, change = self._varying(flow, now)
        assert change > now, (flow, now, change)
        if follow and change < math.inf:
            heappush(self._queue, (change, _CHANGE, flow))
        return cap

    def _cut(self, flow: int, now: float) -> None:
        served = None
        if flow in self._sending:
            self._sending.remove(flow)
            served = self._link.remove(now, flow)
        message = self._under_way[flow]
        message.broken_off(now, served)
        self.cut[flow] = message.numbers()
        self._end(flow, math.inf)

    def _end(self, flow: int, finish: float) -> None:
        message, times = self._under_way.pop(flow), self._times
        times.finish[flow], times.sent[flow], times.threshold[flow] = finish, message.sent, message.threshold
        times.contention_seconds[flow], times.paused[flow] = message.contention_seconds, message.paused
        times.own_seconds[flow] = message.own_seconds
        times.access_seconds[flow], times.server_seconds[flow] = message.access_seconds, message.server_seconds
