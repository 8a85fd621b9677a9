"""Finds and reads the files that a scenario's fleet names, into one record (`costmodel.fleet.inputs`).

Files are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from costmodel.fleet import inputs
from costmodel.fleet.inputs import FleetInputs
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
        return inputs.read_rows(device_file, network_file, chain(scenario.fleet.devices, of_tiers), calibrated)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def calibrated(name: str) -> Path | None:
    """The file of a calibrated device of this name (``fedbr doctor --calibrate``), if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None
