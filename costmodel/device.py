"""Named devices and networks: one row each in profiles.toml and networks.toml, with its source and year.

A figure that no source gives is marked by ``assumed = true`` on its row, and the row's ``source`` says which it is. The
rows are SI numbers under the names of the fields below. A device has one throughput, that of training a convolutional
net; other families of model reach a different share of the same device's peak.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from costmodel.units import nearest

__all__ = ["Device", "Network", "devices", "nearest", "networks", "read_rows"]


@dataclass(frozen=True)
class Device:
    """What a client computes on."""

    name: str
    flops_per_second: float
    """Sustained in fp32 training of a convolutional net at batch 16 to 32; 1 multiply-add = 2 FLOPs."""
    memory_bytes: int
    train_watts: float
    """Drawn by the whole device while it trains."""
    idle_watts: float
    """Drawn while it waits for the others."""
    source: str
    year: int
    assumed: bool
    """Whether any figure of the row is an assumption; ``source`` says which."""


@dataclass(frozen=True)
class Network:
    """How a client reaches the server: its own link, before any sharing of the server's."""

    name: str
    down_bits_per_second: float
    up_bits_per_second: float
    rtt_seconds: float
    transmit_watts: float
    """Drawn by the radio or port while it uploads."""
    receive_watts: float
    """Drawn by the radio or port while it downloads."""
    source: str
    year: int
    assumed: bool
    """Whether any figure of the row is an assumption; ``source`` says which."""


Row = TypeVar("Row", Device, Network)

MAY_BE_ZERO = {"train_watts", "idle_watts", "transmit_watts", "receive_watts", "rtt_seconds"}


@cache
def devices() -> dict[str, Device]:
    """The devices that ship, by name."""
    return read_rows(Path(__file__).with_name("profiles.toml"), Device)


@cache
def networks() -> dict[str, Network]:
    """The networks that ship, by name."""
    return read_rows(Path(__file__).with_name("networks.toml"), Network)


def read_rows(path: Path, kind: type[Row]) -> dict[str, Row]:
    """The rows of a TOML file, one table per row; ValueError names file, row and key of the first that is wrong."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not a TOML file: {error}") from None
    return {name: _row(kind, f"{path.name}: row {name!r}", name, table) for name, table in tables.items()}


def _row(kind: type[Row], where: str, name: str, table: Any) -> Row:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table of keys")
    types = {field.name: str(field.type) for field in dataclasses.fields(kind) if field.name != "name"}
    for key in table:
        if key not in types:
            raise ValueError(f"{where}: unknown key {key!r}, {nearest(key, types)}")
    for key in types:
        if key not in table:
            raise ValueError(f"{where}: key {key!r} is missing")
    return kind(name=name, **{key: _value(f"{where}, key {key!r}", key, table[key], types[key]) for key in types})


def _value(where: str, key: str, value: Any, expected: str) -> Any:
    """``value`` as the type of its field, which is one of float, int, str and bool."""
    if expected == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != expected:
        raise ValueError(f"{where}: expected {expected}, not {value!r}")
    if expected in ("float", "int") and not (
        math.isfinite(value) and (value > 0 or (value == 0 and key in MAY_BE_ZERO))
    ):
        raise ValueError(f"{where}: {value!r} is out of range")
    if expected == "str" and not value.strip():
        raise ValueError(f"{where}: it must not be empty")
    return value
