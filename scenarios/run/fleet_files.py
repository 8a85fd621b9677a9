"""Finds and reads the files that a scenario's fleet names.

Files are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
Nothing here knows what a file says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edge.data.locate import is_file, search_paths
from edge.protocol.home import expanded
from scenarios.config import schema
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError

T = TypeVar("T")


def find(scenario: schema.Scenario, key: str, name: str) -> Path:
    """The path of a file that the scenario names; ScenarioError naming the key if there is none."""
    try:
        as_named = expanded(name)
    except RuntimeError as error:
        raise ScenarioError(f"{key} = {name!r}: {error}") from None
    if is_file(as_named):
        return as_named
    below = dict.fromkeys(place.folder / name for place in search_paths(scenario.data.root, cache_folder()))
    for path in below:
        if is_file(path):
            return path
    raise ScenarioError(f"{key} = {name!r}: no such file; searched {', '.join(map(str, {as_named: '', **below}))}")


def read(scenario: schema.Scenario, key: str, name: str | None, reader: Callable[[Path], T]) -> T | None:
    """The content of a file that the scenario names under ``key``, if it does; ScenarioError that names the key."""
    if name is None:
        return None
    path = find(scenario, key, name)
    return valid(key, lambda: reader(path))


def valid(key: str, result: Callable[[], T]) -> T:
    """The result; ScenarioError that names the key for a ValueError."""
    try:
        return result()
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def needed(table: str, file: str | None) -> str:
    """The file of a table of kind trace; ScenarioError if it names none."""
    if file is None:
        raise ScenarioError(f'{table}.kind = "trace" needs {table}.file')
    return file
