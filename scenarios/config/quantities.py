"""The keys of a scenario that hold quantities: how their numbers are written with units, and refused without.

A bare 20 for a rate would be 20 bit/s, which nobody means. Zero and infinity need no unit. Run folders of earlier
versions hold resolved scenarios with bare numbers, in SI; those are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from costmodel import units
from scenarios.config.schema import all_fields
from scenarios.config.toml_source import COMMAND_LINE, ValueOrigin, leaves
from scenarios.config.toml_writer import toml_text

Parse = Callable[[units.Quantity], float]
USUAL: Mapping[Parse, str] = {
    units.nbytes: "MB",
    units.bits_per_second: "Mbit/s",
    units.seconds: "s",
    units.flops: "GFLOP",
    units.joules: "J",
}
"""The unit that a small bare number was most likely meant in."""
LARGEST_MEANT = 10_000
"""A larger bare number was most likely meant in SI."""
SCENARIO = "scenario.toml"
RECORDS = ("ledger.sqlite", "checkpoints")
"""Beside the ``scenario.toml`` of a run; the ledger is made later"""


@cache
def quantities() -> Mapping[str, Parse]:
    """Dotted key -> the function of `costmodel.units` that reads its quantities."""
    found = ((key, next(_parsers(field.annotation, field.metadata), None)) for key, field in all_fields())
    return {key: parse for key, parse in found if parse is not None}


def _parsers(kind: Any, metadata: Any = ()) -> Iterator[Parse]:
    """The functions that read quantities in a type, however deep in unions and lists."""
    for mark in metadata:
        if isinstance(mark, BeforeValidator) and mark.func in units.PARSERS:
            yield mark.func  # type: ignore[misc]  # one of the functions of costmodel.units
        elif isinstance(mark, FieldInfo):
            yield from _parsers(None, mark.metadata)
    for inner in get_args(kind):
        yield from _parsers(inner, getattr(inner, "__metadata__", ()))


def refuse_bare(raw: Mapping[str, Any], origin: ValueOrigin, file: Path) -> None:
    """ScenarioError for a number without a unit at a key that holds a quantity.

    ``raw``: the tables of ``file``, with overrides; its own are accepted if a run has written it.
    """
    recorded = is_recorded(file)
    for key, value in leaves(raw):
        parse = quantities().get(key)
        if parse is None or (recorded and origin.of(key) != COMMAND_LINE):
            continue
        if bare := [number for number in (value if isinstance(value, list) else [value]) if _is_bare(number)]:
            example = units.exact(bare[0], parse) if bare[0] >= LARGEST_MEANT else f"{bare[0]:g} {USUAL[parse]}"
            raise origin.error(key, f"{key} = {value!r}: needs a unit, for example {example!r}")


def si_unit(key: str) -> str:
    """The unit of a key's numbers in SI, with a space before it; '' for a key that holds no quantity."""
    parse = quantities().get(key)
    return "" if parse is None else units.exact(1, parse).removeprefix("1")


LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
"""Pydantic's type of error -> (the limit in its context, the words before it)"""


def beyond_limit(error: ErrorDetails, key: str) -> str | None:
    """What a quantity must be, with its unit, if it is refused for its size; None for other errors and keys."""
    parse = quantities().get(key)
    if parse is None or error["type"] not in LIMITS:
        return None
    name, words = LIMITS[error["type"]]
    return f"must be {words} {units.exact(float(error['ctx'][name]), parse)}"


def is_recorded(file: Path) -> bool:
    """Whether a file is the resolved scenario of a run folder."""
    return file.name == SCENARIO and any((file.parent / name).exists() for name in RECORDS)


def _is_bare(value: object) -> bool:
    return isinstance(value, int | float) and value != 0 and math.isfinite(value)


def scenario_text(tables: Mapping[str, Any]) -> str:
    """The TOML of a resolved scenario, its quantities with units; `scenarios.config.load` reads the same from it."""
    return toml_text(with_units(tables))


def with_units(table: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The tables of a resolved scenario with quantities as text; `scenarios.config.load` reads the same from them."""
    return {
        key: with_units(value, f"{at}{key}.") if isinstance(value, Mapping) else _written(f"{at}{key}", value)
        for key, value in table.items()
    }


def _written(key: str, value: Any) -> Any:
    parse = quantities().get(key)
    if parse is None:
        return value
    if isinstance(value, list | tuple):
        return [_written(key, each) for each in value]
    return units.exact(value, parse) if _is_bare(value) else value
