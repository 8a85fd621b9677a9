"""Named devices and networks: one row each in profiles.toml and networks.toml, with its source and year.

A row's ``source`` says where its figures come from, and its lists ``inference``, ``derived`` and ``assumed`` which of
them were measured in inference alone, computed from measurements of another device or setting, or have no source;
`basis` tells it for one figure. The rows are SI numbers under the names of the fields below, or texts with units; a
user's file has the same form, in which figures with a default (and the first two lists) may be left out, or is a table
of boards (`costmodel.fleet.board_table`). One device reaches very different
fractions of its peak on different families of model, and even within one family, so a throughput belongs to a device
and a family, or to a device and a model where it was measured. Nothing here estimates a missing figure, and rows never
change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from costmodel.files import parse_toml, read_bytes
from costmodel.fleet.codec_costs import SIZES, CodecRates, reference_rates
from costmodel.units import nearest, parser_of

__all__ = [
    "MEASUREMENTS",
    "Device",
    "MeasuredStep",
    "Network",
    "basis",
    "devices",
    "figures",
    "in_ratio",
    "made_row",
    "nearest",
    "networks",
    "own_rows",
    "read_rows",
    "with_new_names",
]


@dataclass(frozen=True)
class MeasuredStep:
    """A training step as it was measured on a device, and as the device's row predicts it."""

    model: str
    fitted: bool
    """Whether the row was fitted to it"""
    batch: int
    """Examples"""
    flops_per_example: float
    measured_seconds: float
    predicted_seconds: float
    width: int | None = None
    """``model.width`` of a model that has one"""


@dataclass(frozen=True)
class Device:
    """The device on which a client computes."""

    name: str
    flops_per_second: Mapping[str, float]
    """Sustained in fp32 training at batch 16 to 32, by model or family of models; 1 multiply-add = 2 FLOPs. Every
    device has the families ``conv`` and ``depthwise``; it may have models beside them."""
    step_seconds: float
    """Overhead of each SGD step of any size: launches, data handling."""
    modes: tuple[float, ...]
    """Factor on the throughput in each of its power modes, full speed (1.0) first."""
    memory_bytes: int
    train_watts: float
    """Power of the whole device while it trains at full speed."""
    idle_watts: float
    """Power while it waits for other clients."""
    clock_hz: float
    """Clock of the processor or GPU that trains, at full speed."""
    source: str
    year: int
    """Of the source; 0 in a row of a table of boards that has none"""
    assumed: tuple[str, ...]
    """Keys of the figures without a source, as `figures` names them and in its order."""
    inference: tuple[str, ...] = ()
    """Keys of the figures measured in inference, not in training."""
    derived: tuple[str, ...] = ()
    """Keys of the figures computed from measurements of another device or setting; ``source`` says how."""
    operations_per_second: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By kind of operation ("conv.w16", "elementwise"; `edge.protocol.operations` has the kinds), for devices whose
    time for any model was measured kind by kind (`costmodel.fleet.model_demand`); a row may leave it out."""
    codec_slowdown: float = 1.0
    """Seconds that it takes to encode or decode what the reference host of `costmodel.fleet.codec_costs` takes a second
    for; in a row that leaves it out, `CODEC_HZ` by ``clock_hz``."""
    codecs: Mapping[str, CodecRates] = dataclasses.field(default_factory=dict)
    """By kind of stage, where they were measured on the device itself; a row may leave it out."""
    memory_bytes_per_second: float = 0.0
    """Bytes that training reads and writes per second in plain passes over vectors, such as an optimizer's state; in a
    row that leaves it out, `MEMORY_RATE` by ``codec_slowdown``."""
    measurements: tuple[MeasuredStep, ...] = ()
    """Steps of a device that ``fedbr check --calibrate`` has made: how far its row holds. Nothing is computed from
    them."""

    def throughput(self, *names: str) -> float:
        """FLOP/s in training, for the first of the names (a model, then its family) that the device has a figure for.

        ValueError if it has a figure for none of them; the message names the last, the family.
        """
        for name in names:
            if name in self.flops_per_second:
                return self.flops_per_second[name]
        known = ", ".join(self.flops_per_second)
        raise ValueError(f"device {self.name!r} has no throughput for models of family {names[-1]!r}, only for {known}")


@dataclass(frozen=True)
class Network:
    """A client's own link, before contention on shared links."""

    name: str
    down_bits_per_second: float
    """Median over clients."""
    up_bits_per_second: float
    """Median over clients."""
    rtt_seconds: float
    goodput: bool
    """Whether the rates are those of a speed test, without headers; False for rates of the line."""
    sigma_down: float
    """Sigma of the lognormal spread of the downlink rate over clients; 0 if all are equal."""
    sigma_up: float
    """Sigma of the lognormal spread of the uplink rate over clients; 0 if all are equal."""
    transmit_watts: float
    """Power of the radio or port while it uploads, if taken as constant."""
    receive_watts: float
    """Power of the radio or port while it downloads, if taken as constant."""
    transmit_joules_per_bit: float
    """alpha of P = alpha * rate + base_watts while it uploads."""
    receive_joules_per_bit: float
    """alpha of P = alpha * rate + base_watts while it downloads."""
    base_watts: float
    """beta of P = alpha * rate + beta, in both directions."""
    tail_watts: float
    """Power for ``tail_seconds`` after a transfer; 0 if there is no tail."""
    tail_seconds: float
    """Seconds for which the radio stays awake after a transfer; 0 if there is no tail."""
    source: str
    year: int
    assumed: tuple[str, ...]
    """Keys of the figures without a source, as `figures` names them and in its order."""
    derived: tuple[str, ...] = ()
    """Keys of the figures computed from measurements of another network or setting; ``source`` says how."""
    loss: float = 0.0
    """Probability that TCP sees a packet lost, after all retransmission by the link layer; at most 0.1."""
    outages_per_hour: float = 0.0
    """Outages of the whole link, both directions, per hour of wall-clock time; 0 if there are none."""
    outage_seconds: float = 0.0
    """Median length of an outage."""
    promotion_seconds: float = 0.0
    """Seconds that an idle radio takes to connect before it can send; 0 for a link that is always connected."""
    promotion_watts: float = 0.0
    """Power of the radio while it connects."""


