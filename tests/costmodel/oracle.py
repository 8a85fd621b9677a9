"""Max-min sharing the plain way: every rate planned anew at every event; and slow start in closed form.

It shares no code and no idea with `costmodel.network.fair_link` but the definition of max-min fairness: O(n) and more
per event.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from costmodel.network.senders import INITIAL_WINDOW_BITS
from costmodel.network.transfers import TransferTimes, transfer_batch

Doubles = NDArray[np.float64]
Steps = tuple[tuple[float, float], ...]
"""(from when on in absolute seconds, cap in bit/s), ascending; the first holds before it too."""


def slow_start_seconds(rtt: float, bits_per_second: float, bits: float) -> float:
    """The closed form of what a sender, alone on a link, waits: a round trip less each window, as it doubles."""
    idle, sent, window = 0.0, 0.0, INITIAL_WINDOW_BITS
    while sent + window < bits and window < bits_per_second * rtt:
        idle += rtt - window / bits_per_second
        sent += window
        window *= 2.0
    return idle


@dataclass(frozen=True)
class Case:
    """A batch of flows and the links they share."""

    start: Doubles
    bits: Doubles
    steps: tuple[Steps, ...]
    until: Doubles
    site: NDArray[np.intp]
    capacity: float
    site_capacity: tuple[float, ...]

    def varying(self, flow: int, now: float) -> tuple[float, float]:
        """What `transfer_batch` asks for: (cap from ``now`` on, when it changes next)."""
        steps = self.steps[flow]
        place = max(bisect_right(steps, now, key=lambda step: step[0]), 1)
        return steps[place - 1][1], steps[place][0] if place < len(steps) else math.inf

    def only(self, flows: NDArray[np.intp]) -> Case:
        """The same links for these flows only, in this order."""
        steps = tuple(self.steps[flow] for flow in flows)
        return replace(
            self,
            start=self.start[flows],
            bits=self.bits[flows],
            steps=steps,
            until=self.until[flows],
            site=self.site[flows],
        )

    def shared(self) -> TransferTimes:
        """What the product makes of it."""
        constant = all(len(steps) == 1 for steps in self.steps)
        return transfer_batch(
            self.start,
            self.bits,
            np.array([steps[0][1] for steps in self.steps]) if constant else None,
            self.capacity,
            self.until,
            access_link=self.site,
            access_capacity=self.site_capacity,
            varying=None if constant else self.varying,
        )


def random_case(rng: np.random.Generator, flows: int, sites: int, changes: int = 3, *, whole: bool = False) -> Case:
    """Flows that come, change, pause and are cut off on links that are now full, now not.

    ``sites`` 0: one level. ``whole``: small whole numbers, so that much falls on one instant and on one cap.
    """
    start: Doubles = rng.exponential(rng.choice([0.01, 1.0, 5.0]), flows)
    bits: Doubles = rng.lognormal(1, 1, flows)
    if whole:
        start, bits = rng.integers(0, 8, flows).astype(np.float64), rng.integers(0, 30, flows).astype(np.float64)
    site = rng.integers(0, max(sites, 1), flows)
    until = np.where(rng.random(flows) < 0.2, start + rng.integers(0, 9, flows), math.inf)

    def cap() -> float:
        return float(rng.integers(1, 9)) if whole else float(rng.lognormal(0, 1))

    def steps(first: float) -> Steps:
        times = first + np.sort(rng.choice(40, int(rng.integers(0, changes + 1)), replace=False)) / 4
        later = [(float(time), cap() if rng.random() < 0.7 else 0.0) for time in times if time > first]
        # None stays paused for ever.
        return ((0.0, cap()), *later, (first + 11.0, cap())) if later else ((0.0, cap()),)

    histories = tuple(steps(float(first)) for first in start)
    demand = sum(each[0][1] for each in histories)
    capacity = float(demand * rng.uniform(0.02, 1.1))
    at_sites = tuple(float(demand / sites * rng.uniform(0.05, 1.2)) for _ in range(sites))
    if whole:
        capacity, at_sites = math.ceil(capacity) * 1.0, tuple(math.ceil(each) * 1.0 for each in at_sites)
    return Case(start, bits, histories, until, site, capacity, at_sites)


def fair_rates(cap: Doubles, site: NDArray[np.intp], capacity: float, site_capacity: tuple[float, ...]) -> Doubles:
    """Max-min rates: again and again, all whose cap is no more than the least fair share of a link are given their
    cap; if there are none, that link is the bottleneck of all on it, who are given the share.
    """
    links = [(np.ones(cap.size, bool), capacity)]
    links += [(site == index, room) for index, room in enumerate(site_capacity)]
    rates, growing = np.zeros(cap.size), np.ones(cap.size, bool)
    while growing.any():
        shares = [
            (room - rates[on & ~growing].sum()) / (on & growing).sum() if (on & growing).any() else math.inf
            for on, room in links
        ]
        least = int(np.argmin(shares))
        capped = growing & (cap <= shares[least])
        given = capped if capped.any() else growing & links[least][0]
        rates[given] = np.minimum(cap[given], shares[least])
        growing &= ~given
    return rates


def replanned(case: Case) -> TransferTimes:
    """How the flows of ``case`` fare, with rates constant from one start, end, cut or change to the next."""
    flows = case.start.size
    done = (case.bits == 0) | (case.start >= case.until)
    finish = np.where((case.bits == 0) & (case.start <= case.until), case.start, math.inf)
    left, held, paused = case.bits.copy(), np.zeros(flows), np.zeros(flows)
    instants = {time for steps in case.steps for time, _ in steps} | set(case.start.tolist()) | set(case.until.tolist())
    fixed = np.array(sorted(instants))
    now = float(case.start.min(initial=0.0))
    while not done.all():
        active = np.flatnonzero((case.start <= now) & ~done)
        cap = np.array([case.varying(int(flow), now)[0] for flow in active])
        rate = fair_rates(cap, case.site[active], case.capacity, case.site_capacity)
        going = np.full(active.size, math.inf)
        np.divide(left[active], rate, out=going, where=rate > 0)
        coming = fixed[np.searchsorted(fixed, now, side="right") :]
        event = min(float((now + going).min(initial=math.inf)), float(coming.min(initial=math.inf)))
        assert event < math.inf, "a flow is paused for ever"
        held[active] += (event - now) * (1 - np.divide(rate, cap, out=np.ones_like(cap), where=cap > 0))
        paused[active] += np.where(cap > 0, 0.0, event - now)
        # What is left by rounding alone is not left.
        ended = active[(now + going <= event) | (left[active] - rate * (event - now) <= 1e-13 * case.bits[active])]
        left[active] = np.maximum(left[active] - rate * (event - now), 0.0)
        left[ended], finish[ended], now = 0.0, event, event
        done[ended] = True
        done |= case.until <= now
    none = TransferTimes.none(finish, np.full(finish.size, math.inf))
    return replace(none, sent=case.bits - left, contention_seconds=held, paused=paused)


def exact_finish(flows: list[tuple[int, int, int]], capacity: int) -> list[float]:
    """Finish times of flows of (start, bits, cap) on one link, in exact arithmetic."""
    left = {flow: Fraction(bits) for flow, (_, bits, _) in enumerate(flows) if bits}
    finish = {flow: Fraction(start) for flow, (start, bits, _) in enumerate(flows) if not bits}
    now = Fraction(0)
    while left:
        active = {flow: Fraction(flows[flow][2]) for flow in left if flows[flow][0] <= now}
        rates = _filled(active, Fraction(capacity))
        events = [now + left[flow] / rate for flow, rate in rates.items()]
        event = min(events + [Fraction(flows[flow][0]) for flow in left if flows[flow][0] > now])
        for flow, rate in rates.items():
            left[flow] -= rate * (event - now)
            if left[flow] == 0:
                finish[flow] = event
        left, now = {flow: rest for flow, rest in left.items() if rest}, event
    return [float(finish[flow]) for flow in range(len(flows))]


def _filled(caps: dict[int, Fraction], capacity: Fraction) -> dict[int, Fraction]:
    """Max-min rates by filling all flows alike until one is at its cap, over and over."""
    rates, growing, rest = dict.fromkeys(caps, Fraction(0)), set(caps), capacity
    while growing and rest > 0:
        step = min(rest / len(growing), *(caps[flow] - rates[flow] for flow in growing))
        for flow in growing:
            rates[flow] += step
        rest -= step * len(growing)
        growing = {flow for flow in growing if rates[flow] < caps[flow]}
    return rates


@dataclass(frozen=True)
class AirFlows:
    """Flows on the air of access points, each array of shape (flows,)."""

    bits: Doubles
    cap: Doubles
    access_link: NDArray[np.intp]
    direction: NDArray[np.intp]
    link_rate: Doubles

    def rows(self) -> list[tuple[float, float, int, int, float]]:
        """What `AirLink.join` takes of each."""
        return list(zip(*(column.tolist() for column in vars(self).values()), strict=True))

    def only(self, flows: list[int]) -> AirFlows:
        """These flows, in this order."""
        return AirFlows(*(column[flows] for column in vars(self).values()))


def random_air(rng: np.random.Generator) -> tuple[AirFlows, int, tuple[float, float]]:
    """Flows, the number of access points, and the server's capacities, both often too small."""
    flows, access_points = int(rng.integers(2, 25)), int(rng.integers(1, 5))
    link_rate = rng.lognormal(0, 1.2, flows)
    cap = link_rate * np.where(rng.random(flows) < 0.5, 1.0, rng.random(flows))
    place, direction = rng.integers(0, access_points, flows), rng.integers(0, 2, flows)
    down, up = (float(rng.choice([0.1, 0.3, 0.6, 50.0])) * access_points for _ in range(2))
    return AirFlows(rng.lognormal(1, 1, flows), cap, place, direction, link_rate), access_points, (down, up)


def flows_without_bottleneck(
    flows: AirFlows, rates: Doubles, capacity: tuple[float, float], fair: str, slack: float = 1e-9
) -> list[int]:
    """The flows that could run faster at the cost of none that has less, or run faster than they may; by definition.

    A flow's bottleneck is its cap, or a full access point that gives no other flow a larger share, or a full direction
    of the server that gives no other a larger rate.
    """
    air = rates / flows.link_rate
    share = air if fair == "time" else rates

    def is_bottleneck(flow: int) -> bool:
        nearby = flows.access_link == flows.access_link[flow]
        alike = flows.direction == flows.direction[flow]
        used, load = float(air[nearby].sum()), float(rates[alike].sum() / capacity[flows.direction[flow]])
        assert max(used, load, rates[flow] / flows.cap[flow]) <= 1 + slack
        return (
            rates[flow] >= flows.cap[flow] * (1 - slack)
            or (used >= 1 - slack and share[flow] >= share[nearby].max() * (1 - slack))
            or (load >= 1 - slack and rates[flow] >= rates[alike].max() * (1 - slack))
        )

    return [flow for flow in range(rates.size) if not is_bottleneck(flow)]
