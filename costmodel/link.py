"""Exact max-min fair sharing of one link among fluid flows, each behind a cap of its own.

At any moment flow i runs at min(cap_i, w), where the water level w is the one number that fills the link (infinite
while all caps together fit in). The level changes only when a flow starts or ends, so the rates are constant between
two such events and the solver steps from event to event: O(n) numpy each, O(n^2) for n flows.

Times are absolute and float64. A flow that is never held below its cap ends at ``start + bits / cap``, to the bit,
whoever else is on the link. The outcome does not depend on the order of the flows.

Sharing by progressive filling: D. Bertsekas, R. Gallager, Data Networks, 2nd ed., 1992, section 6.5.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]

# Caps that exceed the link by rounding alone do not contend.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Shared:
    """How the flows of one batch fared; arrays of shape (flows,)."""

    finish: Doubles
    """Absolute seconds at which the last bit was sent; inf if that was not by ``until``."""
    sent: Doubles
    """Bits sent by ``until`` or ``finish``, whichever is first."""


@dataclass(frozen=True)
class _Flows:
    start: Doubles
    bits: Doubles
    cap: Doubles


def share(start: ArrayLike, bits: ArrayLike, cap: ArrayLike, capacity: float, until: float = math.inf) -> Shared:
    """Send each flow over a link of ``capacity`` bit/s, and stop looking at ``until`` (absolute seconds).

    ``start`` in absolute seconds (inf: never), ``bits`` >= 0 and ``cap`` > 0 in bit/s all have shape (flows,). A flow
    of zero bits ends when it starts.
    """
    flows = _Flows(*(np.asarray(values, np.float64) for values in (start, bits, cap)))
    assert flows.start.shape == flows.bits.shape == flows.cap.shape, (flows.start.shape, flows.bits.shape)
    assert (flows.bits >= 0).all(), bits
    assert (np.isfinite(flows.cap) & (flows.cap > 0)).all(), cap
    assert capacity > 0, capacity
    finish = np.where((flows.bits == 0) & (flows.start <= until), flows.start, math.inf)
    sent = np.zeros_like(finish)
    # In ascending order of cap, which is what the water level needs at every event.
    order = np.argsort(flows.cap, kind="stable")
    order = order[(flows.bits[order] > 0) & (flows.start[order] < until)]
    live = _Flows(flows.start[order], flows.bits[order], flows.cap[order])
    fits = _peak(live) <= capacity * (1 + ROUNDING)
    finish[order], sent[order] = _alone(live, until) if fits else _contended(live, capacity, until)
    return Shared(finish, sent)


def water_level(cap: Doubles, capacity: float) -> float:
    """The rate w with sum(min(cap, w)) = capacity, for ascending caps; inf if the caps do not fill the link."""
    total = np.cumsum(cap)
    if cap.size == 0 or total[-1] <= capacity * (1 + ROUNDING):
        return math.inf
    # level[k] is what each from k on gets if those before k run at their caps. The first k whose cap is no less is
    # held at it, and so are all after it, whose caps are larger.
    level = (capacity - (total - cap)) / np.arange(cap.size, 0, -1)
    return float(level[np.argmax(level <= cap)])


def _peak(flows: _Flows) -> float:
    """The largest sum of the caps of flows active together, were none of them held below its cap."""
    times = np.concatenate([flows.start + flows.bits / flows.cap, flows.start])
    change = np.concatenate([-flows.cap, flows.cap])
    # Stable, so that at one instant flows leave before others join.
    return float(np.cumsum(change[np.argsort(times, kind="stable")]).max(initial=0.0))


def _alone(flows: _Flows, until: float) -> tuple[Doubles, Doubles]:
    """(finish, sent) of flows that all run at their caps."""
    finish = flows.start + flows.bits / flows.cap
    cut = np.minimum(flows.bits, flows.cap * (until - flows.start))
    return np.where(finish <= until, finish, math.inf), np.where(finish <= until, flows.bits, cut)


def _contended(flows: _Flows, capacity: float, until: float) -> tuple[Doubles, Doubles]:
    """(finish, sent), event by event, for caps in ascending order and starts before ``until``."""
    start, bits, cap = flows.start, flows.bits, flows.cap
    alone, left, starts = start + bits / cap, bits.copy(), np.unique(start)
    finish = np.full_like(bits, math.inf)
    done, held = np.zeros(bits.size, bool), np.zeros(bits.size, bool)
    now = float(starts[0])
    while not done.all():
        active = np.flatnonzero((start <= now) & ~done)
        rate = np.minimum(cap[active], water_level(cap[active], capacity))
        held[active] |= rate < cap[active]
        # From the start if never held back, and not from what is left: no rounding, whatever the events in between.
        end = np.where(held[active], now + left[active] / rate, alone[active])
        joining = starts[np.searchsorted(starts, now, side="right") :]
        event = float(min(end.min(initial=math.inf), joining.min(initial=math.inf)))
        left[active] = np.maximum(left[active] - rate * (min(event, until) - now), 0.0)
        if event > until:
            break
        ended = active[end <= event]
        finish[ended], done[ended], now = event, True, event
    _, sent_alone = _alone(flows, until)
    return finish, np.where(done, bits, np.where(held, bits - left, sent_alone))
