"""Links that flows share by the windows of their senders: ``fleet.transport.sharing = "windows"``.

A flow sends a window in each round trip, which takes longer by what waits in the queues on its way. So flows behind one
full queue share its link by their windows, and not equally: a long round trip, a late start or a loss leaves a flow
behind the others until its window has grown. A queue that is full drops segments, of the flows at random, in proportion
to their windows, as these come in bursts. That window is cut to 0.7 and grows again as cubic does (RFC 9438), by the
seconds since; Reno's is halved, and grows by a segment in each round trip. Where queues are shorter than the paths, or
losses narrow windows, the link is idle in between.

`costmodel.network.fair_link` is what such windows come to over time where queues are long. It is solved from event to
event; here time goes by in steps of half a round trip, with the rates of each step at which the queues stand still.
Nothing here knows of messages, visits or directions.

Slow start ends at the threshold of the connection, at a loss, or where round trips become longer (HyStart). Repair of a
loss: `costmodel.network.senders`. Queues that stand still between steps: V. Misra, W. Gong, D. Towsley, Fluid-based
analysis of a network of AQM routers supporting TCP flows, SIGCOMM 2000. How long a queue has to be: G. Appenzeller, I.
Keslassy, N. McKeown, Sizing router buffers, SIGCOMM 2004.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.network.fair_link import Served
from costmodel.network.flow_table import FlowTable
from costmodel.network.senders import (
    CUBIC,
    HYSTART_SECONDS,
    HYSTART_SEGMENTS,
    INITIAL_WINDOW_BITS,
    REPAIR_ROUND_TRIPS,
    Congestion,
    Path,
)
from costmodel.network.tcp import FRAME_BITS

LEAST_RTT = 1e-3
"""Seconds, of hosts that take some time, too"""
STEPS_PER_ROUND_TRIP, STEP_SECONDS = 2.0, (0.005, 0.1)
"""A step of time: a part of the shortest round trip, and its seconds at least and at most"""
SLOW_START_STEPS, SLOW_START_SECONDS = 8.0, (0.001, 0.025)
"""Likewise while some window doubles in each round trip"""
MOST_GROWTH = 1.5
"""The factor on a window in a round trip: an acknowledgement lets it grow by half a segment at most (RFC 9438)"""
LEARNT = 1.5
"""Times a window that doubles has grown when its sender learns of a loss, as half of what it sent was lost"""
KEPT = 0.75
"""Linux: the share of a window that a connection which has been idle knows to be safe"""
SETTLED = 1e-3
"""The part of `LEAST_RTT` by which queues may still move in a step"""
ROUNDING = 1e-12
MOST_ROUNDS, MOST_STEPS = 12, 60
"""Rounds between the server's link and those of sites, and steps for the queues of either"""


