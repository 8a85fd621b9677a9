"""How clients differ: the device and the network of each, and random factors per round and per visit.

Random numbers are drawn whole, for all clients or for many visits, so a client's numbers never depend on the other
clients of a query. Nothing here knows how the numbers are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.fleet.devices import Device, Network
from costmodel.units import nearest


@dataclass(frozen=True)
class VisitVariation:
    """Independent random numbers of a batch of visits."""

    normal: Doubles
    """(visits, 3) standard normal"""
    uniform: Doubles
    """(visits, 2) in 0 .. 1"""
    exponential: Doubles
    """(visits,) exponential, of mean 1"""
    seed: NDArray[np.int64] | None = None
    """(visits, 2) any numbers of at least 0; None: not drawn"""

    @classmethod
    def none(cls, visits: int) -> VisitVariation:
        """The middle of each law, for fleets without variation."""
        return cls(np.zeros((visits, 3)), np.full((visits, 2), 0.5), np.ones(visits))

    def of(self, visits: NDArray[np.intp] | slice) -> VisitVariation:
        """The numbers of some of the visits."""
        seed = None if self.seed is None else self.seed[visits]
        return VisitVariation(self.normal[visits], self.uniform[visits], self.exponential[visits], seed)


def visit_variation(
    streams: Streams, normal_streams: Streams | None, has_seeds: bool, purpose: str, index: int, visits: int
) -> VisitVariation:
    """The numbers of the block ``index`` of ``visits`` visits; ``normal_streams``: those of normal ones and seeds."""
    rng = streams(purpose, index, 0)
    normal, uniform = rng.standard_normal((visits, 3)), rng.random((visits, 2))
    exponential = rng.standard_exponential(visits)
    if normal_streams is not None:
        rng = normal_streams(purpose, index, 0)
        normal = rng.standard_normal((visits, 3))
    # The last draws, so that the others are the same without them.
    seed = rng.integers(1 << 62, size=(visits, 2)) if has_seeds else None
    return VisitVariation(normal, uniform, exponential, seed)


MEASURED: Literal["measured"] = "measured"
Noise = float | Literal["measured"]
"""Sigma of a lognormal factor of mean 1; or ``measured``: the spread of real transfers, see `noise_factors`."""
MEDIAN_DEVIATION, LARGE_DEVIATION = 0.018, 0.09
"""Median and 90th percentile of abs(ln factor) between repetitions of one transfer over a shaped link (our own
measurements of 2026: ZeroMQ over TCP cubic, 2 to 60 Mbit/s, round trips of 5 to 120 ms, 0.3 to 8 MB)."""
MEDIAN_NORMAL, LARGE_NORMAL = 0.6744897501960817, 1.6448536269514722
"""The same quantiles of abs(z) for a standard normal z: those of z at 0.75 and 0.95."""
NOISE_POWER = math.log(LARGE_DEVIATION / MEDIAN_DEVIATION) / math.log(LARGE_NORMAL / MEDIAN_NORMAL)
NOISE_SCALE = MEDIAN_DEVIATION / MEDIAN_NORMAL**NOISE_POWER


def noise_factors(noise: Noise, normal: Doubles) -> Doubles:
    """Factors on the bits of messages, from standard normals of the same shape.

    ``measured``: exp(s sign(z) |z|^k), whose median is 1, with s and k such that abs(ln factor) has the two quantiles
    above. A lognormal cannot have both: the ratio of its quantiles is 2.4, not 5.
    """
    if noise == MEASURED:
        factors: Doubles = np.exp(NOISE_SCALE * np.sign(normal) * np.abs(normal) ** NOISE_POWER)
        return factors
    assert not isinstance(noise, str), noise
    return np.exp(noise * normal - noise**2 / 2) if noise else np.ones(normal.shape)


Choice = Mapping[str, float] | Sequence[str]
"""Fractions by name (any positive numbers, relative to their sum), or one name per client."""
Profile = TypeVar("Profile")


def columns(rows: Sequence[Device] | Sequence[Network]) -> dict[str, Doubles]:
    """The numeric fields of these rows by name, (rows,) each."""
    numbers = [name for name, value in vars(rows[0]).items() if isinstance(value, int | float)]
    return {name: np.array([getattr(row, name) for row in rows], np.float64) for name in numbers}


class ProfileColumns:
    """Columns of the rows assigned to some clients: ``network["rtt_seconds"]`` is (clients,)."""

    def __init__(self, columns: Mapping[str, Doubles], row_of: NDArray[np.intp]) -> None:
        self._columns, self._row_of = columns, row_of

    def __getitem__(self, key: str) -> Doubles:
        return self._columns[key][self._row_of]


def counts(fractions: Mapping[str, float], clients: int) -> NDArray[np.intp]:
    """(names,) clients for each name: largest remainders, ties to the first name."""
    quotas = clients * np.array(list(fractions.values()), np.float64) / math.fsum(fractions.values())
    whole = np.floor(quotas).astype(np.intp)
    by_remainder = np.argsort(whole - quotas, kind="stable")
    whole[by_remainder[: clients - whole.sum()]] += 1
    return whole


def assign(
    kind: str, choice: Choice, table: Mapping[str, Profile], places: NDArray[np.intp]
) -> tuple[tuple[Profile, ...], NDArray[np.intp]]:
    """(rows of ``table`` that occur, index into them per client); ``places`` is a random order of the clients.

    ValueError for an unknown name, a fraction that is not positive, or not one name per client.
    """
    assert not isinstance(choice, str), choice
    names = list(dict.fromkeys(choice))
    for name in names:
        if name not in table:
            raise ValueError(f"unknown {kind} {name!r}, {nearest(name, table)}")
    rows = tuple(table[name] for name in names)
    if not isinstance(choice, Mapping):
        if len(choice) != places.size:
            raise ValueError(f"{len(choice)} {kind} names for {places.size} clients: give one per client, or shares")
        index = {name: position for position, name in enumerate(names)}
        return rows, np.array([index[name] for name in choice], np.intp)
    for name, number in choice.items():
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"the share of {kind} {name!r} must be a positive number, not {number!r}")
    if not names:
        raise ValueError(f"no {kind} is named: choose from {', '.join(table)}")
    return rows, np.repeat(np.arange(len(names)), counts(choice, places.size))[places]