LARGEST_NBYTES = 4_000_000
"""Limit of a file of rows; the shipped ones have a hundredth of it."""
Row = TypeVar("Row", Device, Network)

FAMILIES_OF_ALL = ("conv", "depthwise")
"""Families for which every device has a throughput."""
BASES = ("inference", "derived", "assumed")
"""The lists by which a row says that a figure was not measured as its field means it; a figure is in one at most."""
MEASUREMENTS = "measurements"
NO_FIGURES = {"name", "goodput", "source", "year", MEASUREMENTS, *BASES}
"""Keys that are no figures: meaning and source of a row."""
MOST = {"loss": 0.1, "outages_per_hour": 3600.0, "outage_seconds": 1e6}
"""Largest values. Up to the loss of 0.1 the clock's TCP stays near the formula of Padhye et al. (1998); with more, the
sender mostly waits for its timer, and what it takes is several times longer than computed."""
CODEC_HZ = 2.9e9
"""Clock of a processor that encodes and decodes as fast as the reference host, where nothing else is known of it: of
the boards from which `Device.codec_slowdown` is derived (profiles.toml) the median product of slowdown and clock, which
goes from 1.7e9 (Apple M1) to 6.1e9 (Raspberry Pi 4)."""
MEMORY_RATE = 16.8e9
"""Bytes that a core of the reference host reads and writes per second in a copy (profiles.toml)"""
MUST_BE_POSITIVE = {
    "flops_per_second",
    "operations_per_second",
    "modes",
    "memory_bytes",
    "clock_hz",
    "codec_slowdown",
    "codecs",
    "memory_bytes_per_second",
    "down_bits_per_second",
    "up_bits_per_second",
}


@cache
def devices() -> dict[str, Device]:
    """The devices that ship, by name."""
    return read_rows(Path(__file__).with_name("profiles.toml"), Device)


@cache
def networks() -> dict[str, Network]:
    """The networks that ship, by name."""
    return read_rows(Path(__file__).with_name("networks.toml"), Network)


def figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row (its fields by name), each by its key in ``assumed``: "idle_watts", and for figures by model
    or family "flops_per_second.conv"."""
    by_key: dict[str, Any] = {}
    for key, value in row.items():
        if key not in NO_FIGURES:
            by_name = isinstance(value, Mapping)
            by_key |= {f"{key}.{name}": figure for name, figure in value.items()} if by_name else {key: value}
    return by_key


def basis(row: Device | Network, key: str) -> str:
    """The basis of one figure: "inference", "derived" or "assumed"; else it was read in a source as its field means it:
    "training" for a device (measured in training, or a fact of its data sheet), "measured" for a network.

    KeyError if the row has no such figure.
    """
    if key not in figures(dataclasses.asdict(row)):
        raise KeyError(key)
    read = "training" if isinstance(row, Device) else "measured"
    return next((name for name in BASES if key in getattr(row, name, ())), read)


def in_ratio(known: Mapping[str, float], like: Device, families: Iterable[str]) -> dict[str, float]:
    """Throughputs of those of ``families`` that are not ``known``: as much more or less as ``like`` has of them than of
    ``conv``, or of the first other name that is known of both. ValueError if there is none."""
    missing = [family for family in families if family not in known]
    both = [name for name in ("conv", *known) if name in known and name in like.flops_per_second]
    if missing and not both:
        raise ValueError(f"{like.name} has no throughput for {', '.join(known)}, to which others have a ratio")
    return {
        family: known[both[0]] * (like.flops_per_second[family] / like.flops_per_second[both[0]]) for family in missing
    }


def own_rows(path: Path, kind: type[Row]) -> dict[str, Row]:
    """The devices or networks of a user's TOML file; ValueError as of `read_rows` and `with_new_names`."""
    return with_new_names(path, read_rows(path, kind))


def with_new_names(path: Path, rows: dict[str, Row]) -> dict[str, Row]:
    """The rows of a user's file; ValueError for one with the name of a shipped row."""
    for name, row in rows.items():
        if name in (devices() if isinstance(row, Device) else networks()):
            kind = type(row).__name__.lower()
            raise ValueError(f"{path.name}: row {name!r}: a {kind} of that name ships; give it another")
    return rows


