"""What the cost model says about the networks under test, and what poorer models would say. Never measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet.conditions import Conditions
from costmodel.network import tcp
from costmodel.network.links import Links
from costmodel.network.transfers import transfer_batch
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works
from tests.costmodel.oracle import slow_start_seconds

Doubles = NDArray[np.float64]
MODEL = "model"
BARE = "no header"
ABRUPT = "no slow start"
ALONE = "no contention"
EQUAL = "equal split"
IDLE_SECONDS = 2.0
"""Since connections under test were last used."""


def clock(
    start: Doubles, works: Sequence[Work], down: Sequence[float], up: Sequence[float], links: Links, rtt: float
) -> Timeline:
    """The product's own timeline of visits over open, idle connections; a FLOP takes a second."""
    return solve(start, Works.of(works), idle_conditions(start, down, up, (rtt,) * len(works)), links)


def idle_conditions(start: Doubles, down: Sequence[float], up: Sequence[float], rtt: Sequence[float]) -> Conditions:
    """The conditions of visits over such connections; rates and round trips by visit."""
    visits = len(start)
    watts = ("train_watts", "idle_watts", "transmit_watts", "receive_watts", "tail_watts")
    free = (*watts, "transmit_joules_per_bit", "receive_joules_per_bit", "tail_seconds", "step_seconds")
    radio = ("awake_seconds", "promotion_seconds", "promotion_watts")
    ones = dict.fromkeys(("flops_per_second", "codec_slowdown", "slowdown"), 1.0)
    same = dict.fromkeys((*free, *radio), 0.0) | ones
    return Conditions(
        clients=np.arange(visits),
        access_link=np.zeros(visits, np.intp),
        down=np.array(down, np.float64),
        up=np.array(up, np.float64),
        noise=np.ones((visits, 2)),
        loss=np.zeros(visits),
        loss_seed=np.zeros((visits, 2), np.int64),
        threshold=np.full((visits, 2), math.inf),
        last_down=start - IDLE_SECONDS,
        last_up=start - IDLE_SECONDS,
        crash_after=np.full(visits, math.inf),
        charge=np.full(visits, math.inf),
        rtt=np.array(rtt, np.float64),
        **{name: np.full(visits, value) for name, value in same.items()},
    )


@dataclass(frozen=True)
class Model:
    """The cost model, or with something left out."""

    name: str = MODEL

    def bits(self, nbytes: int) -> float:
        """Bits on the wire."""
        return 8.0 * nbytes if self.name == BARE else tcp.wire_bits(nbytes)

    def idle(self, rtt: float, bits_per_second: float, bits: float) -> float:
        """Seconds lost to slow start."""
        return 0.0 if self.name == ABRUPT else slow_start_seconds(rtt, bits_per_second, bits)

    def single(self, nbytes: int, bits_per_second: float, rtt: float) -> float:
        """Seconds from handing one message over to its complete receipt, over an idle connection."""
        if self.name == MODEL:
            return float(self.shared(np.zeros(1), [nbytes], [bits_per_second], math.inf, rtt)[0])
        bits = self.bits(nbytes)
        return self.idle(rtt, bits_per_second, bits) + bits / bits_per_second + rtt / 2

    def shared(
        self, start: Doubles, nbytes: Sequence[int], cap: Sequence[float], capacity: float, rtt: float
    ) -> Doubles:
        """Absolute seconds at which each message is received that shares the server's link with the others."""
        if self.name == MODEL:
            works = [Work(n, 0, 0.0) for n in nbytes]
            return clock(start, works, cap, cap, Links(capacity, capacity), rtt).down_end
        bits = np.array([self.bits(n) for n in nbytes])
        caps = np.array(cap, np.float64)
        level = _level(caps, capacity)
        if self.name == ALONE:
            level = capacity = math.inf
        elif self.name == EQUAL:
            level, capacity = capacity / caps.size, math.inf
            caps = np.minimum(caps, level)
        idle = [self.idle(rtt, min(c, level), b) for c, b in zip(caps, bits, strict=True)]
        finish: Doubles = transfer_batch(start + idle, bits, caps, capacity).finish
        return finish + rtt / 2


def _level(caps: Doubles, capacity: float) -> float:
    """The rate above which flows are held back while all are active: filling the link from the smallest cap up."""
    left = capacity
    for done, cap in enumerate(np.sort(caps)):
        if cap * (caps.size - done) >= left:
            return float(left / (caps.size - done))
        left -= cap
    return math.inf
