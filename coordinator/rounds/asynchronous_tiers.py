"""Aggregators that meet the server one by one (``tiers.upwards = "asynchronous"``), of one tier.

C. Xie, S. Koyejo, I. Gupta, Asynchronous Federated Optimization, 2019, https://arxiv.org/abs/1903.03934, with
aggregators in the place of clients. An aggregator sends its model up after its rounds, waits for no other, and gets the
server's down as soon as its own is mixed in: w <- (1 - a s(t)) w + a s(t) w_aggregator. Its staleness t is the number
of models that the server has mixed in since this aggregator got its own.

Each aggregator is ready for its next round at some time, or has a model on its way that arrives at some time. The
earliest of these times is next: a round of the ledger is one step of the aggregators that are ready then, of one as a
rule; then all models are mixed in that arrive before the next one is ready. Everything that arrives by then was sent by
steps that began earlier, so that the server's models are those that exist at these times. The round ends when the last
of them is mixed in; without any, when the next aggregator is ready. Its own visits may end later.

One whose model is lost on the way goes on from the server's as soon as it is back. One whose step would end after the
budget of virtual seconds begins no other, and the run goes on with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.tiers import TieredServer
from coordinator.records.round_record import RoundRecord
from coordinator.rounds.budget import CLIENTS, SECONDS
from coordinator.rounds.ports import Arrays
from coordinator.rounds.stations import RoundEnd
from coordinator.rounds.tiers import DOWN_SIDE, UP_SIDE, Tiers


class AsynchronousTiers(Tiers):
    """The aggregators of a run that meet the server one by one."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        """As of `Tiers`."""
        super().__init__(*parts, **more)
        (size,) = self.clock.sizes
        self.arrives = np.full(size, math.inf)
        """(aggregators,) absolute seconds at which the server has each one's model, or after a loss hears of it; inf:
        nothing is on its way"""
        self._is_lost = np.zeros(size, bool)
        """(aggregators,) whether there is no model in what arrives"""
        self._version = 0
        """Models that the server has mixed in"""
        self._versions = np.zeros(size, np.int64)
        """(aggregators,) of each, when its model came down"""
        self._messages = np.zeros(size, np.int64)
        """(aggregators,) messages of each so far, which have draws of their own"""
        self._ends_at = math.inf if self.limits.virtual_seconds is None else self.limits.virtual_seconds

    # --- who begins ---------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """The next that are ready, unless a model arrives before, or the run ends; one that is away waits."""
        while True:
            soonest = float(self.ready.min())
            is_next = soonest < self._ends_at and soonest <= float(self.arrives.min())
            self.begins = (self.ready == soonest) & is_next
            away = [each for each in np.flatnonzero(self.begins).tolist() if not self.clock.is_there(0, each, soonest)]
            if not away:
                return
            for index in away:
                self.ready[index] = self.clock.first_there(0, index, soonest)

    @property
    def is_awaited(self) -> bool:
        return bool((np.isfinite(self.arrives) & (self.arrives <= self._ends_at)).any())

    def give_up(self) -> bool:
        self.ready[self.begins] = math.inf
        return bool(self.begins.any())

    def ended_by(self) -> str:
        if min(self.ready.min(), self.arrives.min()) < math.inf:
            return SECONDS
        return self._refuses(0) or CLIENTS

    # --- what is sent -------------------------------------------------------------------------------------------------

    def make_steps(self, record: RoundRecord, ends: Mapping[int, float]) -> RoundEnd:
        """Aggregators have made their steps; then models arrive until the next one begins a round.

        ``ends``: as of `Tiers`; inf: the run ends before it.
        """
        first, is_cut = min(ends.values(), default=math.inf), math.inf in ends.values()
        self.ready[self.begins] = np.maximum(self.ready[self.begins], first)
        for index, end in ends.items():
            self.ready[index] = end
            self._rounds[index] += 1
            if end < math.inf and self._updated[0][index] and self._has_all_steps(index):
                self._send_up(record, index)
        for index in range(self.ready.size):
            self._await_clients(index)
        meetings, last = [], -math.inf
        while (at := float(self.arrives.min())) <= min(float(self.ready.min()), self._ends_at) and at < math.inf:
            index = int(self.arrives.argmin())
            self.arrives[index], self._updated[0][index], mixing = math.inf, False, 0.0
            if not self._is_lost[index]:
                mixing = self.schedule.mixing_at(self._version - int(self._versions[index]))
                self._version, last = self._version + 1, at
            meetings.append(partial(TieredServer.mix, index=index, mixing=mixing))
            self._answer(record, index, at)
            self._await_clients(index)
        following = min(float(self.ready.min()), float(self.arrives.min()))
        if self._ends_at <= following < math.inf or (is_cut and following == math.inf):
            end = self._ends_at
        elif last > -math.inf:
            end = last
        else:
            known = [each for each in (following, *ends.values(), record.start) if each < math.inf]
            end = known[0]
        return RoundEnd(end, meetings, last > -math.inf)

    def _await_clients(self, index: int) -> None:
        """Let an aggregator wait until it and one of its clients are there: what arrives meanwhile is of this round."""
        time = -math.inf
        while time < self.ready[index] < math.inf:
            time = float(self.ready[index])
            later = self.beginning(index, time)
            if later < math.inf and not self.clock.is_there(0, index, later):
                later = self.clock.first_there(0, index, later)
            self.ready[index] = later

    def _send_up(self, record: RoundRecord, index: int) -> None:
        nbytes, which = self.nbytes[UP_SIDE], np.arange(self.ready.size) == index
        messages = self.clock.up(0, self.ready, which, nbytes, self._next_message(index))
        self._record(record, 0, UP_SIDE, messages, which)
        self.arrives[index] = float(messages.end[index]) + self.clock.aggregation_seconds(0, nbytes, 1)
        self._is_lost[index] = not math.isfinite(messages.end[index])
        if self._is_lost[index]:
            self.arrives[index] = self.clock.first_there(0, index, float(messages.lost[index]))
        self.ready[index] = math.inf

    def _answer(self, record: RoundRecord, index: int, at: float) -> None:
        """Send the server's model down, unless a budget refuses it, with the one that would come up again."""
        others = int(np.isfinite(self.ready).sum())
        if self._refuses(others) is not None:
            return
        begin, which = np.full(self.ready.size, at), np.arange(self.ready.size) == index
        messages = self.clock.down(0, begin, which, self.nbytes[DOWN_SIDE], self._next_message(index))
        self._record(record, 0, DOWN_SIDE, messages, which)
        end = float(messages.end[index])
        self.ready[index], self._came[index], self._rounds[index] = end, end, 0
        self._versions[index] = self._version
        self._is_lost[index] = not math.isfinite(end)
        if self._is_lost[index]:
            self.arrives[index] = self.clock.first_there(0, index, float(messages.lost[index]))

    def _refuses(self, others: int) -> str | None:
        """The rule that two messages of an aggregator would exceed, beside the models that ``others`` will send."""
        up, both = self.nbytes[UP_SIDE], self.nbytes[UP_SIDE] + self.nbytes[DOWN_SIDE]
        more = others * up + both
        return self.limits.refuses_messages(self.spent_bytes, self.spent_price, more, more / 1e9 * self._prices[0])

    def _next_message(self, index: int) -> int:
        """Its number, from 1: the first that came down has 0."""
        self._messages[index] += 1
        return int(self._messages[index])

    # --- what a checkpoint has ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[np.generic]]:
        own = {"arrives": self.arrives, "is lost": self._is_lost, "versions": self._versions}
        return super().state() | own | {"messages": self._messages, "version": np.array([self._version])}

    def restore(self, now: float, state: Arrays) -> None:
        super().restore(now, state)
        self.arrives = np.array(state["arrives"], np.float64)
        self._is_lost = np.array(state["is lost"], bool)
        self._versions = np.array(state["versions"], np.int64)
        self._messages = np.array(state["messages"], np.int64)
        (self._version,) = np.asarray(state["version"]).tolist()