def read_rows(path: Path, kind: type[Row]) -> dict[str, Row]:
    """The rows of a TOML file, one table per row; ValueError names file, row and key of the first error."""
    raw = read_bytes(path, LARGEST_NBYTES)
    try:
        tables = parse_toml(raw.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8; numbers or lists too long
        raise ValueError(f"{path.name}: not a TOML file: {error}") from None
    return {name: made_row(kind, f"{path.name}: row {name!r}", name, table) for name, table in tables.items()}


def made_row(kind: type[Row], where: str, name: str, table: Any) -> Row:
    """The row of a table with the keys of a TOML file; ValueError that begins with ``where``, and names the key."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table of keys")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "name"}
    for key in table:
        if key not in fields:
            raise ValueError(f"{where}: unknown key {key!r}, {nearest(key, fields)}")
    needed = [key for key, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING]
    _refuse_missing(where, [key for key in needed if key not in table])
    values: dict[str, Any] = {
        key: _value(where, key, table[key], str(field.type)) if key in table else field.default
        for key, field in fields.items()
        if key not in BASES and (key in table or field.default is not dataclasses.MISSING)
    }
    if "codec_slowdown" in fields and "codec_slowdown" not in table:
        values["codec_slowdown"] = CODEC_HZ / values["clock_hz"]
    if "memory_bytes_per_second" in fields and "memory_bytes_per_second" not in table:
        values["memory_bytes_per_second"] = MEMORY_RATE / values["codec_slowdown"]
    known, bases = list(figures(values)), [key for key in BASES if key in fields]
    listed = {basis: _listed(where, basis, table.get(basis, False), known) for basis in bases}
    # Figures that the row leaves to their default are assumed.
    left_out = {key for key in values if key not in table}
    listed["assumed"] = tuple(key for key in known if key in left_out or key in listed["assumed"])
    for key in known:
        with_key = [basis for basis in bases if key in listed[basis]]
        if len(with_key) > 1:
            raise ValueError(f"{where}: figure {key!r} is in {' and '.join(map(repr, with_key))}; keep it in one")
    return kind(name=name, **(values | listed))


def _refuse_missing(where: str, keys: Sequence[str]) -> None:
    if keys:
        names = ", ".join(map(repr, keys))
        raise ValueError(f"{where}: key {names} is missing" if len(keys) == 1 else f"{where}: keys {names} are missing")


def _listed(where: str, name: str, value: Any, known: Sequence[str]) -> tuple[str, ...]:
    """The keys in ``value``, in the order of ``known``; True stands for all of them, False for none."""
    if isinstance(value, bool):
        return tuple(known) if value else ()
    where = f"{where}, key {name!r}"
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a list of the keys of figures, true (all) or false (none), not {value!r}")
    for key in value:
        if key not in known:
            raise ValueError(f"{where}: the row has no figure {key!r}, {nearest(key, known)}")
    return tuple(key for key in known if key in value)


def _value(where: str, key: str, value: Any, expected: str) -> Any:
    """``value``, checked, as the type of its field."""
    if expected == "Mapping[str, float]":
        if not isinstance(value, dict):
            raise ValueError(f"{where}, key {key!r}: expected a table of numbers by model or family, not {value!r}")
        needed = FAMILIES_OF_ALL if key == "flops_per_second" else ()
        _refuse_missing(where, [f"{key}.{family}" for family in needed if family not in value])
        if not all(name.strip() for name in value):
            raise ValueError(f"{where}, key {key!r}: the name of a model or family must not be empty")
        return {name: _quantity(f"{where}, key '{key}.{name}'", key, number, "float") for name, number in value.items()}
    if expected == "Mapping[str, CodecRates]":
        return _codecs(where, key, value)
    if expected == "tuple[MeasuredStep, ...]":
        return _steps(where, key, value)
    if expected == "tuple[float, ...]":
        if not isinstance(value, list) or not value:
            raise ValueError(f"{where}, key {key!r}: expected a list of numbers, not {value!r}")
        factors = tuple(
            _scalar(f"{where}, key {key!r}, entry {place}", factor, "float", positive=key in MUST_BE_POSITIVE)
            for place, factor in enumerate(value, start=1)
        )
        if factors[0] != 1 or max(factors) > 1:
            rule = "the first must be 1.0, full speed, and none above it"
            raise ValueError(f"{where}, key {key!r}: {rule}, not {value!r}")
        return factors
    scalar = _quantity(f"{where}, key {key!r}", key, value, expected)
    if key in MOST and scalar > MOST[key]:
        raise ValueError(f"{where}, key {key!r}: {scalar!r} is out of range, the most is {MOST[key]:g}")
    return scalar


def _quantity(where: str, key: str, value: Any, expected: str) -> Any:
    """A number in SI, or the number of a text with a unit of what the key says."""
    parse = parser_of(key)
    if parse is not None and isinstance(value, str):
        try:
            value = parse(value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return _scalar(where, value, expected, positive=key in MUST_BE_POSITIVE)


def _codecs(where: str, key: str, value: Any) -> dict[str, CodecRates]:
    known = reference_rates()
    directions = [field.name for field in dataclasses.fields(CodecRates)]
    if not isinstance(value, dict):
        raise ValueError(f"{where}, key {key!r}: expected a table of rates by stage of a codec, not {value!r}")
    rates = {}
    for kind, row in value.items():
        if kind not in known:
            raise ValueError(f"{where}, key {key!r}: unknown stage {kind!r}, {nearest(kind, known)}")
        at = f"{where}, key '{key}.{kind}'"
        is_table = isinstance(row, dict) and sorted(row) == sorted(directions)
        if not is_table or not all(
            isinstance(figures, list) and len(figures) == len(SIZES) for figures in row.values()
        ):
            needed = f"bytes per second at {', '.join(f'{size:,.0f}' for size in SIZES)} bytes"
            raise ValueError(f"{at}: expected encode and decode, each the {needed}, not {row!r}")
        rates[kind] = CodecRates(
            **{
                direction: tuple(_scalar(f"{at}, {direction}", rate, "float", positive=True) for rate in row[direction])
                for direction in directions
            }
        )
    return rates


def _steps(where: str, key: str, value: Any) -> tuple[MeasuredStep, ...]:
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(MeasuredStep)}
    if not isinstance(value, list) or not all(isinstance(step, dict) for step in value):
        raise ValueError(f"{where}, key {key!r}: expected an array of tables, one for each measured step")
    steps = []
    for place, step in enumerate(value, start=1):
        at = f"{where}, key {key!r}, table {place}"
        for name in step:
            if name not in kinds:
                raise ValueError(f"{at}: unknown key {name!r}, {nearest(name, kinds)}")
        _refuse_missing(at, [name for name in kinds if name != "width" and name not in step])
        steps.append(
            MeasuredStep(
                **{
                    name: _scalar(f"{at}, key {name!r}", number, kinds[name], positive=name != "fitted")
                    for name, number in step.items()
                }
            )
        )
    return tuple(steps)


def _scalar(where: str, value: Any, expected: str, *, positive: bool) -> Any:
    """``value`` as a float, int, str or bool; ``positive`` numbers are above 0, others at least 0."""
    if expected == "float" and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value).__name__ != expected:
        raise ValueError(f"{where}: expected {expected}, not {value!r}")
    if expected in ("float", "int") and not ((value > 0 or (value == 0 and not positive)) and value < math.inf):
        raise ValueError(f"{where}: {value!r} is out of range")
    if expected == "str" and not value.strip():
        raise ValueError(f"{where}: it must not be empty")
    return value
