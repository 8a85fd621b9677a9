"""Messages of late visits that go on after their rounds have closed (``rounds.on_late = "finish"``).

What is left of a message flows on at the rate that its client had in the late visit, and shares the links with the
messages of later visits in its direction, without slow start and without loss. It ends when all is sent, when its
client leaves or runs out of power, or when its client is told. `costmodel.visits.timeline` solves it with a batch of
visits; here are its state and its costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.transfers import TransferTimes
from costmodel.visits.accounting import Timeline, Transfer, radio_joules, whole_bytes
from costmodel.visits.work import Work, Works


@dataclass(frozen=True)
class Leftover:
    """What is left of one message."""

    direction: int
    left: float
    """Bits on the wire that have not been sent"""
    bits: float
    """Bits of the whole message"""
    nbytes: int
    """Length of the whole message"""
    counted: int
    """Whole bytes of it that have been charged"""
    rate: float
    """Of the client's own link, bit/s on the wire, in the late visit"""


def packed(leftovers: Mapping[int, Leftover]) -> Doubles:
    """(leftovers, 7) client and fields of each, in client order; lengths are below 2^53, where float64 is exact."""
    rows = [(client, *astuple(leftovers[client])) for client in sorted(leftovers)]
    return np.array(rows, np.float64).reshape(-1, 7)


def unpacked(rows: Doubles) -> dict[int, Leftover]:
    """Inverse of `packed`."""
    return {
        int(client): Leftover(int(direction), left, bits, int(nbytes), int(counted), rate)
        for client, direction, left, bits, nbytes, counted, rate in rows.tolist()
    }


@dataclass(frozen=True)
class Leftovers:
    """Leftovers that flow beside a batch of visits; arrays of shape (leftovers,)."""

    conditions: Conditions
    """Of their clients, with the rates of the late visits"""
    begin: Doubles
    """Absolute seconds from which they flow on"""
    told: Doubles
    """Absolute seconds at which their clients are told; inf: not by the end of the batch"""
    direction: NDArray[np.intp]
    left: Doubles
    bits: Doubles
    nbytes: NDArray[np.int64]
    counted: NDArray[np.int64]

    @classmethod
    def of(
        cls, leftovers: Sequence[Leftover], conditions: Conditions, begin: float, told: Sequence[float]
    ) -> Leftovers:
        """These leftovers, of clients with these ``conditions`` but for their rates, from ``begin`` on."""
        direction = np.array([one.direction for one in leftovers], np.intp)
        rate = np.array([one.rate for one in leftovers], np.float64)
        own = replace(
            conditions,
            down=np.where(direction == DOWN, rate, conditions.down),
            up=np.where(direction == UP, rate, conditions.up),
            loss=np.zeros(len(leftovers)),
            crash_after=np.full(len(leftovers), math.inf),
        )
        return cls(
            own,
            np.full(len(leftovers), begin),
            np.array(told, np.float64),
            direction,
            np.array([one.left for one in leftovers], np.float64),
            np.array([one.bits for one in leftovers], np.float64),
            np.array([one.nbytes for one in leftovers], np.int64),
            np.array([one.counted for one in leftovers], np.int64),
        )

    def __len__(self) -> int:
        return self.left.size

    def only(self, which: NDArray[np.bool_]) -> Leftovers:
        """Those of a mask."""
        columns = {name: column[which] for name, column in vars(self).items() if name != "conditions"}
        return Leftovers(self.conditions.only(which), **columns)

    def ended(self, cut: Doubles, times: TransferTimes, until: float) -> Timeline:
        """The costs of leftovers as those of visits: from ``begin`` to the end, or to ``cut``.

        Bytes are those that have not been charged before. ``lost``: cut before ``until``, with nothing left to send.
        """
        nothing, is_up = np.zeros(len(self)), self.direction == UP
        pauses = self.conditions.idle_watts * times.paused
        sent = Transfer(
            self.begin, cut, times.finish, self.bits, times.sent, nothing, times.paused, times.threshold, nothing
        )
        done = np.isfinite(times.finish)
        radio = [radio_joules(direction, sent, self.conditions) for direction in (DOWN, UP)]
        tails = np.where(done, self.conditions.tail_watts * self.conditions.tail_seconds, 0.0)
        so_far = replace(sent, sent=self.bits - (self.left - times.sent))
        nbytes = whole_bytes(self.nbytes, so_far) - self.counted
        received = np.where(is_up, self.begin, times.finish)
        return Timeline(
            self.begin,
            received,
            received,
            times.finish,
            lost=np.where(~done & (cut < until), cut, math.inf),
            bytes_down=np.where(is_up, 0, nbytes),
            bytes_up=np.where(is_up, nbytes, 0),
            flops=nothing,
            joules_spent=np.where(is_up, radio[UP], radio[DOWN]) + pauses + tails,
            idle_joules=pauses,
            compute_joules=nothing,
            receive_joules=np.where(is_up, 0.0, radio[DOWN] + tails),
            send_joules=np.where(is_up, radio[UP] + tails, 0.0),
            contention_seconds=times.contention_seconds,
            paused_seconds=times.paused,
            computed=nothing,
            threshold_down=times.threshold,
            threshold_up=times.threshold,
        )


@dataclass(frozen=True)
class Solution:
    """A batch of visits, and the leftovers that flowed beside it."""

    timeline: Timeline
    messages: tuple[Transfer, Transfer] | None = None
    """Downloads and uploads; None where messages share air"""
    leftovers: Timeline | None = None
    """Of the leftovers, as of `Leftovers.ended`; None if there were none"""
    left: Doubles | None = None
    """(leftovers,) bits that have not been sent by the end"""

    def in_flight(self, visits: Sequence[Work], conditions: Conditions) -> dict[int, Leftover]:
        """Client -> what is left of the message of which a part was sent when its visit was cut."""
        found: dict[int, Leftover] = {}
        works = Works.of(visits)
        assert self.messages is not None
        down, up = self.messages
        messages = (
            (DOWN, down, works.bytes_down, self.timeline.bytes_down),
            (UP, up, works.bytes_up, self.timeline.bytes_up),
        )
        for direction, transfer, nbytes, counted in messages:
            unfinished = ~np.isfinite(transfer.end) & ~np.isfinite(self.timeline.lost)
            for i in np.flatnonzero(unfinished & (transfer.sent > 0) & (transfer.sent < transfer.bits)).tolist():
                left, bits = float(transfer.bits[i] - transfer.sent[i]), float(transfer.bits[i])
                rate = float(conditions.rate(direction)[i])
                found[int(conditions.clients[i])] = Leftover(
                    direction, left, bits, int(nbytes[i]), int(counted[i]), rate
                )
        return found
