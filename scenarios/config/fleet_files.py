"""Finds the files that a scenario names, and reads those of its fleet into one record (`costmodel.fleet.inputs`).

Files of a fleet are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user
cache). A name in a scenario file is also searched beside that file. Run folders have names that hold wherever a command
is called, and copies of the files (`scenarios.run.input_files`), which come first; they know files by their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from costmodel.config import FILE_KEYS
from costmodel.files import read_bytes
from costmodel.fleet import inputs, traces
from costmodel.fleet.csv_table import LARGEST_NBYTES
from costmodel.fleet.inputs import FleetInputs, InputFile
from edge.data.json_partition import MOST_NBYTES as LARGEST_PARTITION_NBYTES
from edge.data.locate import SearchPath, is_file, search_paths
from edge.protocol.home import abbreviated, expanded
from scenarios.config.cache import cache_folder
from scenarios.config.counted_steps import step_flops
from scenarios.config.errors import ScenarioError
from scenarios.config.schema import Scenario
from scenarios.config.tables import TomlValue, set_value, value_at

CALIBRATED = "devices"
"""Folder of the user cache for the profiles of ``fedbr check --calibrate``."""


PARTITION = "data.partition.file"
DATA_FILE = "data.file"
"""A data set: a file, or a folder"""
KEYS = (*(f"fleet.{key}" for key in FILE_KEYS), PARTITION)
"""Keys that name files"""
ARRAYS = "arrays"
"""The folder of a run with the examples of a file, or of arrays that were given in Python (`edge.data.content`)"""
INPUTS = "inputs"
"""The folder of a run, or of its archive, with copies of the files that its scenario names: ``inputs/KEY/FILE``"""


def beside(tables: dict[str, TomlValue], folder: Path, is_recorded: bool = False) -> None:
    """Name the files that lie in a folder by their whole paths, in place, as of `placed`; ``is_recorded``: in that of a
    run, whose copies and files come first."""
    for key in (*KEYS, DATA_FILE):
        name = value_at(tables, key)
        if isinstance(name, str) and is_recorded and is_file(copy := copy_of(folder, key, name)):
            set_value(tables, key, str(copy.absolute()))
        elif name is not None:
            set_value(tables, key, placed(key, name, folder, is_recorded))


def copy_of(folder: Path, key: str, name: str) -> Path:
    """The place in a run folder for a copy of the file that a key names."""
    return folder / INPUTS / key / Path(name).name


def placed(key: str, name: Any, folder: Path, is_first: bool = False) -> Any:
    """The whole path of a file that a key names, if it lies in the folder and the name leads nowhere from the current
    folder, or the folder comes first; any other value as it is."""
    is_there = _exists if key == DATA_FILE else is_file
    if key not in (*KEYS, DATA_FILE) or not isinstance(name, str) or not is_there(folder / name):
        return name
    path = folder / name
    return str(path.parent.resolve() / path.name) if is_first or not is_there(Path(name)) else name


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder; False for a name that the system rejects."""
    try:
        return path.exists()
    except OSError:
        return False


def absolute(scenario: Scenario, place: Path | None = None) -> dict[str, TomlValue]:
    """The scenario's tables with whole paths of files that are named from the current folder.

    For a run in a folder in ``place``, those in ``place`` have names from the run's folder on, which hold when both are
    moved.
    """
    tables = scenario.model_dump()
    for key in (*KEYS, DATA_FILE):
        name = value_at(tables, key)
        is_there = _exists if key == DATA_FILE else is_file
        if isinstance(name, str) and is_there(path := expanded(name)):
            within = path.parent.resolve()  # a link keeps its name, by which others lie beside it
            is_near = place is not None and within == place.resolve()
            set_value(tables, key, f"../{path.name}" if is_near else abbreviated(str(within / path.name)))
    return tables


def named_files(scenario: Scenario, files: FleetInputs) -> tuple[InputFile, ...]:
    """Each file that the scenario names, and those beside them; ``files``: those of its fleet.

    ScenarioError for a partition that is too large.
    """
    name = scenario.data.partition.file
    if name is None or not is_file(path := expanded(name)):
        return files.files
    return (*files.files, InputFile(PARTITION, name, path, sha256(PARTITION, path)))


def sha256(key: str, path: Path) -> str:
    """The SHA-256 of a file that a key names; ScenarioError for one that is too large."""
    try:
        most = LARGEST_PARTITION_NBYTES if key == PARTITION else LARGEST_NBYTES
        return hashlib.sha256(read_bytes(path, most)).hexdigest()
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def with_those_beside(key: str, name: str, root: str | None) -> list[Path]:
    """The file that a key names, and those beside it that belong to it; ScenarioError if it is not there."""
    if key == PARTITION:
        return [_found(key, name, [])]
    path = _found(key, name, search_paths(root, cache_folder()))
    try:
        return [path, *(traces.files_beside(path) if key in inputs.WITH_FILES_BESIDE else ())]
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def find(scenario: Scenario, key: str, name: str) -> Path:
    """The path of a file that the scenario names; ScenarioError naming the key if there is none."""
    return _found(key, name, search_paths(scenario.data.root, cache_folder()))


def _found(key: str, name: str, places: Sequence[SearchPath]) -> Path:
    try:
        as_named = expanded(name)
    except RuntimeError as error:
        raise ScenarioError(f"{key} = {name!r}: {error}") from None
    if is_file(as_named):
        return as_named
    below = dict.fromkeys(place.folder / name for place in places)
    for path in below:
        if is_file(path):
            return path
    raise ScenarioError(f"{key} = {name!r}: no such file; searched {', '.join(map(str, {as_named: '', **below}))}")


def read_inputs(scenario: Scenario) -> FleetInputs:
    """The content of all files of the scenario's fleet; ScenarioError that names the key of an unusable one."""
    rows = own_rows(scenario)
    paths = {key: find(scenario, key, name) for key, name in scenario.fleet.file_names.items()}
    try:
        return inputs.read_inputs(paths, scenario.fleet, rows)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def own_rows(scenario: Scenario) -> inputs.Rows:
    """The user's devices and networks: those of files that the scenario names, and calibrated devices."""
    names, tiers = scenario.fleet.file_names, scenario.fleet.tiers
    of_tiers = chain(tiers.devices, tiers.above.devices) if tiers.count else ()
    device_file, network_file = (
        find(scenario, key, names[key]) if key in names else None for key in ("fleet.device_file", "fleet.network_file")
    )
    try:
        names_of_devices = chain(scenario.fleet.devices, of_tiers)
        return inputs.read_rows(device_file, network_file, names_of_devices, calibrated, step_flops)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def calibrated(name: str) -> Path | None:
    """The file of a calibrated device of this name (``fedbr check --calibrate``), if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None
