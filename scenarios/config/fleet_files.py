"""Finds and reads the files that a scenario's fleet names.

Files are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
Of what they say, only the rows of the user's own devices and networks are known here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from costmodel.fleet.devices import Device, Network, devices, own_devices, own_networks
from edge.data.locate import is_file, search_paths
from edge.protocol.home import expanded
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.schema import Scenario

T = TypeVar("T")
CALIBRATED = "devices"
"""Folder of the user cache for the profiles of ``fedbr doctor --calibrate``."""


def find(scenario: Scenario, key: str, name: str) -> Path:
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


def read(scenario: Scenario, key: str, name: str | None, reader: Callable[[Path], T]) -> T | None:
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


def own_rows(scenario: Scenario) -> tuple[dict[str, Device], dict[str, Network]]:
    """The user's devices and networks: those of files that the scenario names, and calibrated devices."""
    section = scenario.fleet
    user_devices = read(scenario, "fleet.device_file", section.device_file, own_devices) or {}
    user_networks = read(scenario, "fleet.network_file", section.network_file, own_networks) or {}
    for name in dict.fromkeys(section.devices):  # a million names can stand for few devices
        if name in devices() or name in user_devices:
            continue
        path = calibrated(name)
        if path is None:
            break  # an unknown device: the check of names stops here, too
        user_devices |= read(scenario, "fleet.devices", str(path), own_devices) or {}
    return user_devices, user_networks


def calibrated(name: str) -> Path | None:
    """The file of a calibrated device of this name (``fedbr doctor --calibrate``), if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None
