"""The waits of visits for one device of the server's, which serves their steps in order of arrival.

A visit goes round: it computes and travels on its own for ``own`` seconds, queues for the device, and is served for
``service`` seconds. This is a closed queueing network with one customer for each visit, and its waits follow from mean
values: a step that arrives finds the others waiting or in service as often as they are on the average, waits for all
of those that wait, and for half of the one in service, whose seconds are fixed (M. Reiser and S. Lavenberg, Mean-Value
Analysis of Closed Multichain Queuing Networks, Journal of the ACM 27, 1980; P. Schweitzer's approximation, 1979). A
device is busy at most all the time, and visits that have made all their steps leave it to the others.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import Doubles

ITERATIONS, TOLERANCE = 200, 1e-9
"""Most iterations towards mean values, and the share of a step by which the last one may change a wait"""
SEGMENTS = 32
"""Of visits under way, one in so many leaves at a time, where they do not leave together"""
HALVINGS = 60


def waits_of_a_step(own: Doubles, service: Doubles) -> Doubles:
    """(visits,) Seconds for which a step of each waits for the device, while all of these are under way."""
    waits = np.zeros_like(own)
    if len(own) < 2:
        return waits
    for _ in range(ITERATIONS):
        cycle = own + service + waits
        found = np.divide(waits * service + service**2 / 2, cycle, out=np.zeros_like(cycle), where=cycle > 0)
        following = found.sum() - found
        change = float(np.abs(following - waits).max())
        waits = following
        if change <= TOLERANCE * float(cycle.max()):
            break
    return waits + _missing(own + service + waits, service)


def _missing(cycle: Doubles, service: Doubles) -> float:
    """Seconds by which all of these cycles would be longer for a device that is busy all the time."""
    if _busy(cycle, service, 0.0) <= 1:
        return 0.0
    low, high = 0.0, float(service.sum())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _busy(cycle, service, middle) > 1 else (low, middle)
    return high


def _busy(cycle: Doubles, service: Doubles, more: float) -> float:
    return float(np.divide(service, cycle + more, out=np.zeros_like(cycle), where=cycle + more > 0).sum())


def queue_seconds(own: Doubles, service: Doubles, turns: Doubles, leave: bool = True) -> Doubles:
    """(visits,) Seconds for which each waits for the device in all its ``turns``, (visits,), which begin together.

    ``own``, ``service``: seconds of one turn; ``leave``: whether a visit that has had its turns leaves the device to
    the others, or another one like it comes.
    """
    ends, left, now = np.zeros_like(own), turns.astype(np.float64), 0.0
    if not leave:
        waits: Doubles = waits_of_a_step(own, service) * turns
        return waits
    active = np.flatnonzero((left > 0) & (service > 0))
    ends[:] = left * (own + service)
    while len(active):
        cycle = own[active] + service[active] + waits_of_a_step(own[active], service[active])
        rest = left[active] * cycle
        until = np.partition(rest, place := max(len(active) // SEGMENTS - 1, 0))[place]
        is_over = rest <= until
        ends[active[is_over]] = now + rest[is_over]
        left[active] -= until / cycle
        now, active = now + until, active[~is_over]
    return np.maximum(ends - turns * (own + service), 0.0)
