"""Numbers of a scenario: the keys that hold quantities, how these are written with units, and what is refused.

Tables are checked as they were written, before pydantic reads them; the bounds of single keys are the schema's.

A bare 20 for a rate would be 20 bit/s, which nobody means. Zero and infinity need no unit. Run folders hold
resolved scenarios with bare numbers, in SI; those are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeGuard, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from coordinator.rounds.budget import LARGEST_INTEGER
from costmodel import units
from costmodel.units import BINARY_BYTES, BYTES, FLOPS, JOULES, RATES, SECONDS, WATT_HOURS
from edge.protocol.bounds import NOT_IN_LINES
from scenarios.config.plugin_points import BY_STAGE_KEY
from scenarios.config.schema import all_fields
from scenarios.config.tables import TomlValue, leaves
from scenarios.config.toml_source import ValueOrigin
from scenarios.config.toml_writer import toml_text


@dataclass(frozen=True)
class QuantityUnits:
    """A kind of quantity that is written as text with a unit."""

    name: str
    parse: units.Parser
    units: tuple[str, ...]
    """Smallest first"""
    show: Callable[[float], str]
    """A value in the base unit -> text with a unit"""
    usual: str
    """The unit that a small bare number was most likely meant in"""


QUANTITIES: Mapping[Any, QuantityUnits] = {
    kind.parse: kind
    for kind in (
        QuantityUnits("bytes", units.nbytes, (*BYTES, *BINARY_BYTES), units.format_bytes, "MB"),
        QuantityUnits("bit/s", units.bits_per_second, tuple(RATES), units.format_rate, "Mbit/s"),
        QuantityUnits("seconds", units.seconds, tuple(SECONDS), units.format_seconds, "s"),
        QuantityUnits("FLOP", units.flops, tuple(FLOPS), units.format_flops, "GFLOP"),
        QuantityUnits("FLOP/s", units.flops_per_second, tuple(units.FLOP_RATES), units.format_flop_rate, "TFLOP/s"),
        QuantityUnits("joules", units.joules, (*JOULES, *WATT_HOURS), units.format_joules, "J"),
    )
}
"""The function that reads a quantity -> its units"""
LARGEST_MEANT = 10_000
"""A larger bare number was most likely meant in SI."""


def quantity(annotation: Any, metadata: tuple[Any, ...] = ()) -> QuantityUnits | None:
    """The kind of quantity that a type is, however deep in unions and lists; None if it is none."""
    readers = (mark.func for mark in marks_of(annotation, metadata) if isinstance(mark, BeforeValidator))
    return next((QUANTITIES[reader] for reader in readers if reader in QUANTITIES), None)


def marks_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Any]:
    """All that is said of a type and of those within it."""
    for mark in metadata:
        yield mark
        if isinstance(mark, FieldInfo):
            yield from mark.metadata
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from marks_of(inner, tuple(more))
    else:
        for inner in get_args(annotation):
            yield from marks_of(inner, ())


@cache
def quantities() -> Mapping[str, QuantityUnits]:
    """Dotted key -> the quantity that it holds."""
    kinds = ((key, quantity(field.annotation, tuple(field.metadata))) for key, field in all_fields())
    return {key: kind for key, kind in kinds if kind is not None}


def refuse_bare(raw: Mapping[str, TomlValue], origin: ValueOrigin, is_resolved: bool) -> None:
    """ScenarioError for a number without a unit at a key that holds a quantity.

    ``raw``: tables with overrides; without these, numbers of a resolved scenario are in SI.
    """
    for key, value in leaves(raw):
        kind = quantities().get(key)
        if kind is None or (is_resolved and origin.of(key) == origin.default):
            continue
        if bare := [number for number in (value if isinstance(value, list) else [value]) if _is_bare(number)]:
            example = units.exact(bare[0], kind.parse) if bare[0] >= LARGEST_MEANT else f"{bare[0]:g} {kind.usual}"
            raise origin.error(key, f"{key} = {value!r}: needs a unit, for example {example!r}")


def refuse_large(raw: Mapping[str, TomlValue], origin: ValueOrigin) -> None:
    """Refuse numbers beyond every sensible value, before they are used or written."""
    for key, value in leaves(raw):
        for number in _numbers(value):
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                raise origin.error(key, f"{key}: an integer must lie within -2^53 .. 2^53")
            if isinstance(number, float) and units.LARGEST < abs(number) < math.inf:
                kind = quantities().get(key)
                unit = "" if kind is None else units.exact(1, kind.parse).removeprefix("1")
                raise origin.error(key, f"{key} = {number!r}{unit}: is too large")


def refuse_control(raw: Mapping[str, TomlValue], origin: ValueOrigin) -> None:
    """Refuse texts that no reader of a run's folder takes, or that no file can hold."""
    for key, value in leaves(raw):
        for text in (key, *_texts(value)):
            if NOT_IN_LINES.search(text) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise origin.error(key, f"{key} = {text!a}: has control characters, or others that no file holds")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from (str(name), *_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def refuse_flags(raw: Mapping[str, TomlValue], resolved: Mapping[str, TomlValue], origin: ValueOrigin) -> None:
    """Refuse true and false where a number is expected, which pydantic would read as 1 and 0."""
    inner = leaves(resolved, BY_STAGE_KEY)
    flags = {key for key, value in inner if any(isinstance(item, bool) for item in _numbers(value))}
    for key, value in leaves(raw, BY_STAGE_KEY):
        for item in _numbers(value):
            if isinstance(item, bool) and key not in flags:
                raise origin.error(key, f"{key} = {str(item).lower()}: must not be true or false")


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers and flags of a value, including those of nested lists and tables."""
    if isinstance(value, list | tuple | Mapping):
        inner = value.values() if isinstance(value, Mapping) else value
        if set(map(type, inner)) != {str}:  # there may be a million names
            for item in inner:
                yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
"""Pydantic's type of error -> (the limit in its context, the words before it)"""


def beyond_limit(error: ErrorDetails, key: str) -> str | None:
    """What a quantity must be, with its unit, if it is refused for its size; None for other errors and keys."""
    kind = quantities().get(key)
    if kind is None or error["type"] not in LIMITS:
        return None
    name, words = LIMITS[error["type"]]
    return f"must be {words} {units.exact(float(error['ctx'][name]), kind.parse)}"


def _is_bare(value: TomlValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and value != 0 and math.isfinite(value)


def scenario_text(tables: Mapping[str, TomlValue]) -> str:
    """The TOML of a resolved scenario, its quantities with units; `scenarios.config.load` reads the same from it."""
    return toml_text(with_units(tables))


def with_units(table: Mapping[str, TomlValue], at: str = "") -> dict[str, TomlValue]:
    """The tables of a resolved scenario with quantities as text; `scenarios.config.load` reads the same from them."""
    return {
        key: with_units(value, f"{at}{key}.") if isinstance(value, Mapping) else _written(f"{at}{key}", value)
        for key, value in table.items()
    }


def _written(key: str, value: Any) -> Any:
    kind = quantities().get(key)
    if kind is None:
        return value
    if isinstance(value, list | tuple):
        return [_written(key, each) for each in value]
    return units.exact(value, kind.parse) if _is_bare(value) else value
