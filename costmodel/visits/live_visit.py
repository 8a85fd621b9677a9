"""One visit under way, part by part: download, computing, upload. Events in, the next time out; never SimPy.

The arithmetic is that of `costmodel.visits.timeline`, so both agree to the bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.fair_link import Served
from costmodel.network.links import Links
from costmodel.network.senders import Path, Sender, WholeSender, sender
from costmodel.visits.accounting import ComputePhase, Timeline, Transfer, account_visits, computing_watts, radio_joules
from costmodel.visits.exchange import ExchangeTimes, exchange_times
from costmodel.visits.messages import MessageConditions, battery_cut, flows, is_closed, message_conditions
from costmodel.visits.work import Work, Works

DOWNLOAD, COMPUTE, UPLOAD, FINISHED = range(4)


class LiveVisit:
    """A visit from ``start``; `begin` and `go_on` return the time at which its next part flows or ends."""

    def __init__(
        self,
        work: Work,
        conditions: Conditions,
        links: Links,
        behaviour: ClientDynamics,
        start: float,
        exchange: ExchangeTimes | None = None,
    ) -> None:
        """``exchange``: its times beside other visits; by default those of the visit alone."""
        assert len(conditions) == 1, len(conditions)
        self._links, self._behaviour = links, behaviour
        self._used = float(conditions.last_message[0])
        self.work, self.conditions = work, conditions
        self._works = Works.of([work])
        if links.transport.reconnect < math.inf:
            conditions = conditions.disconnected(np.array([is_closed(start, self._used, links.transport)]))
        self._connections = conditions
        self.start, self.part = start, DOWNLOAD
        self.client, self.access_link = int(conditions.clients[0]), int(conditions.access_link[0])
        self.rtt = float(conditions.rtt[0])
        self._charge = float(conditions.charge[0])
        self._lost = float(behaviour.losses(conditions, np.array([start]))[0])
        works = self._works
        seconds = conditions.compute_seconds(works.flops, works.steps, works.codec_seconds)
        self._exchange = exchange_times(works, conditions, links, seconds) if exchange is None else exchange
        if self._exchange is not None:
            seconds = seconds + self._exchange.seconds
        self._watts = float(computing_watts(conditions, self._exchange, seconds)[0])
        self._seconds = float(seconds[0])
        self._computed = self._seconds
        self._ends = [math.inf] * 3
        self._begins = [start, math.inf, math.inf]
        self._cuts = [math.inf] * 3
        self._bits = [0.0, 0.0]
        self._promotions = [0.0, 0.0]
        self._connects = [0.0, 0.0]
        self._is_renewed = False
        thresholds = conditions.threshold[0].tolist()
        self._messages = [Sender(0.0, Path(threshold=threshold)) for threshold in thresholds]
        self._ends_of_work = partial(behaviour.end, self.client)
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
            if self._charge < math.inf:
                transfer = self._transfer(DOWN, math.inf)
                self._charge = self._charge - float(radio_joules(DOWN, transfer, self.conditions)[0])
            if self._works.message_down[0]:
                self._used = now
            self.part, self._begins[COMPUTE] = COMPUTE, now
            self._cuts[COMPUTE] = battery_cut(self._lost, now, self._charge, self._watts, self._ends_of_work)
            end, self._computed = self._behaviour.computing_of(self.client, now, self._seconds)
            return end, self._cuts[COMPUTE]
        if self.part == COMPUTE:
            self._charge = self._charge - self._watts * self._computed
            self.part = UPLOAD
            if self.work.exchange is not None and self.work.exchange.trips:
                self._used = now
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
        return (served.finish + self.rtt / 2, True) if resume is None else (resume, False)

    def _message(self, now: float) -> tuple[float, float]:
        part, direction, conditions, transport = self.part, self.direction, self._connections, self._links.transport
        nbytes = int((self._works.message_up if direction == UP else self._works.message_down)[0])
        figures = MessageConditions(*[float(column[0]) for column in message_conditions(direction, conditions)])
        since = self._behaviour.since_of(self.client, now)
        more = figures, transport, since, self._ends_of_work
        message = flows(direction, now, self._used, float(nbytes), self._lost, self._charge, *more)
        self._begins[part], self._cuts[part] = now, message.cut
        self._bits[direction], self._promotions[direction] = message.bits, message.promotion
        self._connects[direction] = message.connect if nbytes else 0.0
        if nbytes == 0:
            return self.go_on(now) if now <= message.cut else (math.inf, message.cut)
        loss, seed = float(conditions.loss[0]), int(conditions.loss_seed[0, direction])
        queue, congestion = transport.queue_bits, self._links.congestion
        path = Path(self.rtt, bool(message.slowly), loss, message.threshold, seed, queue, congestion)
        self._sends = message.bits, path
        self.restart_message()
        closes = transport.reconnect < math.inf and direction == UP
        self._is_renewed = closes and bool(is_closed(now, self._used, transport))
        return message.begin, message.cut

    def restart_message(self) -> None:
        """Begin the message under way again, as if nothing of it had been sent."""
        made = WholeSender if self._links.transport.by_windows else sender
        self._messages[self.direction] = made(*self._sends)

    def timeline(self, until: float = math.inf) -> Timeline:
        """The timeline of this visit; of one under way, until ``until``, when its flow was cut."""
        down, up = (self._transfer(direction, until) for direction in (DOWN, UP))
        begin, cut = self._begins[COMPUTE], min(self._cuts[COMPUTE], until)
        computing = replace(
            ComputePhase(*_each(begin, cut, self._ends[COMPUTE], self._seconds, self._computed)),
            exchange=self._exchange,
        )
        return account_visits(
            np.array([self.start]), down, computing, up, self._works, self.conditions, self._behaviour, until
        )

    def _transfer(self, direction: int, until: float) -> Transfer:
        part, message = (DOWNLOAD, UPLOAD)[direction], self._messages[direction]
        threshold = math.inf if direction == DOWN and self._is_renewed else message.threshold
        return Transfer(
            *_each(
                self._begins[part],
                min(self._cuts[part], until),
                self._ends[part],
                self._bits[direction],
                message.sent,
                message.contention_seconds,
                message.paused,
                threshold,
                self._promotions[direction],
                self._connects[direction],
                *(message.own_seconds, message.access_seconds, message.server_seconds),
            )
        )


def _each(*values: float) -> Doubles:
    """(values, 1)"""
    return np.array(values, np.float64)[:, None]
