"""Python values as a scenario's: overrides for `scenarios.config.load`, and mappings as scenario files.

Values are those that TOML has, so that a scenario reads the same from Python and from a file: text stays text, even
text that looks like a number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from edge.protocol.files import write_text
from edge.protocol.scratch import scratch
from scenarios.config.error_messages import FOREIGN
from scenarios.config.errors import ScenarioError
from scenarios.config.toml_source import WHOLE, find, refuse_repeated, set_key
from scenarios.config.toml_writer import toml_text, toml_value

Scenario = str | PathLike[str] | Mapping[str, Any]
"""The name of a shipped scenario, the path of a TOML file, or the tables of a scenario as a mapping with nested or
dotted keys, among them ``extends``"""
UNNAMED = "scenario"
"""Name of a scenario that is a mapping and extends none"""
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


def overrides(given: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE for each key, which is dotted or the name of a nested mapping.

    A mapping changes the keys that it names, and replaces the tables of `WHOLE`. ScenarioError for keys and values that
    no scenario has, such as None.
    """
    flat = list(_flat(given))
    refuse_repeated(flat)
    return [f"{key}={toml_value(value)}" for key, value in flat]


def _flat(tables: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value as TOML has it) of all values, and of tables that are replaced as one."""
    for name, value in tables.items():
        if not isinstance(name, str) or not name or "=" in name:
            raise ScenarioError(f"{at}{name!r}: a key is text such as train.lr")
        key = f"{at}{name}"
        if isinstance(value, Mapping) and key not in WHOLE:
            yield from _flat(value, f"{key}.")
        else:
            yield key, plain(key, value)


def plain(key: str, value: Any) -> Any:
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
    if value is None:
        raise ScenarioError(f"{key} = None: no scenario has such a value; leave the key out for its default")
    if key in FOREIGN:
        raise ScenarioError(f"{key} = {shown(value)}: {FOREIGN[key]}")
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


def at_least_1(name: str, number: int) -> int:
    """An argument that counts; ScenarioError for one that is no integer, or below 1."""
    if not isinstance(number, int | np.integer) or number < 1:
        raise ScenarioError(f"{name} = {shown(number)}: must be an integer of at least 1")
    return int(number)


def check_text(**arguments: str | None) -> None:
    """ScenarioError for an argument that is neither text nor left out."""
    for name, value in arguments.items():
        if not isinstance(value, str | None):
            raise ScenarioError(f"{name} = {shown(value)}: must be text")


def listed(name: str, given: Any, example: str) -> list[Any]:
    """The items of an argument that is a list; ScenarioError for one that is none."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ScenarioError(f"{name} = {shown(given)}: must be a list, such as {example}")
    return list(given)


def inlined(key: str, given: Sequence[Any]) -> list[Any]:
    """The values of a key as TOML has them; ScenarioError for those that no scenario has."""
    if not isinstance(key, str):
        raise ScenarioError(f"grid: {key!r}: a key is text such as train.lr")
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ScenarioError(f"{key} = {shown(given)}: write a list of values, such as [{shown(given)}]")
    return [plain(key, value) for value in given]


@contextmanager
def named(scenario: Scenario) -> Iterator[str]:
    """The name by which `scenarios.config.load` finds a scenario, which must be loaded within the context.

    A mapping is written to a temporary file, named after the scenario that it extends. `load` adds its folder to
    ``sys.path``; it does not stay there, as anybody may make a folder of its name in a temporary folder afterwards.
    """
    if isinstance(scenario, str | PathLike):
        yield str(scenario)
        return
    if not isinstance(scenario, Mapping):
        raise ScenarioError(f"scenario = {shown(scenario)}: must be a name, the path of a file, or a mapping")
    tables, name = _nested(scenario), UNNAMED
    if isinstance(tables.get("extends"), str):
        base = find(tables["extends"])
        tables["extends"], name = str(base.resolve()), base.stem  # not relative to the temporary folder
    with scratch() as folder:
        file = folder / f"{name}.toml"
        write_text(file, toml_text(tables))
        try:
            yield str(file)
        finally:
            sys.path[:] = [entry for entry in sys.path if entry != str(folder.resolve())]


def _nested(scenario: Mapping[str, Any]) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for key, value in _flat(scenario):
        set_key(tables, key, value)
    return tables
