"""One visit under way, part by part: download, computing, upload. Events in, the next time out; never SimPy.

The arithmetic is that of `costmodel.visits.timeline`, in the same order on the same numbers, so both agree to the bit.
"""

from __future__ import annotations

import math

import numpy as np

from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.fair_link import Served
from costmodel.network.links import Links
from costmodel.network.senders import Path, Sender, sender
from costmodel.network.tcp import is_idle, wire_bits
from costmodel.visits.accounting import ComputePhase, Timeline, Transfer, account_visits
from costmodel.visits.work import Work, Works

DOWNLOAD, COMPUTE, UPLOAD, FINISHED = range(4)


class LiveVisit:
    """A visit from ``start``; `begin` and `go_on` return the time at which its next part flows or ends."""

    def __init__(
        self, work: Work, conditions: Conditions, links: Links, behaviour: ClientDynamics, start: float
    ) -> None:
        assert len(conditions) == 1, len(conditions)
        self._links, self._behaviour = links, behaviour
        self._used = float(conditions.last_message[0])
        if self._is_closed(start):
            conditions = conditions.disconnected(np.ones(1, bool))
        self.work, self.conditions = work, conditions
        self.start, self.part = start, DOWNLOAD
        self.client, self.access_link = int(conditions.clients[0]), int(conditions.access_link[0])
        self._rtt = float(conditions.rtt[0])
        self._charge = float(conditions.charge[0])
        self._lost = float(behaviour.losses(conditions, np.array([start]))[0])
        self._seconds = float(conditions.compute_seconds(np.array([work.flops]), np.array([work.steps]))[0])
        self._computed = self._seconds
        self._ends = [math.inf] * 3
        self._begins = [start, math.inf, math.inf]
        self._cuts = [math.inf] * 3
        self._bits = [0.0, 0.0]
        self._promotions = [0.0, 0.0]
        self._is_renewed = False
        thresholds = conditions.threshold[0].tolist()
        self._messages = [Sender(0.0, Path(threshold=threshold)) for threshold in thresholds]
        self._nominal = (float(conditions.down[0]), float(conditions.up[0]))

    @property
    def is_over(self) -> bool:
        """Whether the visit has ended or was cut."""
        return self.part == FINISHED

    @property
    def direction(self) -> int:
        """The direction of the message under way, or of the last one."""
        return UP if self.part >= UPLOAD else DOWN

    @property
    def flows(self) -> bool:
        """Whether this part is a message."""
        return self.part != COMPUTE

    @property
    def cut(self) -> float:
        """The time at which this part will be cut."""
        return self._cuts[self.part]

    def rate(self, t: float) -> tuple[float, float]:
        """(bit/s of the client's own link from ``t`` on, absolute time of the next change)."""
        nominal = self._nominal[self.direction]
        if not self._behaviour.varies:
            return nominal, math.inf
        return self._behaviour.rate(self.client, self.direction, nominal, t)

    def has_outage(self, t: float) -> bool:
        """Whether a rate of 0 at ``t`` is an outage of the client's own link."""
        return self._behaviour.has_outage(self.client, self.direction, t)

    def begin(self) -> tuple[float, float]:
        """Begin the first part: (time at which it flows or ends, time at which it is cut)."""
        return self._message(self.start)

    def go_on(self, now: float) -> tuple[float, float]:
        """End this part and begin the next, as `begin`; after the last: (now, inf), and `is_over`."""
        self._ends[self.part] = now
        if self.part == DOWNLOAD:
            self._drain_radio(DOWN, now)
            if self.work.bytes_down:
                self._used = now
            return self._compute(now)
        if self.part == COMPUTE:
            self._charge = self._charge - float(self.conditions.train_watts[0]) * self._computed
            self.part = UPLOAD
            return self._message(now)
        self.part = FINISHED
        return now, math.inf

    def broken(self, now: float) -> float:
        """Cut this part, and the visit with it."""
        self.part = FINISHED
        return now

    @property
    def message(self) -> Sender:
        """The message under way, or the last one."""
        return self._messages[self.direction]

    def part_sent(self, served: Served) -> tuple[float, bool]:
        """(when the next part of the message may begin, False), or (when its last byte arrives, True)."""
        resume = self.message.part_sent(served)
        return (served.finish + self._rtt / 2, True) if resume is None else (resume, False)

    def _message(self, now: float) -> tuple[float, float]:
        part, direction = self.part, self.direction
        nbytes = self.work.bytes_up if direction == UP else self.work.bytes_down
        watts, joules_per_bit = self._radio(direction)
        self._begins[part] = now
        self._bits[direction] = bits = wire_bits(float(nbytes)) * float(self.conditions.noise[0, direction])
        promotion, handshake, path = self._opening(now)
        self._promotions[direction] = promotion
        self._cuts[part] = min(self._lost, self._flat(now, self._charge - joules_per_bit * bits, watts, promotion))
        if nbytes == 0:
            return self.go_on(now) if now <= self._cuts[part] else (math.inf, self._cuts[part])
        self._sends = bits, path
        self.restart_message()
        self._is_renewed = direction == UP and self._is_closed(now)
        return now + (promotion + handshake), self._cuts[part]

    def restart_message(self) -> None:
        """Begin the message under way again, as if nothing of it had been sent."""
        self._messages[self.direction] = sender(*self._sends)

    def _radio(self, direction: int) -> tuple[float, float]:
        watts, joules_per_bit = self.conditions.radio(direction)
        return float(watts[0]), float(joules_per_bit[0])

    def _compute(self, now: float) -> tuple[float, float]:
        self.part = COMPUTE
        self._begins[COMPUTE] = now
        self._cuts[COMPUTE] = min(self._lost, self._flat(now, self._charge, float(self.conditions.train_watts[0])))
        end, self._computed = self._behaviour.computing_of(self.client, now, self._seconds)
        return end, self._cuts[COMPUTE]

    def _is_closed(self, now: float) -> bool:
        """Whether the connection has been closed since its last message."""
        return self._used > -math.inf and now - self._used > self._links.transport.reconnect

    def _opening(self, now: float) -> tuple[float, float, Path]:
        """(seconds of the radio's promotion, seconds of the handshake, the path of the message)."""
        direction, conditions, transport = self.direction, self.conditions, self._links.transport
        since = float(self._behaviour.since(conditions, np.array([now]))[0])
        closed = self._is_closed(now)
        is_new = float(conditions.last_down[0]) <= since or closed
        connects = is_new if direction == DOWN else closed
        handshake = transport.connect_round_trips * self._rtt if connects else 0.0
        slowly = is_new or is_idle(now, float(conditions.last_used(direction)[0]), self._rtt)
        slept = now - self._used > float(conditions.awake_seconds[0])
        promotion = float(conditions.promotion_seconds[0]) if slept else 0.0
        return (
            promotion,
            handshake,
            Path(
                self._rtt,
                starts_slowly=bool(slowly and transport.slow_start),
                loss=float(conditions.loss[0]),
                threshold=math.inf if is_new else float(conditions.threshold[0, direction]),
                seed=int(conditions.loss_seed[0, direction]),
            ),
        )

    def _flat(self, begin: float, charge: float, watts: float, promotion: float = 0.0) -> float:
        """The time at which the battery is empty, if so much is drawn from ``begin`` on, after so many seconds of the
        radio's promotion; inf on mains."""
        if charge == math.inf:
            return math.inf
        promotion_watts = float(self.conditions.promotion_watts[0])
        first = promotion_watts * promotion
        seconds = _lasts(charge, promotion_watts) if charge < first else promotion + _lasts(charge - first, watts)
        return self._behaviour.end(self.client, begin, seconds)

    def _drain_radio(self, direction: int, end: float) -> None:
        message = self._messages[direction]
        watts, joules_per_bit = self._radio(direction)
        interval = end - self._begins[self.part]
        promoted = min(self._promotions[direction], interval)
        at_work = max(interval - message.paused - promoted, 0.0)
        connecting = float(self.conditions.promotion_watts[0]) * promoted
        self._charge = self._charge - (watts * at_work + joules_per_bit * message.sent + connecting)

    def timeline(self, until: float = math.inf) -> Timeline:
        """The timeline of this visit; of one under way, until ``until``, when its flow was cut."""
        down, up = (self._transfer(direction, until) for direction in (DOWN, UP))
        computing = ComputePhase(
            _one(self._begins[COMPUTE]),
            _one(min(self._cuts[COMPUTE], until)),
            _one(self._ends[COMPUTE]),
            _one(self._seconds),
            _one(self._computed),
        )
        works = Works.of([self.work])
        return account_visits(_one(self.start), down, computing, up, works, self.conditions, self._behaviour, until)

    def _transfer(self, direction: int, until: float) -> Transfer:
        part, message = (DOWNLOAD, UPLOAD)[direction], self._messages[direction]
        return Transfer(
            _one(self._begins[part]),
            _one(min(self._cuts[part], until)),
            _one(self._ends[part]),
            _one(self._bits[direction]),
            _one(message.sent),
            _one(message.contention_seconds),
            _one(message.paused),
            _one(math.inf if direction == DOWN and self._is_renewed else message.threshold),
            _one(self._promotions[direction]),
        )


def _lasts(charge: float, watts: float) -> float:
    """Seconds for which a charge, in joules, lasts."""
    return max(charge, 0.0) / watts if watts > 0 else (0.0 if charge < 0 else math.inf)


def _one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value], np.float64)
