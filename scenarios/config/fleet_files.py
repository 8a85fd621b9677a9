"""Finds and reads the files that a scenario's fleet names, into one record (`costmodel.fleet.inputs`).

Files are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from costmodel.files import read_bytes
from costmodel.fleet import traces
from costmodel.fleet.csv_table import LARGEST_NBYTES
from costmodel.fleet.devices import Device, Network, devices, own_devices, own_networks
from costmodel.fleet.inputs import FleetInputs, InputFile, read_recordings
from edge.data.locate import is_file, search_paths
from edge.protocol.home import expanded
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.schema import Scenario

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


def read_inputs(scenario: Scenario) -> FleetInputs:
    """The content of all files of the scenario's fleet; ScenarioError that names the key of an unusable one."""
    fleet = scenario.fleet
    user_devices, user_networks = own_rows(scenario)
    files = [_file(key, name, find(scenario, key, name)) for key, name in fleet.file_names.items()]
    for file in [each for each in files if each.key in ("fleet.trace", "fleet.availability.file")]:
        with _errors_of(file.key):
            beside = traces.files_beside(file.path)
        files += [_file(f"{file.key}, {path.name}", path.name, path) for path in beside]
    try:
        recordings = read_recordings(tuple(files), fleet.trace_case, fleet.bandwidth, fleet.availability)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return replace(recordings, devices=user_devices, networks=user_networks)


def _file(key: str, name: str, path: Path) -> InputFile:
    with _errors_of(key):
        return InputFile(key, name, path, hashlib.sha256(read_bytes(path, LARGEST_NBYTES)).hexdigest())


@contextmanager
def _errors_of(key: str) -> Iterator[None]:
    """Turn a ValueError into a ScenarioError that names the key."""
    try:
        yield
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def own_rows(scenario: Scenario) -> tuple[dict[str, Device], dict[str, Network]]:
    """The user's devices and networks: those of files that the scenario names, and calibrated devices."""
    fleet = scenario.fleet
    user_devices: dict[str, Device] = {}
    user_networks: dict[str, Network] = {}
    if fleet.device_file is not None:
        path = find(scenario, "fleet.device_file", fleet.device_file)
        with _errors_of("fleet.device_file"):
            user_devices = own_devices(path)
    if fleet.network_file is not None:
        path = find(scenario, "fleet.network_file", fleet.network_file)
        with _errors_of("fleet.network_file"):
            user_networks = own_networks(path)
    for name in dict.fromkeys(fleet.devices):  # a million names can stand for few devices
        if name in devices() or name in user_devices:
            continue
        file = calibrated(name)
        if file is None:
            break  # an unknown device: the check of names stops here, too
        with _errors_of("fleet.devices"):
            user_devices |= own_devices(file)
    return user_devices, user_networks


def calibrated(name: str) -> Path | None:
    """The file of a calibrated device of this name (``fedbr doctor --calibrate``), if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None
