"""Late visits that go on after their rounds have closed (``rounds.on_late``): their state from one round to the next.

A visit that goes on is solved again in each round in which it does, from its own start, under its own conditions, by
the same arithmetic as all visits (`costmodel.visits.timeline`): that gives all parts of it that depend on itself alone.
The state has what does not follow from these: the messages that have ended, the senders of those that were cut, and
the costs that have been charged. So a visit ends when it would have ended in a round without an end, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.senders import SENDER_NUMBERS
from costmodel.network.transfers import SenderNumbers, TransferTimes
from costmodel.visits.accounting import Timeline
from costmodel.visits.work import Work, Works

SERVER = 0
"""The station of visits to the server; of those to an aggregator it is the aggregator's number"""
_TIMES = tuple(field.name for field in fields(TransferTimes))


@dataclass(frozen=True)
class Leftovers:
    """What is left of visits; arrays of shape (visits,)."""

    since: float
    """Absolute seconds from which they go on"""
    start: Doubles
    works: Works
    conditions: Conditions
    messages: tuple[TransferTimes, TransferTimes]
    """Downloads and uploads, as they were at ``since``"""
    senders: tuple[SenderNumbers, SenderNumbers]
    """By row: of messages that were cut then, if their visits may go on"""
    charged: Timeline
    """The visits until then"""

    def __len__(self) -> int:
        return self.start.size

    @property
    def clients(self) -> list[int]:
        """One visit each."""
        clients: list[int] = self.conditions.clients.tolist()
        return clients

    def only(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Leftovers:
        """Those of a mask, or of these rows in this order."""
        rows: NDArray[np.intp] = np.arange(len(self))[which]
        place = {row: i for i, row in enumerate(rows.tolist())}
        down, up = ({place[row]: numbers for row, numbers in each.items() if row in place} for each in self.senders)
        return Leftovers(
            self.since,
            self.start[rows],
            _rows(self.works, rows),
            _rows(self.conditions, rows),
            (_rows(self.messages[DOWN], rows), _rows(self.messages[UP], rows)),
            (down, up),
            _rows(self.charged, rows),
        )

    def of(self, clients: Sequence[int]) -> Leftovers:
        """Those of these clients, in this order."""
        row = {client: i for i, client in enumerate(self.clients)}
        return self.only(np.array([row[client] for client in clients], np.intp))

    def rest(self, client: int) -> Work:
        """What the visit of a client may still cost."""
        i, charged = self.clients.index(client), self.charged
        return Work(
            int(self.works.bytes_down[i] - charged.bytes_down[i]),
            int(self.works.bytes_up[i] - charged.bytes_up[i]),
            max(float(self.works.flops[i] - charged.flops[i]), 0.0),
        )

    def messages_alone(self) -> Leftovers:
        """Those of which a part of a message has been sent, until this message ends: clients begin nothing new."""
        works, down, up = self.works, *self.messages
        receives = (works.bytes_down > 0) & (down.sent > 0) & ~np.isfinite(self.charged.down_end)
        sends = (works.bytes_up > 0) & (up.sent > 0) & ~np.isfinite(self.charged.up_end)
        kept = {
            name: column if name == "bytes_down" else np.where(receives, column.dtype.type(0), column)
            for name, column in works.columns.items()
        }
        works = Works(**kept)
        return replace(self, works=works).only(receives | sends)

    def packed(self) -> Doubles:
        """(visits, numbers) in client order; integers by their bits, since seeds are too large for a float64."""
        senders = np.full((len(self), 2, SENDER_NUMBERS), math.nan)
        for direction, each in enumerate(self.senders):
            for row, numbers in each.items():
                senders[row, direction, : len(numbers)] = numbers
        parts = [np.full(len(self), self.since, np.float64), self.start, senders[:, DOWN], senders[:, UP]]
        parts += [column for table in self._tables() for column in _columns(table).values()]
        bits = [np.ascontiguousarray(part).view(np.float64).reshape(len(self), -1) for part in parts]
        return np.concatenate(bits, axis=1)[np.argsort(self.conditions.clients)]

    def _tables(self) -> tuple[Any, ...]:
        return self.works, self.conditions, *self.messages, self.charged

    @classmethod
    def unpacked(cls, packed: Doubles, none: Leftovers) -> Leftovers:
        """Inverse of `packed`; ``none``: no visits, with columns of the same types and shapes."""
        size, place = len(packed), 0

        def part(like: NDArray[Any]) -> NDArray[Any]:
            nonlocal place
            width = math.prod(like.shape[1:])
            column = np.ascontiguousarray(packed[:, place : place + width]).view(like.dtype)
            place += width
            return column.reshape(size, *like.shape[1:])

        def table(like: Any) -> Any:
            return replace(like, **{name: part(column) for name, column in _columns(like).items()})

        since, start = part(none.start), part(none.start)
        senders = [part(np.zeros((0, SENDER_NUMBERS))) for _ in (DOWN, UP)]
        # The first number of a sender is never NaN.
        down, up = (
            {row: tuple(numbers) for row, numbers in enumerate(each.tolist()) if not math.isnan(numbers[0])}
            for each in senders
        )
        works, conditions, *messages, charged = map(table, none._tables())
        return cls(float(since[0]), start, works, conditions, (messages[DOWN], messages[UP]), (down, up), charged)


def _rows(table: Any, rows: NDArray[np.intp]) -> Any:
    """These rows of a dataclass of columns."""
    return replace(table, **{name: column[rows] for name, column in _columns(table).items()})


def _columns(table: Any) -> dict[str, Any]:
    return table.columns if isinstance(table, Works | Timeline) else vars(table)


@dataclass(frozen=True)
class Solution:
    """A batch of visits, and those that went on beside it."""

    timeline: Timeline
    leftovers: Timeline | None = None
    """Of the latter, from when they went on; None if there are none"""
    state: Leftovers | None = None
    """Of all of them, those of the batch first, at its end; None where messages share air"""
