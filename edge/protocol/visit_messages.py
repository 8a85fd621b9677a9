"""The messages of visits: one alone, or several that travel together, in columns. Never their encoding.

`edge.protocol.messages` has all others, and names these, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.protocol.logged import expect_names
from edge.protocol.message_checks import expect, reject
from edge.protocol.payload import Payload

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
Choice = Mapping[str, Any]
"""name -> integer of 64 bits, or finite float"""

MAX_BATCH = 1024
"""Visits of one `Visits`, and updates of one `Updates`."""
MAX_BATCH_VECTORS = 1 << 16
"""Vectors of one `Updates`: a short header can announce many empty ones for each update."""


@dataclass(frozen=True)
class Train:
    """One visit of one client. Charged."""

    client: int
    round: int
    lr: float
    choice: Choice
    """What the server chose for this visit, by name (FedBR: ``alpha``)."""
    payload: Payload

    def __post_init__(self) -> None:
        expect(self.client >= 0, "train: client", self.client)
        expect(self.round >= 0, "train: round", self.round)
        expect(math.isfinite(self.lr) and self.lr >= 0, "train: lr", self.lr)
        expect_finite("train", self.choice)


@dataclass(frozen=True)
class Update:
    """The answer to `Train`. Charged as if its vectors came with it, also where the worker has added them up."""

    client: int
    round: int
    numbers: Mapping[str, float]
    """What the visit measured, by name (losses, samples, steps)."""
    payload: Payload
    """Empty if the worker has added the vectors to its partial sum."""
    logged: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What the method has logged in the visit, by name; NaN for a number that was not finite. It travels in the
    envelope, and is charged to nobody."""
    by: str = field(default="", compare=False)
    """The remote worker that trained it; empty for a local one. It does not travel."""

    def __post_init__(self) -> None:
        expect(self.client >= 0, "update: client", self.client)
        expect(self.round >= 0, "update: round", self.round)


def expect_finite(name: str, choice: Choice) -> None:
    """WireError for a number of a choice that is not finite."""
    for key, value in choice.items():
        expect(isinstance(value, int) or math.isfinite(value), f"{name}: choice: {key}", value)


def _expect_columns(name: str, sequences: Ints, *columns: Sized) -> None:
    """WireError unless the sequences are distinct task numbers, and all columns as long."""
    count = len(sequences)
    expect(0 < count <= MAX_BATCH, f"{name}: number", count)
    expect({len(column) for column in columns} == {count}, f"{name}: lengths", [count, *map(len, columns)])
    numbers = set(sequences.tolist())
    expect(len(numbers) == count and min(numbers) > 0, f"{name}: tasks", sequences[:8].tolist())


def _expect_each(name: str, column: Ints | Reals, fits: NDArray[np.bool_]) -> None:
    """WireError with the first number of a column that does not fit."""
    if not fits.all():
        reject(name, column[~fits][0].item())


@dataclass(frozen=True, eq=False)
class Visits:
    """Several visits that need the same vectors: columns with one item for each. Each is charged as a `Train`."""

    sequences: Ints
    """Numbers of the tasks"""
    clients: Ints
    rounds: Ints
    lrs: Reals
    weights: Reals
    """Aggregation weights, as in the envelope of a `Train`"""
    state_in: Sequence[str | None]
    state_out: Sequence[str | None]
    choice: Mapping[str, Ints | Reals]
    payload: Payload

    def __post_init__(self) -> None:
        others = (self.clients, self.rounds, self.lrs, self.weights, self.state_in, self.state_out)
        _expect_columns("visits", self.sequences, *others, *self.choice.values())
        _expect_each("visits: clients", self.clients, self.clients >= 0)
        _expect_each("visits: rounds", self.rounds, self.rounds >= 0)
        _expect_each("visits: lrs", self.lrs, (self.lrs >= 0) & (self.lrs < math.inf))
        _expect_each("visits: weights", self.weights, (self.weights >= 0) & (self.weights <= 1))
        for key, column in self.choice.items():
            _expect_each(f"visits: choice: {key}", column, np.isfinite(column))

    def tasks(self) -> Iterator[tuple[int, float, str | None, str | None, Train]]:
        """(sequence, weight, state_in, state_out, visit) of each."""
        names, chosen = list(self.choice), [column.tolist() for column in self.choice.values()]
        choices = [dict(zip(names, values, strict=True)) for values in zip(*chosen, strict=True)]
        visits = map(
            Train,
            self.clients.tolist(),
            self.rounds.tolist(),
            self.lrs.tolist(),
            choices or [{} for _ in self.sequences],
            [self.payload] * len(self.sequences),
        )
        columns = self.sequences.tolist(), self.weights.tolist(), self.state_in, self.state_out
        yield from zip(*columns, visits, strict=True)


@dataclass(frozen=True, eq=False)
class Updates:
    """Several updates that report the same numbers, in columns. Each is charged as an `Update`."""

    sequences: Ints
    """Numbers of the tasks"""
    clients: Ints
    rounds: Ints
    seconds: Reals
    """How long the worker took over each task"""
    numbers: Mapping[str, Reals]
    payloads: Sequence[Payload] = ()
    """One for each, all of the same shapes; none if all have been added to the worker's partial sum"""
    logged: Mapping[str, Reals] = field(default_factory=dict)
    """As of `Update`; all have logged the same names"""

    def __post_init__(self) -> None:
        columns = [self.clients, self.rounds, self.seconds, *self.numbers.values(), *self.logged.values()]
        expect_names("updates", self.logged)
        _expect_columns("updates", self.sequences, *columns, *([self.payloads] if self.payloads else []))
        _expect_each("updates: clients", self.clients, self.clients >= 0)
        _expect_each("updates: rounds", self.rounds, self.rounds >= 0)
        _expect_each("updates: seconds", self.seconds, (self.seconds >= 0) & (self.seconds < math.inf))
        for name, column in self.logged.items():
            _expect_each(f"updates: logged: {name}", column, ~np.isinf(column))

    def replies(self) -> Iterator[tuple[int, float, Update]]:
        """(sequence, seconds, update) of each."""
        updates = map(
            Update,
            self.clients.tolist(),
            self.rounds.tolist(),
            self._by_name(self.numbers),
            self.payloads or [{} for _ in self.sequences],
            self._by_name(self.logged),
        )
        yield from zip(self.sequences.tolist(), self.seconds.tolist(), updates, strict=True)

    def _by_name(self, columns: Mapping[str, Reals]) -> list[dict[str, float]]:
        """The numbers of each update."""
        names, values = list(columns), [column.tolist() for column in columns.values()]
        return [dict(zip(names, each, strict=True)) for each in zip(*values, strict=True)] or [
            {} for _ in self.sequences
        ]
