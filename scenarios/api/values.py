"""Python values as a scenario's: those that TOML has, so that a scenario is the same from Python and from a file.

Text stays text, even text that looks like a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from scenarios.config.error_messages import FOREIGN
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Source
from scenarios.config.overrides import refuse_repeated
from scenarios.config.plugin_points import WHOLE
from scenarios.config.schema import NONE, takes_none
from scenarios.config.tables import TomlValue, leaves, set_value

Scenario = str | PathLike[str] | Mapping[str, object]
"""The name of a shipped scenario, the path of a TOML file, or the tables of a scenario as a mapping with nested or
dotted keys, among them ``extends``"""
MOST_VALUES = 10_000
"""Values of one key: more are data"""


class _Short(Repr):
    """Values in messages: the shapes of arrays, and the beginning of anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)
        if not isinstance(shape, tuple):
            return super().repr_instance(x, level)
        return f"{type(x).__name__} of shape {tuple(shape)}"


shown = _Short().repr


def overrides(given: Mapping[str, object]) -> dict[str, TomlValue]:
    """Dotted key -> value of a mapping whose keys are dotted, or names of nested mappings.

    A mapping changes the keys that it names, and replaces the tables of `WHOLE`; an empty one empties its table.
    ScenarioError for keys and values that no scenario has, such as None, and for a key that is given twice.
    """
    flat = [(key, plain(key, value)) for key, value in leaves(_text_keys(given), WHOLE, has_empty=True)]
    refuse_repeated(flat)
    return dict(flat)


def _text_keys(tables: Mapping[str, object], at: str = "") -> dict[str, object]:
    """The tables, if all of their keys are text; ScenarioError that names one that is none."""
    for name in tables:
        if not isinstance(name, str) or not name or "=" in name:
            raise ScenarioError(f"{at}{name!r}: a key is text such as train.lr")
    return {
        name: _text_keys(value, f"{at}{name}.") if isinstance(value, Mapping) and f"{at}{name}" not in WHOLE else value
        for name, value in tables.items()
    }


def plain(key: str, value: Any) -> TomlValue:
    """A value as TOML has it: text, numbers, flags, lists and tables; ScenarioError for any other."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PathLike):
        return str(Path(value))
    if isinstance(value, list | tuple | np.ndarray):
        if _count(value) > MOST_VALUES:
            raise ScenarioError(f"{key} = {shown(value)}: {_NO_DATA}")
        return [plain(key, item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): plain(f"{key}.{name}", item) for name, item in value.items()}
    if value is None and takes_none(key):
        return NONE
    if value is None:
        raise ScenarioError(f"{key} = None: has no such value; leave the key out for its default")
    if key in FOREIGN:
        raise ScenarioError(f"{key} = {shown(value)}: ", *FOREIGN[key], key=key)
    if getattr(value, "shape", ()):
        raise ScenarioError(f"{key} = {shown(value)}: {_NO_DATA}")
    kind = type(value).__name__
    raise ScenarioError(f"{key} = {shown(value)}: a {kind} is no value of a scenario; use text or numbers")


_NO_DATA = "a scenario holds no data; a data set of your own is a row that data.name names"


def _count(value: Any) -> float:
    """Values in nested lists; infinite for an array that is no list, and beyond `MOST_VALUES`."""
    if isinstance(value, np.ndarray):
        return value.size if value.ndim < 2 else math.inf
    if not isinstance(value, list | tuple):
        return 1
    total = 0.0
    for item in value:
        total += _count(item)
        if total > MOST_VALUES:
            return math.inf
    return total


def place(name: str, path: str | PathLike[str]) -> Path:
    """An argument that names a file or folder; ScenarioError for one that is no path."""
    if not isinstance(path, str | PathLike) or path == "":
        raise ScenarioError(f"{name} = {shown(path)}: must be a path, such as 'runs'")
    return Path(path)


def listed(name: str, given: Any, example: str) -> list[Any]:
    """The items of an argument that is a list; ScenarioError for one that is none."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ScenarioError(f"{name} = {shown(given)}: must be a list, such as {example}")
    return list(given)


def several(key: str, given: Sequence[Any]) -> list[Any]:
    """The values of a key of a grid; ScenarioError for those that no scenario has."""
    if not isinstance(key, str):
        raise ScenarioError(f"grid: {key!r}: a key is text such as train.lr")
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ScenarioError(f"{key} = {shown(given)}: write a list of values, such as [{shown(given)}]", key=key)
    return [plain(key, value) for value in given]


def named(scenario: Scenario) -> Source:
    """A scenario as `scenarios.config.load` takes it: a name, or tables without dotted keys."""
    if isinstance(scenario, str | PathLike):
        return str(scenario)
    if not isinstance(scenario, Mapping):
        raise ScenarioError(f"scenario = {shown(scenario)}: must be a name, the path of a file, or a mapping")
    tables: dict[str, TomlValue] = {}
    for key, value in overrides(scenario).items():
        try:
            set_value(tables, key, value)
        except ValueError as error:
            raise ScenarioError(str(error), key=key) from None
    return tables