class WindowLink(FlowTable):
    """A link of ``capacity`` bit/s, and behind it access links of ``access_capacity[g]`` bit/s each, if any; each has a
    queue of ``queue_bits``.

    `next_finish` may also be the end of a step, at which no flow ends.
    """

    # Of the table of flows, one column each. Times in absolute seconds, rates and windows in segments; ``turn``,
    # ``widest``, ``age``: where cubic's curve is level, its window there, and seconds since it began, NaN before;
    # ``least``: the window that Reno would have; ``luck``: what may yet be lost until this flow loses a segment.
    _ROWS = (
        *("link", "rtt", "cap", "bits", "sent", "window", "threshold", "widest", "age", "turn", "least", "last_widest"),
        *("loss", "luck", "repaired", "rate", "good", "lost", "paused", "access_seconds", "server_seconds"),
        "window_seconds",
    )

    def __init__(
        self, capacity: float, access_capacity: Sequence[float], queue_bits: float, congestion: Congestion = CUBIC
    ) -> None:
        assert capacity > 0, capacity
        super().__init__()
        self._queue, self._congestion = queue_bits / FRAME_BITS, congestion
        self._capacity = np.array([capacity, *access_capacity], np.float64) / FRAME_BITS
        self._waiting = np.zeros(len(self._capacity))
        """(links,) Seconds that a segment waits in each queue"""
        self._losses: dict[int, random.Random] = {}
        """By flow"""
        # Of the present flows and rates: their links but the server's, the links of each level, each flow's slowest.
        self._link = self._narrowest = np.zeros(0, np.intp)
        self._levels = [self._link]

    def join(self, now: float, flow: int, bits: float, cap: float, access_link: int, path: Path) -> None:
        """Let ``flow`` start to send ``bits`` > 0 with a cap of ``cap`` bit/s; a cap of 0 pauses it."""
        rtt, window = max(path.rtt, LEAST_RTT), INITIAL_WINDOW_BITS / FRAME_BITS
        if not path.starts_slowly:  # that of the last message, which fills the own link if it never lost a segment
            window = max(window, path.threshold if path.threshold < math.inf else cap * rtt / FRAME_BITS)
        draws = self._losses[flow] = random.Random(path.seed)
        column = {
            "link": 1 + access_link if len(self._capacity) > 1 else 0,
            "rtt": rtt,
            "cap": cap / FRAME_BITS,
            "bits": bits,
            "window": window,
            "threshold": path.threshold,
            "age": math.nan,
            "loss": path.loss,
            "luck": _luck(draws),
            "repaired": -math.inf,
        }
        self._add(now, flow, column)
        self._arrange()

    def change(self, now: float, flow: int, cap: float) -> None:
        """Change the cap of ``flow`` to ``cap`` bit/s from now on; a cap of 0 pauses it."""
        place = self._places[flow]
        if self._row("cap")[place] != cap / FRAME_BITS:
            self._move_on(now)
            self._row("cap")[place] = cap / FRAME_BITS
            self._is_planned = False

    def resize(self, now: float, capacity: float, access_capacity: Sequence[float] = ()) -> None:
        """Change the capacities from now on, to as many as there were."""
        rates = np.array([capacity, *access_capacity], np.float64) / FRAME_BITS
        if (rates != self._capacity).any():
            self._move_on(now)
            self._capacity, self._is_planned = rates, False
            self._arrange()

    def demands(self) -> list[float]:
        """The caps of the flows of each access link together, or of all if there is none; bit/s."""
        return self._by_access_link(self._row("cap"))

    def rates(self) -> list[float]:
        """The rates that windows grow to: `demands`, as far as each link carries them; bit/s."""
        own = self._capacity[1:] if len(self._capacity) > 1 else self._capacity
        return [min(asked, rate * FRAME_BITS) for asked, rate in zip(self.demands(), own.tolist(), strict=True)]

    def present_rates(self) -> dict[int, float]:
        """The rate of each flow by its number; bit/s."""
        self._plan()
        return dict(zip(self._numbers, (self._row("good") * FRAME_BITS).tolist(), strict=True))

    # --- time goes by ---------------------------------------------------------------------------------------------

    def _have_ended(self) -> NDArray[np.bool_]:
        return np.asarray(self._row("sent") >= self._row("bits") * (1.0 - ROUNDING))

    def _pass(self, seconds: float) -> None:
        """Send at the rates of this step, and let windows grow or shrink by what has come of it."""
        self._is_planned = False
        if not self._numbers or math.isinf(seconds):
            return
        waiting, arrived = self._delays(), self._row("good") * seconds
        self._row("sent")[:] = np.minimum(self._row("sent") + arrived * FRAME_BITS, self._row("bits"))
        self._account(seconds, waiting)
        self._grow(seconds, arrived, waiting)
        self._lose(seconds, arrived, waiting)

    def _account(self, seconds: float, waiting: Doubles) -> None:
        """Count what set the rate of each flow: nothing while it is paused; its own link; a queue; or its window."""
        cap, good = self._row("cap"), self._row("good")
        alone = np.minimum(cap, self._row("window") / self._row("rtt"))
        share = np.divide(good, alone, out=np.ones_like(good), where=alone > 0)
        is_paused, is_own = cap == 0, good >= cap
        waits_at_server = (self._waiting[0] > 0) & (self._waiting[0] >= waiting - self._waiting[0])
        is_held = ~is_own & (waiting > 0)
        self._row("paused")[is_paused] += seconds
        self._row("lost")[is_held] += (seconds * (1.0 - np.minimum(share, 1.0)))[is_held]
        for name, which in (
            ("server_seconds", is_held & waits_at_server),
            ("access_seconds", is_held & ~waits_at_server),
            ("window_seconds", ~is_own & ~is_held),
        ):
            self._row(name)[which] += seconds

    def _grow(self, seconds: float, acknowledged: Doubles, waiting: Doubles) -> None:
        """Let the windows grow that do not repair a loss."""
        window, threshold, age = self._row("window"), self._row("threshold"), self._row("age")
        rtt = self._row("rtt") + waiting
        grows = (self._row("repaired") <= self._now) & (acknowledged > 0)
        doubles = grows & (window < threshold)
        longer = self._seen_queues(doubles, waiting)
        window[doubles] += acknowledged[doubles]
        leaves = doubles & (window >= HYSTART_SEGMENTS)
        leaves &= longer >= np.clip(self._row("rtt") / 8.0, *HYSTART_SECONDS)
        threshold[leaves] = window[leaves]
        follows = grows & ~doubles
        for place in np.flatnonzero(follows & np.isnan(age)).tolist():
            self._begin(place)
        if follows.any():
            age[follows] += seconds
            least = self._row("least")
            least[follows] += self._congestion.growth * acknowledged[follows] / window[follows]
            since = age + rtt - self._row("turn")
            target = self._row("widest") + self._congestion.scale * (since * since * since)
            target = np.maximum(target, least) if self._congestion.scale else least
            target = np.minimum(target, MOST_GROWTH * window)
            part = np.minimum(acknowledged / window, 1.0)
            window[follows] = (window + np.maximum(target - window, 0.0) * part)[follows]

    def _seen_queues(self, which: NDArray[np.bool_], waiting: Doubles) -> Doubles:
        """(flows,) By how many seconds the first round trips of a window are longer than an empty path's; 0 but for
        ``which``.

        A window that does not fill the path comes as one burst, whose first segments find what the others have left in
        the queue: that is a Newton step without it.
        """
        longer = np.zeros_like(waiting)
        if not which.any():
            return longer
        rate, rtt, window = self._row("rate"), self._row("rtt"), self._row("window")
        places = self._narrowest
        moves = np.where(rate < self._row("cap"), rate / (rtt + waiting), 0.0)
        others = np.bincount(places, moves, minlength=len(self._capacity))[places] - moves
        less = np.divide(rate, others, out=np.full_like(rate, math.inf), where=others > ROUNDING)
        fills = window >= np.minimum(self._row("cap"), self._capacity[places]) * rtt
        own = np.divide(window, rate, out=np.zeros_like(rate), where=rate > 0) - rtt - waiting
        longer[which] = (np.maximum(own, 0.0) + np.where(fills, waiting, np.maximum(waiting - less, 0.0)))[which]
        return longer

    def _begin(self, place: int) -> None:
        """Cubic's curve begins: back to the window of the last loss, or upward from here."""
        window, widest = self._row("window")[place], self._row("last_widest")[place]
        self._row("age")[place], self._row("least")[place] = 0.0, window
        self._row("widest")[place] = max(window, widest)
        self._row("turn")[place] = self._congestion.seconds_to_widest(widest, window)

    def _lose(self, seconds: float, acknowledged: Doubles, waiting: Doubles) -> None:
        """Cut the windows of flows that lose a segment, at random or in a full queue."""
        window, luck, size = self._row("window"), self._row("luck"), len(self._capacity)
        luck -= self._row("loss") * acknowledged
        for places in self._levels:
            dropped = (np.bincount(places, self._row("rate"), minlength=size) - self._capacity) * seconds
            dropped[self._waiting < self._queue / self._capacity] = 0.0
            windows = np.bincount(places, window, minlength=size)
            share = np.divide(dropped, windows, out=np.zeros_like(windows), where=(windows > 0) & (dropped > 0))
            luck -= share[places] * window
        cap, narrowest = self._row("cap"), self._narrowest
        overflows = (cap > 0) & (window > cap * (self._row("rtt") + waiting) + self._queue)
        # Slow start sends two segments for each that has left the bottleneck: half of a window waits there at once.
        queued = self._waiting * np.where(np.isinf(self._capacity), 0.0, self._capacity)
        room = self._queue - np.where(cap > self._capacity[narrowest], queued[narrowest], 0.0)
        overflows |= (window < self._row("threshold")) & (window / 2.0 > room) & (acknowledged > 0)
        for place in np.flatnonzero((luck <= 0.0) | overflows).tolist():
            luck[place] = _luck(self._losses[self._numbers[place]])
            if self._row("repaired")[place] > self._now:
                continue
            wide = window[place] * (LEARNT if window[place] < self._row("threshold")[place] else 1.0)
            beta, before = self._congestion.beta, self._row("last_widest")[place]
            # RFC 9438, 4.7: a window that does not come up to the last one leaves room for others.
            self._row("last_widest")[place] = wide * (1 + beta) / 2 if wide < before else wide
            window[place] = self._row("threshold")[place] = max(beta * wide, 2.0)
            self._row("age")[place] = math.nan
            self._row("repaired")[place] = self._now + REPAIR_ROUND_TRIPS * (self._row("rtt") + waiting)[place]

    # --- the rates of a step --------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Find how long segments wait in each queue, the rates, and when the step or a flow ends."""
        if self._is_planned:
            return
        self._is_planned = True
        self._next = math.inf
        if not self._numbers:
            self._waiting = np.zeros(len(self._capacity))
            return
        rtt, cap = self._row("rtt"), self._row("cap")
        window = np.where(self._row("repaired") > self._now, self._congestion.beta, 1.0) * self._row("window")
        for _ in range(MOST_ROUNDS if len(self._levels) > 1 else 1):
            before = self._waiting.copy()
            for places in self._levels:
                self._fill(places, window, rtt, cap)
            if np.abs(self._waiting - before).max() <= SETTLED * LEAST_RTT:
                break
        rate = np.minimum(cap, window / (rtt + self._delays()))
        self._row("rate")[:] = rate
        for places in self._levels:  # what a full queue cannot take is dropped
            load = np.bincount(places, rate, minlength=len(self._capacity))
            passes = np.divide(self._capacity, load, out=np.ones_like(load), where=load > 0)
            rate = rate * np.minimum(1.0, passes)[places]
        self._row("good")[:] = rate
        if not (rate > 0).any():
            return
        left = (self._row("bits") - self._row("sent")) / FRAME_BITS
        ends = np.divide(left, rate, out=np.full_like(left, math.inf), where=rate > 0)
        trip, doubles = rtt + self._delays(), (rate > 0) & (self._row("window") < self._row("threshold"))
        step = _step(float(trip[rate > 0].min()), STEPS_PER_ROUND_TRIP, STEP_SECONDS)
        if doubles.any():
            step = min(step, _step(float(trip[doubles].min()), SLOW_START_STEPS, SLOW_START_SECONDS))
        elif self._stays(trip):
            step = math.inf
        self._next = self._now + max(min(step, float(ends.min())), math.ulp(self._now))

    def _fill(self, places: NDArray[np.intp], window: Doubles, rtt: Doubles, cap: Doubles) -> None:
        """Find how long segments wait for the links at ``places``, one for each flow, while other queues stand still.

        The load of a link falls with the wait, so that an empty or a full queue is seen at once; between them Newton's
        method finds it, or bisection where a step leaves the bounds that the steps before it left.
        """
        size = len(self._capacity)
        others = rtt + self._delays() - self._waiting[places]

        def at(waits: Doubles) -> tuple[Doubles, Doubles]:
            """(load above the rate, by how much it falls with a second of waiting) of each link."""
            trip = others + waits[places]
            rate = np.minimum(cap, window / trip)
            falls = np.bincount(places, np.where(rate < cap, rate / trip, 0.0), minlength=size)
            return np.bincount(places, rate, minlength=size) - self._capacity, np.asarray(falls, np.float64)

        low, high = np.zeros(size), self._queue / self._capacity
        is_used = np.bincount(places, minlength=size) > 0
        is_full, is_empty = at(high)[0] > 0.0, at(low)[0] <= 0.0
        waits = np.where(is_full, high, np.where(is_empty, 0.0, np.clip(self._waiting, low, high)))
        inside = is_used & ~is_full & ~is_empty
        for _ in range(MOST_STEPS):
            if not inside.any():
                break
            excess, falls = at(waits)
            low, high = np.where(inside & (excess > 0.0), waits, low), np.where(inside & (excess <= 0.0), waits, high)
            newton = waits + np.divide(excess, falls, out=np.full_like(falls, math.nan), where=falls > 0.0)
            step = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2.0)
            inside &= np.abs(step - waits) > SETTLED * LEAST_RTT
            waits = np.where(is_used & ~is_full & ~is_empty, step, waits)
        self._waiting = np.where(is_used, waits, 0.0) if size == 1 else np.where(is_used, waits, self._waiting)

    def _stays(self, trip: Doubles) -> bool:
        """Whether no rate changes until a flow ends: all are those of own links, which no cut leaves idle, and shared
        links carry all of them."""
        cap, size = self._row("cap"), len(self._capacity)
        path, beta = cap * trip, self._congestion.beta
        is_steady = (
            (self._row("rate") >= cap) & (self._row("loss") == 0.0) & (beta * beta * (path + self._queue) >= path)
        )
        fits = all((np.bincount(places, cap, minlength=size) <= self._capacity).all() for places in self._levels)
        return fits and bool((is_steady | (cap == 0.0)).all())

    def _arrange(self) -> None:
        """Find the links of the present flows, at their present rates."""
        self._link = self._row("link").astype(np.intp)
        self._levels = [np.zeros_like(self._link), self._link] if len(self._capacity) > 1 else [self._link]
        self._narrowest = np.where(self._capacity[self._link] <= self._capacity[0], self._link, 0)

    def _delays(self) -> Doubles:
        """(flows,) Seconds in all queues on the way."""
        of_sites = self._waiting[self._link]
        return of_sites + self._waiting[0] if len(self._capacity) > 1 else of_sites

    def _by_access_link(self, rates: Doubles) -> list[float]:
        sums = np.bincount(self._link, rates * FRAME_BITS, minlength=len(self._capacity))
        found: list[float] = sums[1:].tolist() if len(self._capacity) > 1 else sums.tolist()
        return found

    def _remove(self, now: float, flow: int, is_whole: bool) -> Served:
        del self._losses[flow]
        one = self._drop(flow)
        self._arrange()
        sent, by_window = one["bits" if is_whole else "sent"], one["window_seconds"]
        links, kept = (one["access_seconds"], one["server_seconds"]), max(one["threshold"], KEPT * one["window"])
        return Served(now, sent, one["lost"], one["paused"], *links, by_window, kept)


def _step(round_trip: float, steps: float, seconds: tuple[float, float]) -> float:
    """Seconds of a step, so many of which are a round trip."""
    return min(max(round_trip / steps, seconds[0]), seconds[1])


def _luck(draws: random.Random) -> float:
    """The losses that a flow may expect until it loses a segment: exponential, as each is independent."""
    return -math.log1p(-draws.random())
