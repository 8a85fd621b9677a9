"""Writes a scenario as a Flower app that runs on real devices: ``fedbr flower export``.

The app is small: its two modules call `edge.flower.device_client` and `scenarios.flower.device_server`, which devices
and server install as ``fedbr-edge[flower]``; the resolved scenario lies beside them. Nothing here imports flwr.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from string import Template

from costmodel.config import FleetConfig
from costmodel.fleet.devices import devices, networks
from edge.protocol.files import write_folder, write_text
from edge.protocol.portable import NATIVE
from scenarios.config.errors import COMMAND_LINE
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.plugin_points import own_rows
from scenarios.config.quantities import scenario_text
from scenarios.config.toml_source import SCENARIO
from scenarios.config.toml_writer import toml_value
from scenarios.config.validation import evaluated

PUBLISHER = "fedbr-edge"
FILES = {
    "client_app.py": '''"""The client side of the scenario beside this file, for one device."""

from edge.flower.device_client import client_app

app = client_app()
''',
    "server_app.py": '''"""The server side of the scenario beside this file."""

from pathlib import Path

from scenarios.flower.device_server import server_app

app = server_app(Path(__file__).with_name("scenario.toml"))
''',
    "pyproject.toml": '''# Flower's description of the app: https://flower.ai/docs
[project]
name = $name
version = "1.0.0"
description = $description
requires-python = ">=3.11,<3.13"
dependencies = [$package]

[tool.flwr.app]
publisher = "$publisher"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# flwr run . --run-config 'visit-seconds=600.0'
[tool.flwr.app.config]
name = $name # of the folder for run folders, in out
out = "runs"
data-root = "" # folder of data sets on the server; "": where fedbr looks by default
device = "cpu" # of the server's evaluations
min-nodes = 0 # that the first round waits for; 0: one for each client that has examples
poll-seconds = 0.1 # between two questions for replies
visit-seconds = 3600.0 # after which a visit is given up, and its client counts as lost in the round
''',
    "README.md": '''# $title

The scenario `scenario.toml` of FedBR Edge as a Flower app: method `$method`, $clients clients, $rounds rounds. A device
is one client; the server waits for all of them, unless `min-nodes` says otherwise.

On the server and on each device:

    pip install '$package'

The server (`--insecure`: without TLS; Flower's documentation has TLS and the authentication of nodes):

    flower-superlink --insecure --disable-runtime-dependency-installation

Device number 0 .. $last, whose data set ($data) lies below `data-root`; leave that out for a set that needs no files,
or that the device may download (`data.download`):

    flower-supernode --insecure --superlink SERVER:8000 \\
        --node-config 'partition-id=0 num-partitions=$clients data-root="/data"'

Further keys of a node: `device` (`"cpu"`, `"cuda:0"`) and `cache`, the folder for decoded data. Then, in this folder,
with the address of the server in `~/.flwr/config.toml`:

    [superlink.devices]
    address = "SERVER:8000"
    insecure = true

    flwr run . devices --stream

The server writes a run folder below `out`, for `fedbr report` and the other commands, with `rounds.csv`: seconds,
bytes and accuracy of each round.
''',
}  # fmt: skip
"""File -> its text"""


def export(loaded: Loaded, folder: Path) -> list[Path]:
    """Write the app of a scenario into a new folder; returns its files.

    ScenarioError for a folder that is there already, and for what devices cannot do; OSError.
    """
    refuse(loaded)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ScenarioError(f"{folder}: exists already; choose another folder", source=COMMAND_LINE)
    scenario, package = loaded.scenario, f"fedbr-edge[flower]=={version('fedbr-edge')}"
    name = re.sub("[^a-zA-Z0-9]+", "-", loaded.name).strip("-") or "app"
    values = {
        "name": toml_value(name),
        "description": toml_value(f"{loaded.name}: {scenario.method} on real devices"),
        "package": toml_value(package),
        "publisher": PUBLISHER,
    }
    words = values | {
        "title": loaded.name,
        "method": scenario.method,
        "clients": str(scenario.data.clients),
        "last": str(scenario.data.clients - 1),
        "rounds": str(scenario.rounds.max),
        "data": scenario.data.name,
        "package": package,
    }

    def fill(new: Path) -> None:
        for file, text in FILES.items():
            given = words if file == "README.md" else values
            write_text(new / file, Template(text).substitute(given) if "$" in text else text)
        write_text(new / SCENARIO, scenario_text(_of_devices(loaded).scenario.model_dump()))

    if folder.exists():
        folder.rmdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_folder(folder, fill)
    return [folder / name for name in (*FILES, SCENARIO)]


def _of_devices(loaded: Loaded) -> Loaded:
    """The scenario without what is this machine's: data's place, the processor, and rows of devices that do not ship.

    The fleet only names the clients' devices in the ledger: what they do is measured.
    """
    scenario, fleet = loaded.scenario, loaded.scenario.fleet
    is_shipped = set(fleet.devices) <= devices().keys() and set(fleet.networks) <= networks().keys()
    named = (fleet.devices, fleet.networks) if is_shipped else (FleetConfig().devices, FleetConfig().networks)
    changes = {
        "data": replace(scenario.data, root=None),
        "train": replace(scenario.train, instructions=NATIVE),
        "fleet": FleetConfig(devices=named[0], networks=named[1], seed=fleet.seed),
    }
    return replace(loaded, scenario=scenario.model_copy(update=changes))


def refuse(loaded: Loaded) -> None:
    """ScenarioError for the first thing that a scenario wants of its clients and real devices do not do."""
    for key, why in _refusals(loaded):
        raise ScenarioError(f"{loaded.name}: {key}: {why}")


def _refusals(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """(key and value, reason)."""
    scenario, method = loaded.scenario, loaded.method
    rounds = scenario.rounds
    if own := own_rows(scenario.model_dump()):
        key, name = own[0]
        yield f"{key} = {name!r}", "modules of your own are not exported; devices install fedbr-edge alone"
    if loaded.dataset.content:
        yield f"data.name = {scenario.data.name!r}", "arrays given in Python are in no folder of a device"
    if scenario.data.partition.file is not None:
        yield "data.partition.file", "a file of this machine, which devices do not have"
    if not method.objective.traffic.contacts_server:
        yield f"method = {method.name!r}", "its clients exchange nothing with a server"
    if rounds.is_asynchronous:
        policies = "choose sync, over_select or deadline"
        yield f"rounds.policy = {rounds.policy!r}", f"the exported server works in rounds; {policies}"
    if rounds.on_late != "stop":
        yield f'rounds.on_late = "{rounds.on_late}"', 'the exported server forgets late visits; choose "stop"'
    if scenario.fleet.tiers.count:
        yield "fleet.tiers", "devices speak with the server directly; leave it out"
    if scenario.aggregate.sum != "client_order":
        yield f'aggregate.sum = "{scenario.aggregate.sum}"', 'devices send their updates; choose "client_order"'
    if scenario.budget != type(scenario.budget)():
        yield "budget", "what devices spend is known when they have; leave it out and limit rounds.max"
    if (on := evaluated(method, scenario)) != "global":
        whose = f"method = {method.name!r}" if scenario.eval.on is None else f'eval.on = "{on}"'
        yield whose, "models of clients stay on the devices, and the global one alone is evaluated (eval.on = global)"
    if scenario.eval.charged:
        yield "eval.charged = true", "the server evaluates, in no measured time"
    if getattr(loaded.options, "broadcast", None) == "everyone":
        yield 'method_options.broadcast = "everyone"', 'only visited clients download; choose "participants"'
