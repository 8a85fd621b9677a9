"""Reads TOML files, ``extends`` and KEY=VALUE overrides into one nested table, and remembers the source of each key.

Keys have no meaning here. Every ScenarioError names the file or override.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from costmodel.files import parse_toml, read_bytes
from edge.data.locate import is_file
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import WHOLE

FILES = Path(__file__).parent / "files"
COMMAND_LINE = "command line"
LARGEST_NBYTES = 32_000_000
"""The largest file that is read; one that names a device for each of a million clients is smaller."""
LONGEST_CHAIN = 32
"""The largest number of files that extend each other."""
RENAMED = {"fleet.sites": "fleet.gateways"}
"""Old key -> new key; old keys are still read, in scenarios and in run folders."""


def shipped() -> list[str]:
    """Names of the scenarios that ship."""
    return sorted(path.stem for path in FILES.glob("*.toml"))


def find(name: str) -> Path:
    """The file of a scenario."""
    if is_file(FILES / f"{name}.toml"):
        return FILES / f"{name}.toml"
    path = Path(name)
    if is_file(path):
        return path
    if os.path.isdir(path):  # noqa: PTH112 - that of Path raises for a name that the system rejects
        raise ScenarioError(f"{name}: {_folder(path)}")
    if path.suffix == ".toml" or "/" in name:
        raise ScenarioError(f"{name}: no such file")
    raise ScenarioError(f"no scenario {name!r}: {nearest(name, shipped())} (or name a TOML file)")


def _folder(path: Path) -> str:
    """What a folder is in the place of a scenario."""
    if is_file(path / "scenario.toml") and is_file(path / "ledger.sqlite"):
        return f"is a run folder; to go on with its run: fedbr resume {path}"
    return "is a folder; name a scenario or a TOML file"


def read(path: Path, notes: set[str], seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a file, merged into those of the file that it extends.

    ``seen``: the files that extend this one; ``notes`` receives those of `renamed`.
    """
    if path.resolve() in seen:
        raise ScenarioError(f"{path.name}: extends: the files extend each other in a circle")
    if len(seen) == LONGEST_CHAIN:
        raise ScenarioError(f"{path.name}: extends: more than {LONGEST_CHAIN} files extend each other")
    raw = renamed(_tables(path), notes)
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise ScenarioError(f"{path.name}: extends = {base!r}: must be the name of a scenario or a file")
    beside = path.parent / base
    try:
        parent = beside if is_file(beside) else find(base)
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: extends: {error}") from None
    return _merge(read(parent, notes, (*seen, path.resolve())), raw)


def _tables(path: Path) -> dict[str, Any]:
    try:
        raw = read_bytes(path, LARGEST_NBYTES)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    try:
        return parse_toml(raw.decode())
    except ValueError as error:  # also text that is not UTF-8, and an integer of thousands of digits
        raise ScenarioError(f"{path.name}: not valid TOML: {error}") from None


def renamed(raw: Mapping[str, Any], notes: set[str]) -> dict[str, Any]:
    """Tables, or a dotted key, with new names in place of old ones; ``notes`` receives a line for each old name."""
    tables = {_new_name(key, notes): value for key, value in raw.items()}
    for old in RENAMED:
        table, _, _ = old.rpartition(".")
        inner = tables.get(table)
        if isinstance(inner, Mapping):
            old_names = {_new_name(f"{table}.{key}", notes).removeprefix(f"{table}."): key for key in inner}
            if len(old_names) == len(inner):  # else both names are present, and the schema refuses the old one
                tables[table] = {new: inner[key] for new, key in old_names.items()}
    return tables


def _new_name(key: str, notes: set[str]) -> str:
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            notes.add(f"{old} is now called {new}")
            return new + key.removeprefix(old)
    return key


def _merge(base: dict[str, Any], over: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value, f"{at}{key}.") if both and f"{at}{key}" not in WHOLE else value
    return merged


def parse(override: str) -> tuple[str, Any]:
    """Key and value of KEY=VALUE; a value that is not TOML is text."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(
            f"{override!r}: an override reads KEY=VALUE, for example train.lr=0.05; values of a list are separated by "
            "commas without spaces"
        )
    try:
        tables = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; lists in lists without end
        raise ScenarioError(f"{COMMAND_LINE}: {key.strip()}: {error}") from None
    # Text of several lines can parse as a value and further keys, which the override does not name.
    return key.strip(), tables["value"] if len(tables) == 1 else text.strip()


def refuse_repeated(overrides: Iterable[tuple[str, Any]]) -> None:
    """ScenarioError for a key that two of the overrides set, as TOML refuses it; also within tables."""
    given: set[str] = set()
    for key, value in overrides:
        keys = {key, *(leaf for leaf, _ in leaves({key: value}))}
        for repeated in sorted(keys & given):
            raise ScenarioError(f"{COMMAND_LINE}: {repeated}: is given twice; a key has one value")
        given |= keys


def set_key(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in place; the tables that contain it are copied."""
    *tables, last = key.split(".")
    for table in tables:
        inner = raw.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ScenarioError(f"{COMMAND_LINE}: {key}: {table} is a value, not a table")
        raw[table] = inner = dict(inner)
        raw = inner
    raw[last] = value


def leaves(raw: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all values that are not tables."""
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


class ValueOrigin:
    """The file or override that set each key."""

    def __init__(self, default: str, keys: Mapping[str, str]) -> None:
        self.default, self.keys = default, keys

    def of(self, key: str) -> str:
        """The source of a key, or of a table that it was given with."""
        while key not in self.keys and key:
            key = key.rpartition(".")[0]
        return self.keys.get(key, self.default)

    def error(self, key: str, text: str) -> ScenarioError:
        """An error with ``text``, after the name of the source of the key or of its table."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            sources = [source for name, source in self.keys.items() if f"{name}.".startswith(f"{prefix}.")]
            if sources:
                return ScenarioError(f"{COMMAND_LINE if COMMAND_LINE in sources else sources[0]}: {text}")
        return ScenarioError(f"{self.default}: {text}")
