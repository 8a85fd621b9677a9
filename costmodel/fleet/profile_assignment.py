"""Kinds of device and network: which client has which, and the figures of a kind as columns over clients.

Shares are met exactly, by largest remainders; only who gets what is left to chance, and drawn elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet.devices import Device, Network
from costmodel.units import nearest

Doubles = NDArray[np.float64]
Choice = Mapping[str, float] | Sequence[str]
"""Shares by name (any positive numbers), or one name per client."""


def columns(rows: Sequence[Device] | Sequence[Network]) -> dict[str, Doubles]:
    """The numbers of these rows: (rows,) by the name of the field."""
    numbers = [name for name, value in vars(rows[0]).items() if isinstance(value, int | float)]
    return {name: np.array([getattr(row, name) for row in rows], np.float64) for name in numbers}


class ProfileColumns:
    """Columns of the rows that some clients have: ``kinds["rtt_seconds"]`` is (clients,)."""

    def __init__(self, columns: Mapping[str, Doubles], which: NDArray[np.intp]) -> None:
        self._columns, self._which = columns, which

    def __getitem__(self, key: str) -> Doubles:
        return self._columns[key][self._which]


def counts(shares: Mapping[str, float], clients: int) -> NDArray[np.intp]:
    """How many clients each name gets, in the order of the names: largest remainders, ties to the first name."""
    quotas = clients * np.array(list(shares.values()), np.float64) / math.fsum(shares.values())
    whole = np.floor(quotas).astype(np.intp)
    by_remainder = np.argsort(whole - quotas, kind="stable")
    whole[by_remainder[: clients - whole.sum()]] += 1
    return whole


def assign(
    kind: str, choice: Choice, table: Mapping[str, object], places: NDArray[np.intp]
) -> tuple[list[str], NDArray[np.intp]]:
    """(names that occur, index into them per client); ``places`` is a random order of the clients.

    ValueError for an unknown name, a share that is not positive, or not one name per client.
    """
    assert not isinstance(choice, str), choice
    names = list(dict.fromkeys(choice))
    for name in names:
        if name not in table:
            raise ValueError(f"unknown {kind} {name!r}, {nearest(name, table)}")
    if not isinstance(choice, Mapping):
        if len(choice) != places.size:
            raise ValueError(f"{len(choice)} {kind} names for {places.size} clients: give one per client, or shares")
        index = {name: position for position, name in enumerate(names)}
        return names, np.array([index[name] for name in choice], np.intp)
    for name, number in choice.items():
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"the share of {kind} {name!r} must be a positive number, not {number!r}")
    if not names:
        raise ValueError(f"no {kind} is named: choose from {', '.join(table)}")
    return names, np.repeat(np.arange(len(names)), counts(choice, places.size))[places]
