"""Reads TOML files and those that they extend into one nested table, and remembers the source of each key.

Keys have no meaning here, but for those that name files beside a file. Every ScenarioError names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from costmodel.files import parse_toml, read_bytes
from edge.data.locate import is_file
from edge.protocol.spelling import nearest
from scenarios.config import data_file, fleet_files, model_weights
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.plugin_points import WHOLE
from scenarios.config.tables import TomlValue, leaves, set_value

FILES = Path(__file__).parent / "files"
LARGEST_NBYTES = 32_000_000
"""The largest file that is read; one that names a device for each of a million clients is smaller."""
LONGEST_CHAIN = 32
"""The largest number of files that extend each other."""
SCENARIO = "scenario.toml"
RECORDS = ("ledger.sqlite", "checkpoints")
"""Beside the ``scenario.toml`` of a run; the ledger is made later"""
UNNAMED = "scenario"
"""Name of tables that are no file's and extend none"""


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


def is_recorded(file: Path) -> bool:
    """Whether a file is the resolved scenario of a run folder."""
    return file.name == SCENARIO and any((file.parent / name).exists() for name in RECORDS)


def read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, TomlValue]:
    """The tables of a file, merged into those of the file that it extends; ``seen``: the files that extend this one."""
    if path.resolve() in seen:
        raise ScenarioError(f"{path.name}: extends: the files extend each other in a circle")
    if len(seen) == LONGEST_CHAIN:
        raise ScenarioError(f"{path.name}: extends: more than {LONGEST_CHAIN} files extend each other")
    try:
        content = read_bytes(path, LARGEST_NBYTES)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    try:
        raw = parse_toml(content.decode())
    except ValueError as error:  # also text that is not UTF-8, and an integer of thousands of digits
        raise ScenarioError(f"{path.name}: not valid TOML: {error}") from None
    fleet_files.beside(raw, path.parent, is_recorded=is_recorded(path))
    base = raw.pop("extends", None)
    beneath: dict[str, TomlValue] = {}
    if base is not None:
        if not isinstance(base, str):
            raise ScenarioError(f"{path.name}: extends = {base!r}: must be the name of a scenario or a file")
        beside = path.parent / base
        try:
            parent = beside if is_file(beside) else find(base)
        except ScenarioError as error:
            raise ScenarioError(f"{path.name}: extends: {error}") from None
        beneath = read(parent, (*seen, path.resolve()))
    if is_recorded(path):  # it says which data the run had, and may have them
        data_file.restored(raw, path.parent)
    else:
        _lay_over(raw, beneath, path.name)
    return merged(beneath, raw)


def _lay_over(tables: dict[str, TomlValue], beneath: Mapping[str, TomlValue], source: str) -> None:
    """Say in these tables, in place, what the data and weights that they name are."""
    for key, value in named_files(tables, beneath, source).items():
        set_value(tables, key, value)


def named_files(given: Mapping[str, TomlValue], beneath: Mapping[str, TomlValue], source: str) -> dict[str, TomlValue]:
    """Dotted key -> value of what ``data.file`` and ``model.weights`` of these tables say (`data_file.named`)."""
    return data_file.named(given, beneath, source) | model_weights.named(given, beneath, source)


def extended(tables: Mapping[str, TomlValue]) -> tuple[str, dict[str, TomlValue]]:
    """(name, tables) of tables that are no file's, merged into those of the file that they extend, which names them."""
    raw = dict(tables)
    base = raw.pop("extends", None)
    if base is None:
        _lay_over(raw, {}, UNNAMED)
        return UNNAMED, raw
    if not isinstance(base, str):
        raise ScenarioError(f"extends = {base!r}: must be the name of a scenario or a file", key="extends")
    path = find(base)
    beneath = read(path)
    _lay_over(raw, beneath, UNNAMED)
    return path.stem, merged(beneath, raw)


def merged(base: Mapping[str, TomlValue], over: Mapping[str, TomlValue], at: str = "") -> dict[str, TomlValue]:
    """The tables ``base`` with the values of ``over`` in place of theirs."""
    tables = dict(base)
    for key, value in over.items():
        before = tables.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and f"{at}{key}" not in WHOLE:
            tables[key] = merged(before, value, f"{at}{key}.")
        else:
            tables[key] = value
    return tables


class ValueOrigin:
    """The source of each key of a scenario: its file, or that of an override."""

    def __init__(self, default: str, tables: Mapping[str, TomlValue]) -> None:
        self.default = default
        self._keys = {key: default for key, _ in leaves(tables)}

    def give(self, key: str, source: str) -> None:
        """Note that a source has set a key, with all that is below it."""
        self._keys = {before: named for before, named in self._keys.items() if not before.startswith(f"{key}.")}
        self._keys[key] = source

    def of(self, key: str) -> str:
        """The source of a key, or of a table that it was given with."""
        while key not in self._keys and key:
            key = key.rpartition(".")[0]
        return self._keys.get(key, self.default)

    def error(self, key: str, *parts: str | Argument, choices: Iterable[str] = ()) -> ScenarioError:
        """An error in a key or its table, of these parts; its source is an override, if one has set some of that."""
        table, sources = key, list[str]()
        while table and not sources:
            sources = [source for given, source in self._keys.items() if f"{given}.".startswith(f"{table}.")]
            table = table.rpartition(".")[0]
        overriding = (source for source in sources if source != self.default)
        return ScenarioError(*parts, key=key, choices=choices, source=next(overriding, self.default))
