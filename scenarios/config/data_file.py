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
from edge.protocol.config import FileReading
from edge.protocol.home import expanded
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import ARRAYS, DATA_FILE
from scenarios.config.tables import TomlValue, leaves, set_value, value_at

READING = "data.reading"
NAME = "data.name"
_READING = TypeAdapter(FileReading)


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
    if not any(key == DATA_FILE or key.startswith(f"{READING}.") for key in keys):
        return {}
    reading = value_at(beneath, READING)
    reading = dict(reading) if isinstance(reading, Mapping) else {}
    for key, value in keys.items():
        if key.startswith(f"{READING}."):
            set_value(reading, key.removeprefix(f"{READING}."), value)
    try:
        how = _READING.validate_python(reading)
    except ValidationError:  # its keys are refused with all others
        return {}
    if not isinstance(file, str):
        if how != FileReading():
            raise ScenarioError(
                f"{READING}: says how {DATA_FILE} is read, and there is none", key=READING, source=source
            )
        return {}
    if not file.strip():
        raise ScenarioError(f"{DATA_FILE} = {file!r}: names no file", key=DATA_FILE, source=source)
    try:
        name, clients = kept(expanded(file), how, cache_folder())
    except (ValueError, RuntimeError, OSError) as error:
        raise ScenarioError(f"{DATA_FILE}: {error}", key=DATA_FILE, source=source) from None
    own: dict[str, TomlValue] = {NAME: name}
    if clients:
        own |= {"data.partition.kind": "natural", "data.clients": clients}
    return {key: value for key, value in own.items() if key not in keys or key == NAME}


def laid_over(tables: dict[str, TomlValue], beneath: Mapping[str, TomlValue], source: str) -> None:
    """Say in these tables, in place, which data set their ``data.file`` is."""
    for key, value in named(tables, beneath, source).items():
        set_value(tables, key, value)


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
