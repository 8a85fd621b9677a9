"""The bytes and the computing of secure aggregation, phase by phase and for one client.

secagg: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Table 1 and
section 7; every client shares its secrets with all others. secagg+: Bell et al., Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020; with k - 1 neighbours. lightsecagg: So et al., LightSecAgg: a Lightweight and
Versatile Design for Secure Aggregation in Federated Learning, MLSys 2022; coded masks, of which the survivors send one
sum. Lengths are those that the papers count, with keys and shares of 256 bits; or, of secagg and secagg+, those that
Flower 1.29 was seen to send. What neither counts travels free: an acknowledgement, a list of names beside Flower's.

Nothing is encrypted here, and nothing has a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from costmodel.files import parse_toml

Kind = Literal["secagg", "secagg+", "lightsecagg"]
Wire = Literal["published", "flower"]
KEY_NBYTES = SHARE_NBYTES = 32
"""a_K and a_S of Bonawitz et al., 256 bits"""
WORD_NBYTES = 4
"""A number mod 2^32, or of a field of 31 bits"""
FLOWER_WORD_NBYTES = 8
"""Flower sends numbers mod 2^32 as int64"""
FLOWER_SETUP, FLOWER_KEYS, FLOWER_SHARE, FLOWER_LIVING, FLOWER_DEAD = 430, 430, 612, 52, 324
"""Bytes of Flower's messages: two keys; those of one neighbour; one encrypted pair of shares; the share of a living
neighbour's own mask, and of a dead one's key"""


@dataclass(frozen=True)
class Exchange:
    """One client's messages and computing in a phase."""

    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    """Seconds of computing on one core of the reference host"""


@dataclass(frozen=True)
class Rates:
    """Speeds of the reference host (secagg.toml)."""

    stream_bytes_per_second: float
    agreement_seconds: float
    field_products_per_second: float


@cache
def rates() -> Rates:
    """The figures of secagg.toml."""
    table = parse_toml(Path(__file__).with_name("fleet").joinpath("secagg.toml").read_text())
    return Rates(**{name: float(table[name]) for name in Rates.__dataclass_fields__})


@dataclass(frozen=True)
class SecureAggregation:
    """The protocol of one cohort."""

    kind: Kind
    clients: int
    """n, the clients of the cohort"""
    numbers: int
    """Numbers that a client sends masked: its model, and its weight"""
    shares: int
    """k, the clients that hold shares of a client's secrets, itself included; n of all"""
    quorum: int
    """Holders of shares, or of coded masks, that must answer in the last phase: t, or U"""
    colluding: int = 0
    """T of lightsecagg: clients that may collude"""
    wire: Wire = "published"

    @property
    def _piece(self) -> int:
        """Numbers of a coded mask of lightsecagg, d / (U - T)."""
        return -(-self.numbers // (self.quorum - self.colluding))

    @property
    def masked_nbytes(self) -> int:
        """Bytes of the masked numbers."""
        return self.numbers * (FLOWER_WORD_NBYTES if self.wire == "flower" else WORD_NBYTES)

    @property
    def has_setup(self) -> bool:
        """Whether keys are advertised in a phase of their own."""
        return self.kind != "lightsecagg"

    def setup(self) -> Exchange:
        """A client advertises two public keys."""
        nbytes = FLOWER_SETUP if self.wire == "flower" else 2 * KEY_NBYTES
        return Exchange(0, nbytes, 2 * rates().agreement_seconds)

    def share(self) -> Exchange:
        """It gets the keys of its neighbours, and sends each its encrypted shares; or all others a coded mask."""
        others, rate = self.shares - 1, rates()
        if self.kind == "lightsecagg":
            products = self.clients * self.quorum * self._piece
            seconds = self._stream(1) + products / rate.field_products_per_second
            return Exchange(0, (self.clients - 1) * self._piece * WORD_NBYTES, seconds)
        seconds = others * rate.agreement_seconds
        if self.wire == "flower":
            return Exchange(FLOWER_KEYS * self.shares, FLOWER_SHARE * others, seconds)
        return Exchange(2 * others * KEY_NBYTES, 2 * others * SHARE_NBYTES, seconds)

    def collect(self) -> Exchange:
        """Beside the model it gets the shares of others; it sends its masked numbers alone."""
        others = self.shares - 1
        if self.kind == "lightsecagg":
            return Exchange((self.clients - 1) * self._piece * WORD_NBYTES, self.masked_nbytes, self._stream(1))
        seconds = others * rates().agreement_seconds + self._stream(self.shares)
        down = FLOWER_SHARE * others if self.wire == "flower" else 2 * others * SHARE_NBYTES
        return Exchange(down, self.masked_nbytes, seconds)

    def unmask(self, living: int, dead: int) -> Exchange:
        """It sends a share for each neighbour, whether this is ``living`` (itself not counted) or ``dead``; or the sum
        of its coded masks."""
        if self.kind == "lightsecagg":
            return Exchange(self._names(self.clients), self._piece * WORD_NBYTES, self._stream(living / self.shares))
        if self.wire == "flower":
            return Exchange(0, FLOWER_LIVING * living + FLOWER_DEAD * dead)
        return Exchange(self._names(living + dead + 1), (living + dead + 1) * SHARE_NBYTES)

    def server_seconds(self, survivors: int, dead: int) -> float:
        """Seconds in which the server takes the masks off: those of survivors, and those between them and the dead."""
        rate = rates()
        if self.kind == "lightsecagg":
            pieces = self.quorum - self.colluding
            return pieces * self.quorum * self._piece / rate.field_products_per_second
        others = self.shares - 1
        return self._stream(survivors + dead * others) + dead * others * rate.agreement_seconds

    def _stream(self, times: float) -> float:
        return times * self.numbers * WORD_NBYTES / rates().stream_bytes_per_second

    def _names(self, count: int) -> int:
        return -(-count * max(1, math.ceil(math.log2(max(self.clients, 2)))) // 8)


def expansion(clients: int, numbers: int, bits: int = 16) -> float:
    """How many times the bits of plain numbers a client of secagg sends and receives, beside the model that it gets.

    Numbers of ``bits`` are summed mod R = n (2^bits - 1) + 1 (Bonawitz et al., section 7.1).
    """
    key = share = 8 * KEY_NBYTES
    names = clients * math.ceil(math.log2(clients))
    modulus = math.ceil(math.log2(clients * (2**bits - 1) + 1))
    sent = 2 * clients * key + (5 * clients - 4) * share + names + numbers * modulus
    return sent / (numbers * bits)
