"""The JSON Schema of scenario files (draft 2020-12), for editors: keys, meanings, choices, ranges and units.

It is made from `scenarios.config.catalogue`. It admits all that `scenarios.config.load` does in one key; which keys go
together is checked there alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from costmodel.units import GRAMS_PER_KWH, grams_per_kwh
from scenarios.config import catalogue, toml_source
from scenarios.config.catalogue import ScenarioKey
from scenarios.config.plugin_points import BY_KEY, BY_OPTIONS, BY_STAGE_KEY
from scenarios.config.quantities import QUANTITIES
from scenarios.config.schema import fraction

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,2})?"
Schema = TypedDict(
    "Schema",
    {
        "$schema": str,
        "$defs": "dict[str, Schema]",
        "$ref": str,
        "title": str,
        "description": str,
        "type": str,
        "properties": "dict[str, Schema]",
        "additionalProperties": "bool | Schema",
        "required": list[str],
        "items": "Schema",
        "maxItems": int,
        "anyOf": "list[Schema]",
        "enum": list[str],
        "const": "str | int",
        "pattern": str,
        "exclusiveMinimum": float,
        "default": object,
    },
    total=False,
)
"""The keywords that are written here; pydantic gives further ones for single values"""
WITH_UNITS: Mapping[Any, Iterable[str]] = {fraction: "%", grams_per_kwh: GRAMS_PER_KWH}
"""The function that reads a number, which needs no unit -> the units that a text may have"""
OWN_NAMES: Schema = {"type": "string", "pattern": "[:+]"}
"""``module:ROW``, and methods joined by ``+``"""
STAGE: Schema = {"$ref": "#/$defs/stage"}
CHAIN: Schema = {"$ref": "#/$defs/chain"}


def scenario_schema() -> Schema:
    """The schema of a whole file."""
    root = _table("A scenario of fedbr")
    root = {"$schema": DRAFT, "title": "fedbr scenario", **root}
    root["$defs"] = {"stage": _stage(), "chain": {"anyOf": [STAGE, {"type": "array", "items": STAGE, "maxItems": 3}]}}
    root["properties"]["extends"] = {
        "description": "A shipped scenario or a file whose keys this one takes over, but for those that it sets.",
        "anyOf": [{"enum": toml_source.shipped()}, {"type": "string"}],
    }
    for key, meaning in catalogue.key_tables().items():
        _place(root, key, _table(meaning))
    for entry in catalogue.scenario_keys():
        values = _values(entry)
        if entry.key in BY_STAGE_KEY:
            is_table = values.get("type") == "object"
            values = {"type": "object", "additionalProperties": CHAIN} if is_table else CHAIN
            _place(root, entry.key, _described(entry, values))
            continue
        if entry.key in BY_KEY:
            names: Schema = {"anyOf": [{"enum": list(entry.choices)}, OWN_NAMES]}
            values = {"type": "array", "items": names} if values.get("type") == "array" else names
        _place(root, entry.key, _options(entry) if entry.key in BY_OPTIONS else _described(entry, values))
    return root


def _table(meaning: str) -> Schema:
    return {"description": meaning, "type": "object", "properties": {}, "additionalProperties": False}


def _place(root: Schema, key: str, schema: Schema) -> None:
    *tables, last = key.split(".")
    for table in tables:
        root = root["properties"][table]
    root["properties"][last] = schema


def _stage() -> Schema:
    """A stage of a codec: of a shipped kind with its options, or of a user's own with any."""
    own: Schema = {"type": "object", "properties": {"kind": OWN_NAMES}, "required": ["kind"]}
    kinds: list[Schema] = []
    for name, row in BY_KEY["codec.up"].shipped.items():
        table = _table(row.title)
        table["properties"]["kind"] = {"const": name}
        for option in catalogue.options_of(row.options, "codec.up"):
            table["properties"][option.key.rpartition(".")[2]] = _described(option, _values(option))
        kinds.append({**table, "required": ["kind"]})
    return {"anyOf": [*kinds, own]}


def _described(entry: ScenarioKey, values: Schema) -> Schema:
    meaning = entry.meaning.replace("``", "`")
    notes = [f"Used with {', '.join(entry.used_by)}."] if entry.used_by else []
    notes += [] if entry.default is None else [f"Default: {entry.default_text}."]
    described: Schema = {"description": " ".join([meaning, *notes]), **values}
    default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
    if isinstance(default, str | bool | int | list | dict) or (isinstance(default, float) and math.isfinite(default)):
        described["default"] = default
    return described


def _options(entry: ScenarioKey) -> Schema:
    """A table whose keys are the options of all shipped rows; those of a user's own rows are admitted, too."""
    table = _described(entry, {"type": "object", "properties": {}, "additionalProperties": True})
    at = len(entry.key) + 1
    by_name: dict[str, list[ScenarioKey]] = {}
    for option in catalogue.row_options(entry.key):
        by_name.setdefault(option.key[at:], []).append(option)
    for name, owners in by_name.items():
        row, _, inner = name.rpartition(".")  # the options of metrics stand in a table per metric
        properties = table["properties"]
        if row:
            properties = properties.setdefault(row, _table(f"Options of {row}."))["properties"]
        schemas = [_described(each, _values(each)) for each in owners]
        meaning = " | ".join(each["description"] for each in schemas)
        properties[inner] = schemas[0] if len(schemas) == 1 else {"description": meaning, "anyOf": schemas}
    return table


class _Values(GenerateJsonSchema):
    """Values as TOML has them: quantities as text with a unit, and no null."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """A quantity is text with a unit, zero or inf (`scenarios.config.quantities`); other numbers may have one."""
        read = schema["function"]["function"]
        if read in WITH_UNITS:
            pattern = rf"^\s*{NUMBER}\s*({'|'.join(WITH_UNITS[read])})\s*$"
            return {"anyOf": [self.generate_inner(schema["schema"]), {"type": "string", "pattern": pattern}]}
        unit = QUANTITIES.get(read)
        if unit is None:
            return self.generate_inner(schema["schema"])
        pattern = rf"^\s*({NUMBER}|inf)\s*({'|'.join(unit.units)})\s*$"
        infinity = {"type": "number", "exclusiveMinimum": sys.float_info.max}
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"const": 0}, infinity]}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """A key without a value is left out of a file."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Defaults are those of the catalogue."""
        return self.generate_inner(schema["schema"])


BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic leaves bounds under their own names beside alternatives"""


def _values(entry: ScenarioKey) -> Schema:
    """The schema of a key's values."""
    schema: Schema = _bounded(TypeAdapter(entry.annotation).json_schema(schema_generator=_Values))
    return schema


def _bounded(schema: Any) -> Any:
    """``schema`` with the bounds of quantities where they hold: at the alternative that is a number."""
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {name: schema[mark] for mark, name in BOUNDS.items() if mark in schema}
    plain = {key: _bounded(value) for key, value in schema.items() if key not in BOUNDS}
    for each in plain.get("anyOf", ()) if bounds else ():
        if each.get("type") in ("number", "integer"):
            each.update(bounds)
    return plain
