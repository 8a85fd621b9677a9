"""Writes a scenario as a Flower app that runs on real devices: ``fedbr flower export``.

The app is small: its two modules call `edge.flower.device_client` and `scenarios.flower.device_server`, which devices
and server install as ``fedbr-edge[flower]``; the resolved scenario lies beside them, and so do the user's own modules
that it names. Nothing here imports flwr.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from string import Template

from costmodel.config import FleetConfig
from costmodel.fleet.devices import devices, networks
from edge.data.augment import profile_for
from edge.protocol.config import BOARDS
from edge.protocol.files import write_bytes, write_folder, write_text
from edge.protocol.plugins import display_name
from edge.protocol.portable import NATIVE
from edge.training.metrics.registry import metric_row
from scenarios.config.errors import COMMAND_LINE
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import scenario_text
from scenarios.config.toml_source import SCENARIO
from scenarios.config.toml_writer import toml_value
from scenarios.config.validation import evaluated
from scenarios.run import plugin_sources
from scenarios.run.plugin_sources import INSTALLED

PUBLISHER = "fedbr-edge"
MOST_NBYTES = 8 << 20
"""Of modules of a user's own: Flower takes apps of 10 MiB"""
WITH_ALL = """Device number 0 .. $last, whose data set ($data) lies below `data-root`; leave that out for a set that
needs no files, or that the device may download (`data.download`):"""
ON_BOARDS = """Device number 0 .. $last has its own examples alone below `data-root`, where the reader of $data finds
them: all training examples there are this client's, and test examples are not used. The server has test examples below
the `data-root` of its configuration. A device tells it how many examples of each class it has, and nothing else of
them:"""
FILES = {
    "client_app.py": '''"""The client side of the scenario beside this file, for one device."""

$import_path
from edge.flower.device_client import client_app

app = client_app($folder)
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
# No package index has fedbr-edge yet: README.md says how a machine gets it.
dependencies = [$dependencies]

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

The server and each device need `$package`$others. No package index has it yet: its wheel is
made from a checkout of this version, and copied to them.

    pip wheel --no-deps --wheel-dir wheels CHECKOUT
    pip install 'wheels/$wheel[flower]'$install_others

The server (`--insecure`: without TLS; Flower's documentation has TLS and the authentication of nodes):

    flower-superlink --insecure --disable-runtime-dependency-installation

$device

    flower-supernode --insecure --superlink SERVER:8000 \\
        --node-config 'partition-id=0 num-partitions=$clients data-root="/data"'

Further keys of a node: `device` (`"cpu"`, `"cuda:0"`) and `cache`, the folder for decoded data. Then, in this folder,
with the address of the server in `~/.flwr/config.toml`:

    [superlink.devices]
    address = "SERVER:8000"
    insecure = true

    flwr run . devices --stream$run_config

The server writes a run folder below `out`, for `fedbr report` and the other commands, with `rounds.csv`: seconds,
bytes and score of each round.
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
    own, others = own_modules(loaded)
    scenario, number = loaded.scenario, version("fedbr-edge")
    package = f"fedbr-edge[flower]=={number}"
    name = re.sub("[^a-zA-Z0-9]+", "-", loaded.name).strip("-") or "app"
    values = {
        "name": toml_value(name),
        "description": toml_value(f"{loaded.name}: {scenario.method} on real devices"),
        "dependencies": ", ".join(map(toml_value, [package, *others])),
        "publisher": PUBLISHER,
        "import_path": "from pathlib import Path\n" if own else "",
        "folder": "Path(__file__).parent" if own else "",
    }
    words = values | {
        "title": loaded.name,
        "method": scenario.method,
        "clients": str(scenario.data.clients),
        "last": str(scenario.data.clients - 1),
        "rounds": str(scenario.rounds.max),
        "device": Template(ON_BOARDS if scenario.data.partition.kind == BOARDS else WITH_ALL).substitute(
            last=scenario.data.clients - 1, data=display_name(scenario.data.name)
        ),
        "run_config": " --run-config 'data-root=\"/data\"'" if scenario.data.partition.kind == BOARDS else "",
        "package": package,
        "others": "".join(f", `{each}`" for each in others),
        "install_others": "".join(f" '{each}'" for each in others),
        "wheel": f"fedbr_edge-{number}-py3-none-any.whl",
    }

    def fill(new: Path) -> None:
        for file, text in FILES.items():
            given = words if file == "README.md" else values
            filled = Template(text).substitute(given) if "$" in text else text
            write_text(new / file, filled.replace('"""\n\n\nfrom', '"""\n\nfrom'))
        for file, raw in own.items():
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(new / file, raw)
        write_text(new / SCENARIO, scenario_text(_of_devices(loaded).scenario.model_dump()))

    if folder.exists():
        folder.rmdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_folder(folder, fill)
    return [folder / name for name in (*FILES, SCENARIO, *own)]


def own_modules(loaded: Loaded) -> tuple[dict[str, bytes], list[str]]:
    """(path in the app -> text of the user's own modules, packages whole; requirements of those that are installed).

    ScenarioError for modules that cannot travel.
    """
    files: dict[str, bytes] = {}
    installed = set[str]()
    for module, source in plugin_sources.find(plugin_sources.named(loaded)).items():
        if INSTALLED & set(source.file.parts):
            installed.add(module.partition(".")[0])
            continue
        is_package = source.file.stem == "__init__"
        if source.file.suffix != ".py":
            raise ScenarioError(f"{loaded.name}: {source.file}: is no Python source; install its package instead")
        files[f"{module.replace('.', '/')}{'/__init__' if is_package else ''}.py"] = source.content
        if is_package and "." not in module:
            folder = source.file.parent
            files |= {
                f"{module}/{each.relative_to(folder)}": each.read_bytes() for each in sorted(folder.rglob("*.py"))
            }
    taken = {name.removesuffix(".py") for name in FILES if name.endswith(".py")}
    if clash := sorted(taken & {name.partition("/")[0].removesuffix(".py") for name in files}):
        raise ScenarioError(f"{loaded.name}: the module {clash[0]!r} has the name of one of the app's; rename it")
    if sum(map(len, files.values())) > MOST_NBYTES:
        raise ScenarioError(f"{loaded.name}: modules of more than {MOST_NBYTES >> 20} MiB; install them as a package")
    homes = packages_distributions()
    named = {home for top in installed for home in homes.get(top, [])}
    return dict(sorted(files.items())), [f"{home}=={version(home)}" for home in sorted(named)]


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
    if loaded.dataset.content:
        reader = "give a data set with a reader of its own, which the app takes along: data.name = 'module:ROW'"
        yield f"data = {loaded.dataset.name}", f"arrays given in Python are in no folder of a device; {reader}"
    if scenario.data.partition.file is not None:
        own = "choose data.partition.kind = boards if each has its own examples alone, or a partition of your own"
        yield "data.partition.file", f"a file of this machine, which devices do not have; {own}"
    if scenario.data.partition.kind == BOARDS:
        yield from _refusals_on_boards(loaded)
    if not method.objective.traffic.contacts_server:
        yield f"method = {method.name!r}", "its clients exchange nothing with a server"
    if rounds.is_asynchronous:
        policies = "choose sync, over_select or deadline"
        yield f"rounds.policy = {rounds.policy!r}", f"the exported server works in rounds; {policies}"
    if rounds.on_late != "stop":
        yield f'rounds.on_late = "{rounds.on_late}"', 'the exported server forgets late visits; choose "stop"'
    if scenario.fleet.tiers.count:
        yield "fleet.tiers", "devices speak with the server directly; leave it out"
    if scenario.split.after is not None:
        yield f"split.after = {scenario.split.after}", "devices of the app train whole models; leave the cut out"
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


def _refusals_on_boards(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """(key and value, reason) of what needs examples of all clients in one place."""
    scenario, method = loaded.scenario, loaded.method
    if profile_for(loaded.dataset, scenario.data.augment).standardise:
        whose = f"data.augment = {scenario.data.augment!r}"
        yield (
            whose,
            'it needs statistics over all clients; standardise in your reader, and give its row profile="plain"',
        )
    for name in scenario.eval.metrics:
        if metric_row(name).split == "train":
            yield f"eval.metrics = {name!r}", "it measures training examples, which the server has not"
    rules = method.objective.submodels
    if rules is not None and rules.is_static(loaded.options) and scenario.model.norm == "batch":
        yield "model.norm = batch", "its statistics are those of all clients' examples; choose group or none"
