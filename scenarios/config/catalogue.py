"""The keys of a scenario, and the options of the rows that it names, each with meaning, type, unit, default and range.

All of it is read from the tables that scenarios are validated with, and from the rows of the plug-in points. Nothing is
loaded or validated here.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from costmodel.fleet.carbon import zones
from costmodel.fleet.devices import devices, networks
from edge.data.partition_registry import PARTITIONS
from edge.protocol.config import Also
from scenarios.config import toml_source, value_types
from scenarios.config.plugin_points import BY_KEY, BY_OPTIONS, BY_STAGE_KEY
from scenarios.config.quantities import quantity
from scenarios.config.schema import Scenario, fields, is_table
from scenarios.config.tables import TomlValue, value_at
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


@cache
def scenario_keys() -> tuple[ScenarioKey, ...]:
    """All keys, in the order of the schema; tables of options as one."""
    return tuple(_keys(Scenario))


@cache
def key_tables() -> Mapping[str, str]:
    """The meaning of each table with keys of its own."""
    return dict(_tables(Scenario))


def row_options(key: str) -> list[ScenarioKey]:
    """The options that the rows of a plug-in point have, for its table of options ``key``; one entry per row."""
    point = BY_OPTIONS[key]
    return [
        entry
        for table, name, kind in point.option_types()
        for entry in options_of(kind, table, f"{point.name_key} = {name}")
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


def shipped_values(key: str) -> dict[str, TomlValue]:
    """Name of a shipped scenario -> the value that it gives to the key, as written there."""
    found = {name: value_at(_shipped(name), key) for name in toml_source.shipped()}
    return {name: value for name, value in found.items() if value is not None}


@cache
def _shipped(name: str) -> Mapping[str, TomlValue]:
    return toml_source.read(toml_source.find(name))


def _keys(table: type, at: str = "") -> Iterator[ScenarioKey]:
    docs, own = field_docs(table), []
    for name, info in fields(table).items():
        inner: Any = info.annotation
        if is_table(inner):
            own += list(_keys(inner, f"{at}{name}."))
        else:
            is_model = issubclass(table, BaseModel)
            default = info.get_default(call_default_factory=True) if is_model else getattr(table(), name)
            entry = _entry(f"{at}{name}", _annotation(info), default, docs.get(name))
            synonyms = [synonym for mark in info.metadata if isinstance(mark, Also) for synonym in mark.names]
            own.append(replace(entry, synonyms=tuple(synonyms)))
    beside = {entry.key: entry for entry in own if entry.key.rpartition(".")[0] == at.rstrip(".")}
    for entry in own:
        yield replace(entry, used_by=_users(entry, beside)) if entry.key in beside else entry


def _tables(table: type, at: str = "") -> Iterator[tuple[str, str]]:
    for name, info in fields(table).items():
        inner: Any = info.annotation
        if is_table(inner):
            yield f"{at}{name}", (inspect.getdoc(inner) or "").replace("\n", " ")
            yield from _tables(inner, f"{at}{name}.")


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
    point = BY_KEY.get(key) or BY_STAGE_KEY.get(key)
    if point is not None and get_origin(annotation) is not dict:
        return {name: row.title for name, row in point.shipped.items()}
    if key == "fleet.carbon.zone":
        return {code: zone.text for code, zone in zones().items()}
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


def field_docs(kind: type) -> dict[str, str]:
    """Field -> the docstring below it, which Python discards, in the class or in that of its bases which last declares
    it: read from the source. Code is between two backticks there, as documentation generators want it; here single."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__annotations__" in vars(base) and base.__module__.partition(".")[0] != "pydantic":
            docs |= _own_docs(base)
    return docs


@cache
def _own_docs(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ").replace("``", "`")
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
