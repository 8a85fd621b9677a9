"""Nested tables, as TOML has them, by dotted keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, time
from typing import TypeAlias, TypeVar

TomlValue: TypeAlias = "str | float | bool | date | time | Sequence[TomlValue] | Mapping[str, TomlValue] | None"
"""A value of a scenario's tables; None, which TOML does not have, is a key of a resolved scenario that is not set"""
Value = TypeVar("Value")


def leaves(
    tables: Mapping[str, Value], whole: Collection[str] = (), at: str = "", has_empty: bool = False
) -> Iterator[tuple[str, Value]]:
    """(dotted key, value) of all values that are not tables, and of the tables ``whole``, which are values of their
    own; with ``has_empty`` also of empty tables, which empty that of a scenario."""
    for key, value in tables.items():
        if isinstance(value, Mapping) and f"{at}{key}" not in whole and (value or not has_empty):
            yield from leaves(value, whole, f"{at}{key}.", has_empty)
        else:
            yield f"{at}{key}", value


def value_at(tables: TomlValue, key: str) -> TomlValue:
    """The value of a dotted key; None if it is not there."""
    for part in key.split("."):
        tables = tables.get(part) if isinstance(tables, Mapping) else None
    return tables


def set_value(tables: dict[str, TomlValue], key: str, value: TomlValue) -> None:
    """Set a dotted key in place; the tables that contain it are copied. ValueError if one of them is a value."""
    *parts, last = key.split(".")
    for part in parts:
        inner = tables.setdefault(part, {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"{key}: {part} is a value, not a table")
        tables[part] = inner = dict(inner)
        tables = inner
    tables[last] = value
