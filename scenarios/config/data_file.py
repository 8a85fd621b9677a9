"""``data.file``: a user's own data set, read into the cache when the scenario that names it is, and then found there.

From then on it is like arrays that were given in Python: ``data.name`` says their content, and its clients, if it names
any, are those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edge.data.content import restore_content
from edge.data.own_files import kept
from edge.data.registry import DataError, dataset, is_arrays
from edge.protocol.config import FileReading, SeriesReading, TextReading
from edge.protocol.home import expanded
from edge.protocol.losses import NEXT_TOKEN
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import ARRAYS, DATA_FILE
from scenarios.config.tables import TomlValue, leaves, set_value, value_at

READING = "data.reading"
SERIES = "data.series"
TEXT = "data.text"
NAME = "data.name"
_READING, _SERIES, _TEXT = TypeAdapter(FileReading), TypeAdapter(SeriesReading), TypeAdapter(TextReading)


def named(given: Mapping[str, TomlValue], beneath: Mapping[str, TomlValue], source: str) -> dict[str, TomlValue]:
    """Dotted key -> value of what ``given`` says of data by its ``data.file``; empty if it says nothing of one.

    ``given``: the tables of one file, or the overrides of a scenario; ``beneath``: what they are laid over, whose file
    or reading they may complete. Keys that ``given`` has itself are left to it. ScenarioError that names ``source``.
    """
    keys = dict(leaves(given))
    file = keys.get(DATA_FILE, value_at(beneath, DATA_FILE))
    name = keys.get(NAME)
    if isinstance(file, str) and isinstance(name, str) and not is_arrays(name):
        raise ScenarioError(
            f"{NAME} = {name!r}: {DATA_FILE} = {file!r} is the data set; leave one out", key=NAME, source=source
        )
    if not any(key == DATA_FILE or key.startswith((f"{READING}.", f"{SERIES}.", f"{TEXT}.")) for key in keys):
        return {}
    reading, windows, pieces = (_laid_over(keys, beneath, table) for table in (READING, SERIES, TEXT))
    try:
        how = _READING.validate_python(reading)
        series = _SERIES.validate_python(windows) if windows else None
        text = _TEXT.validate_python(pieces) if pieces else None
    except ValidationError:  # its keys are refused with all others
        return {}
    given_tables = ((READING, how != FileReading()), (SERIES, series is not None), (TEXT, text is not None))
    for table, is_given in given_tables:
        if is_given and not isinstance(file, str):
            raise ScenarioError(f"{table}: says how {DATA_FILE} is read, and there is none", key=table, source=source)
    if not isinstance(file, str):
        return {}
    said = [table for table, is_given in given_tables if is_given]
    if len(said) > 1:
        why = f"{said[0]}: {said[1]} says how {DATA_FILE} is read; leave one of them out"
        raise ScenarioError(why, key=said[0], source=source)
    if not file.strip():
        raise ScenarioError(f"{DATA_FILE} = {file!r}: names no file", key=DATA_FILE, source=source)
    try:
        name, clients = kept(expanded(file), how, cache_folder(), series or text)
    except (ValueError, RuntimeError, OSError) as error:
        raise ScenarioError(f"{DATA_FILE}: {error}", key=DATA_FILE, source=source) from None
    own: dict[str, TomlValue] = {NAME: name}
    if series is not None:
        own["data.augment"] = "standardise-client"
    if text is not None:
        own["train.loss"] = NEXT_TOKEN
    if clients:
        own |= {"data.partition.kind": "natural", "data.clients": clients}
    return {key: value for key, value in own.items() if key not in keys or key == NAME}


def _laid_over(keys: Mapping[str, TomlValue], beneath: Mapping[str, TomlValue], table: str) -> dict[str, TomlValue]:
    """What a table says, of what lies beneath and of the keys that are laid over it."""
    found = value_at(beneath, table)
    said = dict(found) if isinstance(found, Mapping) else {}
    for key, value in keys.items():
        if key.startswith(f"{table}."):
            set_value(said, key.removeprefix(f"{table}."), value)
    return said


def restored(tables: Mapping[str, TomlValue], folder: Path) -> None:
    """Have the examples that a run folder, or an archive of it, keeps of its data in the cache; ScenarioError for
    others than those."""
    name = value_at(tables, NAME)
    if not isinstance(name, str) or not is_arrays(name) or not (folder / ARRAYS).is_dir():
        return
    try:
        restore_content(dataset(name).content, cache_folder(), folder / ARRAYS)
    except (DataError, OSError) as error:
        raise ScenarioError(str(error)) from None
