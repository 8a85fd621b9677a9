"""The files that a scenario names, copied into its run's folder, so that a folder which is moved or packed has them.

    RUN/inputs/KEY/FILE    what a key names, with the files beside it that belong to it

The scenario in the folder keeps the files' own names; whoever reads it there gets the copies (`fleet_files.beside`). So
a run goes on, is repeated and replayed with what it began with, whatever has become of the files. ``environment.json``
has their hashes, by which a copy that was changed is found. Data sets are never copied: they are large, and have
licences.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from costmodel.files import read_bytes
from costmodel.fleet.inputs import InputFile
from edge.protocol.files import write_bytes
from edge.protocol.home import expanded
from scenarios.config import fleet_files
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import INPUTS, KEYS
from scenarios.config.tables import TomlValue, value_at
from scenarios.run.run_records import read_scenario

MOST_NBYTES = 16_000_000
"""Of a file with those beside it; larger ones stay where they are, and runs know them by path and hash"""
LINKED_NBYTES = 1_000_000
"""From this size on, runs in the same folder share one copy"""


def keep(files: Sequence[InputFile], tables: Mapping[str, TomlValue], folder: Path, place: Path) -> None:
    """Copy the files that a run reads into its new folder.

    ``tables``: its scenario, which names them; ``place``: where other runs lie, with which large copies are shared.
    ScenarioError for a file that is another one by now.
    """
    for key, own in _by_key(files).items():
        if _nbytes(own) > MOST_NBYTES:
            continue
        for file in own:
            is_named = file.key == key
            copy = fleet_files.copy_of(folder, key, str(value_at(tables, key)) if is_named else file.path.name)
            try:
                content = read_bytes(file.path, MOST_NBYTES)
            except ValueError as error:
                raise ScenarioError(f"{key}: {error}") from None
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ScenarioError(f"{key}: {file.path} has changed while the run was about to begin; start it again")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not (len(content) >= LINKED_NBYTES and _is_linked(copy, content, folder, place)):
                write_bytes(copy, content)


def _is_linked(copy: Path, content: bytes, folder: Path, place: Path) -> bool:
    """Whether another run in ``place`` has a copy of the same content, which is now this run's, too."""
    for other in place.glob(f"*/{glob.escape(str(copy.relative_to(folder)))}"):
        with suppress(OSError):  # another disk, one without hard links, or a run that is being removed
            if not other.is_symlink() and other.stat().st_size == len(content) and other.read_bytes() == content:
                os.link(other, copy)
                return True
    return False


def notes(files: Sequence[InputFile]) -> Iterator[str]:
    """The files of which a run keeps no copy."""
    for key, own in _by_key(files).items():
        if (nbytes := _nbytes(own)) > MOST_NBYTES:
            yield (
                f"{key}: {own[0].path}: the run keeps no copy of {nbytes / 1e6:.0f} MB (the most is "
                f"{MOST_NBYTES / 1e6:.0f}); leave it where it is"
            )


def _by_key(files: Sequence[InputFile]) -> dict[str, list[InputFile]]:
    """Key -> the file that it names, and those beside it."""
    by_key: dict[str, list[InputFile]] = {}
    for file in files:
        by_key.setdefault(file.key.partition(",")[0], []).append(file)
    return by_key


def _nbytes(files: Sequence[InputFile]) -> int:
    return sum(file.path.stat().st_size for file in files)


def copies(folder: Path) -> list[Path]:
    """The copies in a run folder, as its scenario and the files themselves name them.

    They may be missing, or links: the folder may come from anyone.
    """
    try:
        tables = read_scenario(folder / "scenario.toml")[1]
    except ValueError:  # damaged
        return []
    named = ((key, value_at(tables, key)) for key in KEYS)
    found = [(key, fleet_files.copy_of(folder, key, name)) for key, name in named if isinstance(name, str)]
    paths = []
    for key, copy in found:
        paths.append(copy)
        if copy.is_file() and not _is_behind_link(folder, copy):
            with suppress(ScenarioError):
                paths += fleet_files.with_those_beside(key, str(copy), None)[1:]
    return paths


def remove(folder: Path) -> None:
    """Remove the copies in a run folder, and the folders that this empties."""
    for copy in copies(folder):
        if _is_behind_link(folder, copy.parent):
            continue
        with suppress(OSError):
            copy.unlink()
            copy.parent.rmdir()
    with suppress(OSError):
        (folder / INPUTS).rmdir()


def _is_behind_link(folder: Path, path: Path) -> bool:
    return any(each.is_symlink() for each in (path, *path.parents) if each.is_relative_to(folder / INPUTS))


def change(before: Mapping[str, str], files: Sequence[InputFile]) -> str:
    """The files that differ from those of a run's record (key -> SHA-256), with their keys; empty: none.

    ``files``: as they are now.
    """
    now, differences = {file.key: file for file in files}, []
    for key in sorted({*before, *now}):
        if key not in now:
            differences.append(f"{key} is missing")
        elif key not in before:
            differences.append(f"{key}: {now[key].path} is new")
        elif now[key].sha256 != before[key]:
            differences.append(f"{key}: {now[key].path} has changed since the run began")
    return "; ".join(differences)


def outdated(tables: Mapping[str, TomlValue], before: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Notes on files of a run that have changed, and of which it has copies. ``before``: key -> SHA-256."""
    for key in KEYS:
        name = value_at(tables, key)
        if not isinstance(name, str) or not fleet_files.copy_of(folder, key, name).is_file():
            continue
        with suppress(ScenarioError, RuntimeError):  # unreadable by now, or below a home that there is not
            path = expanded(name)
            if path.is_absolute() and path.is_file() and fleet_files.sha256(key, path) != before.get(key):
                yield f"{key}: {path} has changed since the run began, which goes on with its copy"
