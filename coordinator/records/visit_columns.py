"""Visits by column, from the clock's arrays to the ledger: rows are made where they are written.

What a visit costs is the clock's, and what follows from it for the round is `coordinator.records.round_record`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from coordinator.records.chain import StoredRow, Values, as_stored
from coordinator.records.schema import VisitRow


class VisitColumns:
    """Lists of the values that SQLite returns, one for each column of `VisitRow`."""

    def __init__(self, **columns: Values) -> None:
        """``columns``: (visits,) values of every column."""
        names = VisitRow._fields
        self._columns = dict(zip(names, as_stored(VisitRow, map(columns.__getitem__, names)), strict=True))

    @classmethod
    def of(cls, rows: Iterable[VisitRow] = ()) -> VisitColumns:
        """The columns of these rows."""
        rows = list(rows)
        return cls(**{name: [row[i] for row in rows] for i, name in enumerate(VisitRow._fields)})

    def __len__(self) -> int:
        return len(self["visit"])

    def __getitem__(self, column: str) -> list[Any]:
        return self._columns[column]

    def __iter__(self) -> Iterator[VisitRow]:
        return map(VisitRow._make, self.rows())

    def rows(self) -> list[StoredRow]:
        """The rows, in the order of the visits' numbers."""
        return list(zip(*self.in_order()._columns.values(), strict=True))

    def extend(self, others: VisitColumns) -> None:
        """Append visits."""
        for name, values in self._columns.items():
            values.extend(others[name])

    def only(self, indices: Sequence[int]) -> VisitColumns:
        """The visits at these indices, in this order."""
        return VisitColumns(**{name: [values[i] for i in indices] for name, values in self._columns.items()})

    def in_order(self) -> VisitColumns:
        """In the order of the visits' numbers, in which the ledger is read."""
        numbers = self["visit"]
        order = sorted(range(len(self)), key=numbers.__getitem__)
        return self if order == list(range(len(self))) else self.only(order)

    @property
    def seconds(self) -> list[float]:
        """Duration of each visit."""
        return [end - start for start, end in zip(self["start_s"], self["up_end_s"], strict=True)]

    @property
    def costs(self) -> tuple[list[Any], ...]:
        """The columns of `coordinator.rounds.budget.Cost`."""
        seconds = [max(duration, 0.0) for duration in self.seconds]
        return self["bytes_down"], self["bytes_up"], self["flops"], self["joules"], seconds
