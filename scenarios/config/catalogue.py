"""The keys of a scenario, and the options of the rows that it names, each with meaning, type, unit, default and range.

All of it is read from the tables that scenarios are validated with, and from the rows of the plug-in points. Nothing is
loaded or validated here.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from costmodel.fleet.devices import devices, networks
from edge.data.partition_registry import PARTITIONS
from edge.protocol.config import Also, Section
from scenarios.config import toml_source, value_types
from scenarios.config.field_docs import field_docs
from scenarios.config.plugin_points import BY_KEY, BY_OPTIONS
from scenarios.config.quantities import quantity
from scenarios.config.schema import Scenario, fields
from scenarios.config.tables import value_at
from scenarios.config.toml_writer import toml_value

LEADING_NAMES = re.compile(r"([\w-]+(?:(?:, | and )[\w -]+)*): ")
"""Names before the meaning of a key, where these alone use it"""


@dataclass(frozen=True)
class ScenarioKey:
    """One key of a scenario, or one option of one row."""

    key: str
    type: str
    unit: str | None
    """Of a quantity, in which it is kept; None for plain numbers"""
    default: Any
    range: str | None
    meaning: str
    choices: Mapping[str, str] = field(default_factory=dict)
    """Name -> title, for words and names of rows"""
    used_by: tuple[str, ...] = ()
    """``rounds.policy = deadline``: it has an effect with these alone; empty: always"""
    synonyms: tuple[str, ...] = ()
    """Names of other tools"""
    symbol: str | None = None
    """The paper's"""
    annotation: Any = None
    """The type with its bounds, as pydantic reads it"""

    @property
    def default_text(self) -> str:
        """As in a scenario; ``none`` for a key that is left out."""
        if self.default is None:
            return "none"
        unit = quantity(self.annotation)
        if unit is not None and isinstance(self.default, int | float):
            return "inf" if math.isinf(self.default) else f'"{unit.show(self.default)}"'
        return toml_value(self.default)

    def row(self) -> dict[str, Any]:
        """For JSON and lists."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("key", "annotation", "default")}
        return {"name": self.key, **plain, "default": self.default_text}


@dataclass(frozen=True)
class KeyTable:
    """A table of keys."""

    key: str
    meaning: str


@cache
def scenario_keys() -> tuple[ScenarioKey, ...]:
    """All keys, in the order of the schema; tables of options as one."""
    return tuple(_keys(Scenario))


@cache
def key_tables() -> tuple[KeyTable, ...]:
    """All tables with keys of their own."""
    return tuple(_tables(Scenario))


def row_options(key: str) -> list[ScenarioKey]:
    """The options that the rows of a plug-in point have, for its table of options ``key``; one entry per row."""
    point = BY_OPTIONS[key]
    return [
        entry
        for table, name, kind in point.option_types()
        for entry in options_of(kind, table, f"{point.key} = {name}")
    ]


@cache
def all_options() -> tuple[ScenarioKey, ...]:
    """The options of all shipped rows."""
    return tuple(entry for key in BY_OPTIONS for entry in row_options(key))


def options_of(kind: type[BaseModel], at: str, user: str = "") -> Iterator[ScenarioKey]:
    """The options of one row as keys of the table ``at``."""
    docs = field_docs(kind)
    for name, info in kind.model_fields.items():
        entry = _entry(f"{at}.{name}", _annotation(info), info.get_default(call_default_factory=True), docs.get(name))
        yield replace(entry, used_by=(user,) if user else (), symbol=info.title)


def shipped_values(key: str) -> dict[str, Any]:
    """Name of a shipped scenario -> the value that it gives to the key, as written there."""
    found = {name: value_at(_shipped(name), key) for name in toml_source.shipped()}
    return {name: value for name, value in found.items() if value is not None}


@cache
def _shipped(name: str) -> Mapping[str, Any]:
    return toml_source.read(toml_source.find(name), set())


def _keys(table: type, at: str = "") -> Iterator[ScenarioKey]:
    docs, own = field_docs(table), []
    for name, info in fields(table).items():
        inner = _table_of(info)
        if inner is not None:
            own += list(_keys(inner, f"{at}{name}."))
        else:
            default = _default(table, name, info)
            entry = _entry(f"{at}{name}", _annotation(info), default, docs.get(name))
            synonyms = [synonym for mark in info.metadata if isinstance(mark, Also) for synonym in mark.names]
            own.append(replace(entry, synonyms=tuple(synonyms)))
    beside = {entry.key: entry for entry in own if entry.key.rpartition(".")[0] == at.rstrip(".")}
    for entry in own:
        yield replace(entry, used_by=_users(entry, beside)) if entry.key in beside else entry


def _table_of(info: FieldInfo) -> type | None:
    """The table that a field is; None for a key."""
    kind: Any = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _tables(table: type, at: str = "") -> Iterator[KeyTable]:
    for name, info in fields(table).items():
        inner = _table_of(info)
        if inner is not None:
            yield KeyTable(f"{at}{name}", (inspect.getdoc(inner) or "").replace("\n", " "))
            yield from _tables(inner, f"{at}{name}.")


def _default(table: type, name: str, info: FieldInfo) -> Any:
    if issubclass(table, BaseModel):
        return info.get_default(call_default_factory=True)
    return getattr(table(), name)


def _annotation(info: FieldInfo) -> Any:
    """The type of a field with its bounds."""
    marks = tuple(mark for mark in info.metadata if not isinstance(mark, Also))
    return Annotated[(info.annotation, *marks)] if marks else info.annotation


def _entry(key: str, annotation: Any, default: Any, meaning: str | None) -> ScenarioKey:
    unit = quantity(annotation)
    return ScenarioKey(
        key,
        value_types.type_text(annotation),
        None if unit is None else unit.name,
        None if default is PydanticUndefined else default,
        value_types.range_text(annotation),
        meaning or "",
        _choices(key, annotation),
        annotation=annotation,
    )


def _choices(key: str, annotation: Any) -> dict[str, str]:
    if key in BY_KEY:
        return {name: row.title for name, row in BY_KEY[key].shipped.items()}
    if key in ("fleet.devices", "fleet.networks"):
        return dict.fromkeys(devices() if key == "fleet.devices" else networks(), "")
    return dict.fromkeys(map(str, value_types.literals(annotation)), "")


def _users(entry: ScenarioKey, beside: Mapping[str, ScenarioKey]) -> tuple[str, ...]:
    """Who alone uses a key: by the names that its meaning begins with, and partitions by the keys of their rows."""
    table = entry.key.rpartition(".")[0]
    if table == "data.partition":
        name = entry.key.rpartition(".")[2]
        rows = [row for row, each in PARTITIONS.items() if name in each.keys]
        return tuple(f"data.partition.kind = {row}" for row in rows)
    match = LEADING_NAMES.match(entry.meaning)
    named = re.split(", | and ", match[1]) if match else []
    return tuple(
        f"{key} = {name}" for name in named for key, each in beside.items() if key != entry.key and name in each.choices
    )
