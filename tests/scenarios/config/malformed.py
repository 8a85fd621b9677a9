"""Scenarios for property tests, drawn from the schema's own table of fields: a new key is drawn without a line here.

`fitting` values are of a key's type and within its range, though they may clash with others; `hostile` ones are
anything that TOML can say. Nothing here loads a scenario.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from hypothesis import strategies as st
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from coordinator.aggregation.optimizers import SERVER_OPTIMIZERS
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec
from costmodel import units
from costmodel.fleet.devices import devices, networks
from edge.data.registry import DATASETS
from edge.models.registry import MODELS
from edge.protocol.config import SeriesReading, TextReading
from edge.protocol.losses import LOSSES
from edge.protocol.optimizers import OPTIMIZERS
from scenarios.config import schema
from scenarios.config.toml_writer import toml_text

METHODS: list[ObjectiveSpec | CorrectionSpec] = [*OBJECTIVES.values(), *CORRECTIONS.values()]
NAMES = {
    "method": [*(row.name for row in METHODS), "fedmlb+fedprox", "fedavg+scaffold"],
    "server": list(SERVER_OPTIMIZERS),
    "data.name": list(DATASETS),
    "data.augment": ["default", "none", "plain"],
    "model.name": list(MODELS),
    "model.blocks": ["stages", "balanced:2", "balanced:4"],
    "travels.down": ["everything", "nothing", "last:1", "without:head", "without-last:1"],
    "travels.up": ["everything", "last:2"],
    "fleet.devices": list(devices()),
    "fleet.networks": list(networks()),
    "fleet.carbon.zone": ["DE", "EU", "WORLD"],
    "method_options": [name for row in METHODS for name in row.options.model_fields],
    "train.loss": list(LOSSES),
    "train.optimizer": list(OPTIMIZERS),
    "server_options": [name for row in SERVER_OPTIMIZERS.values() for name in row.options.model_fields],
}
"""What texts name, where that is known; any other text may be any text."""
UNITS = {
    units.nbytes: "MB", units.bits_per_second: "Mbit/s", units.seconds: "min", units.flops: "GFLOP", units.joules: "kJ",
    units.flops_per_second: "GFLOP/s",
}  # fmt: skip
WIDE = 10**6
"""Beyond the bounds of most keys."""


def fitting(key: str) -> st.SearchStrategy[Any]:
    """Values of the key's type within its range; None: the key is left out."""
    field = FIELDS[key]
    return _of(field.annotation, field.metadata, key)


def _of(kind: Any, bounds: list[Any], key: str) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _of(inner[0], [*bounds, *(each for more in inner[1:] for each in _bounds(more))], key)
    if origin in (Union, UnionType):
        return st.one_of(*(_of(each, bounds, key) for each in inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is dict:
        return st.dictionaries(names(key), _of(inner[1], [], key), min_size=1, max_size=3)
    if origin is list:
        return st.lists(_of(inner[0], [], key), min_size=1, max_size=12)
    if origin is tuple:
        return st.lists(_of(inner[0], [], key), min_size=len(inner), max_size=len(inner))
    if kind is str:
        return names(key)
    if kind is bool:
        return st.booleans()
    if kind in (int, float):
        return _numbers(kind, bounds)
    if kind is SeriesReading:
        return st.sampled_from([{"target": "load"}, {"target": "load", "window": 3, "step": "1 h"}, {"window": 2}])
    if kind is TextReading:
        return st.sampled_from([{"length": 8}, {"tokenizer": "bytes", "every": 3}, {"every": 64}, {"template": "x"}])
    if kind is schema.StopTarget:
        return st.sampled_from([{"metric": "accuracy", "above": 0.9}, {"metric": "rmse", "below": 2.0}])
    if kind is Any:
        return st.sampled_from([0, 1, 0.5, False, "random"])
    assert kind is type(None), f"{key}: say here what values of {kind} look like"
    return st.none()


def _bounds(more: Any) -> list[Any]:
    return more.metadata if isinstance(more, FieldInfo) else [more]


def _numbers(kind: type, bounds: list[Any]) -> st.SearchStrategy[Any]:
    low, high, out = -WIDE, WIDE, set()
    for each in bounds:
        if isinstance(each, Ge | Gt):
            low = each.ge if isinstance(each, Ge) else each.gt  # type: ignore[assignment]
            out |= {low} if isinstance(each, Gt) else set()
            high = max(high, 10 * low)
        if isinstance(each, Le | Lt):
            high = each.le if isinstance(each, Le) else each.lt  # type: ignore[assignment]
            out |= {high} if isinstance(each, Lt) else set()
    plain = st.integers(math.ceil(low), int(high)) if kind is int else st.floats(low, high)
    near = st.integers(math.ceil(low), int(min(high, low + 20)))
    numbers = st.one_of(near, plain, st.just(low), st.just(high)).filter(lambda number: number not in out)
    for each in bounds:
        if isinstance(each, BeforeValidator) and each.func in UNIT_OF_NUMBERS:
            return st.one_of(numbers, st.integers(1, 100).map(partial(_quantity, UNIT_OF_NUMBERS[each.func])))
        if isinstance(each, BeforeValidator):
            written = numbers.map(partial(_in_units, each.func))
            return st.one_of(written, st.integers(1, 1000).map(partial(_quantity, UNITS[each.func])))  # type: ignore[index]
    return numbers


UNIT_OF_NUMBERS = {schema.fraction: "%", units.grams_per_kwh: "g/kWh"}
"""The function that reads a number -> a unit that it may have"""


def _in_units(parse: Any, number: float) -> Any:
    return units.exact(number, parse) if number else number


def _quantity(unit: str, number: int) -> str:
    return f"{number} {unit}"


def names(key: str) -> st.SearchStrategy[str]:
    """What a text may name."""
    return st.sampled_from(NAMES[key]) if key in NAMES else st.sampled_from(["", "x", *STRANGE[:4]])


STRANGE = [
    "", " ", "²", "\u202e", "a\nb", "\0", "~nobody-here/x", "../..", "x" * 400, "x" * 20_000, "os:path", ":", "a:b",
]  # fmt: skip
ODD = [
    "5 parsecs", "-1 GB", "1e99 GB", "1e999999999 B", "nan", "inf", "NaN s", "0x10", "1_000", "９", "true", "1e400",
    "99999999999999999999999", "1 gb", "1GB GB", ".", "1.", "1e5", "file", "trace", "ou",
]  # fmt: skip
NUMBERS: list[Any] = [
    0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**12, -(10**30), 10**300, 0.5, -0.0, 0.0, 5e-324, 1e-300, 1e16,
    1e30, 1e31, 1.7e308, -1e308, math.nan, math.inf, -math.inf, True, False,
]  # fmt: skip
DATES = [datetime.date(1979, 5, 27), datetime.time(7, 32), datetime.datetime(1979, 5, 27, 7, 32, tzinfo=datetime.UTC)]
texts = st.one_of(st.sampled_from(STRANGE + ODD), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
scalars = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats(), texts, st.sampled_from(DATES))
hostile = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)


def deep(levels: int) -> list[Any]:
    """Lists in lists."""
    nested: list[Any] = [1]
    for _ in range(levels):
        nested = [nested]
    return nested


def toml(value: Any) -> str:
    """Any value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if type(value) is int:
        return f"0x{value:x}" if value > 2**64 else str(value)  # of thousands of digits, only these can be written
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return toml_text({"x": value}).removeprefix("x = ").strip("\n")


def scenario(settings: Mapping[str, Any], base: str = "digits") -> str:
    """The text of a scenario that says these dotted keys, None left out."""
    said = [f"{key} = {toml(value)}" for key, value in settings.items() if value is not None]
    return "\n".join([f"extends = {toml(base)}", *said]) + "\n"


FIELDS = dict(schema.all_fields())
keys = st.sampled_from(sorted(FIELDS))
fits = st.lists(keys, min_size=1, max_size=6, unique=True).flatmap(
    lambda chosen: st.fixed_dictionaries({key: fitting(key) for key in chosen})
)
"""Key -> fitting value."""
