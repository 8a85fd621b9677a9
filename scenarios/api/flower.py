"""The functions of ``fedbr.flower``: apps of Flower on a fleet, and scenarios as apps of Flower."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from edge.protocol.files import write_text
from edge.protocol.plugins import FLOWER_APP
from scenarios.api import values
from scenarios.api.calling import Call, Folder, calling, made, takes
from scenarios.api.keys import Keys, KeysButFleet
from scenarios.api.objects import as_names, with_names
from scenarios.api.requests import RunRequest
from scenarios.api.run import Run
from scenarios.config.cache import cache_folder
from scenarios.config.errors import COMMAND_LINE, PYTHON, Argument, ScenarioError
from scenarios.config.load import Loaded, Source, load
from scenarios.config.overrides import KeyValues
from scenarios.config.tables import TomlValue
from scenarios.run.app_folder import PROJECT, content, flat

WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
"""Of a text of values; those in quotes may have spaces"""
APPS = "flower-apps"
"""Of the cache: folders for apps that were given as objects"""
STUB = """import sys
sys.path.insert(0, {root!r})
from {module} import {name} as app
"""
PROJECT_TEXT = """[project]
name = {name}
version = "1"
[tool.flwr.app]
publisher = "local"
[tool.flwr.app.components]
serverapp = "given_server_app:app"
clientapp = "given_client_app:app"
[tool.flwr.app.config]
{config}
"""


def of_app(
    app: Folder,
    fleet: Source,
    run_config: str | Mapping[str, TomlValue],
    given: Mapping[str, TomlValue],
    origin: str = COMMAND_LINE,
) -> Loaded:
    """The scenario of an app on the fleet of another scenario. ScenarioError for a ``run_config`` that is none."""
    config = _parsed(run_config) if isinstance(run_config, str) else dict(run_config)
    own: KeyValues = {"method": f"{FLOWER_APP}{Path(app)}", "method_options": {}}  # none of the scenario's method
    return load(fleet, {**own, **({"method_options.run_config": config} if config else {}), **given}, origin=origin)


def _parsed(text: str) -> dict[str, TomlValue]:
    """``a=1 b="x"`` as ``flwr run`` reads it: TOML, word by word; a word that is no value of TOML is text."""
    config: dict[str, TomlValue] = {}
    for word in WORD.findall(text):
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ScenarioError(Argument("run_config", repr(text)), f": {word!r} is no KEY=VALUE")
        try:
            config[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            config[key] = value
    return config


@takes(RunRequest, KeysButFleet)
def run(
    call: Call[RunRequest],
    app: Folder | Any,
    client_app: Any = None,
    *,
    fleet: values.Scenario = "digits",
    run_config: Mapping[str, TomlValue] | None = None,
) -> Run:
    """Run a Flower app, unchanged, on the clock of a fleet.

    ``app``: its folder; or a ServerApp, with the ``client_app`` beside it, both of which a module must define that can
    be imported. ``fleet``: the scenario whose fleet, budgets and number of clients are taken. ``run_config``: values in
    place of those of the app. Errors as of `fedbr.run`.
    """
    folder = app if isinstance(app, str | PathLike) else _folder_of(app, client_app, run_config or {})
    loaded = of_app(folder, values.named(fleet), run_config or {}, values.overrides(call.overrides), PYTHON)
    return made(call.caller, call.caller.run(loaded, call.request))


def export(scenario: values.Scenario, folder: Folder, *, allow_code: bool = False, **overrides: Unpack[Keys]) -> Path:
    """Write a scenario as a Flower app that runs on real devices, into a new folder, and return that.

    ``scenario`` and ``overrides``: as of `fedbr.run`; modules of your own, and those of objects, are copied into the
    folder. With ``**{"data.partition.kind": "boards"}`` each device has its own examples alone. ScenarioError for a
    scenario that devices cannot run, such as one of arrays, and for a folder that is there already.
    """
    from scenarios.flower import export as app

    with calling(allow_code=allow_code):
        target = values.place("folder", folder)
        given = values.overrides(as_names(overrides, scenario))
        app.export(load(values.named(with_names(scenario)), given, origin=PYTHON), target)
        return target


def _folder_of(server_app: Any, client_app: Any, run_config: Mapping[str, TomlValue]) -> Path:
    """The folder of an app whose two parts were given as objects; its config is that of the module's own project, if
    that is an app, and ``run_config``."""
    (root, name, server), (_, _, client) = _place(server_app), _place(client_app)
    config: dict[str, TomlValue] = {}
    with suppress(OSError, KeyError, tomllib.TOMLDecodeError):
        config = flat(tomllib.loads(content(root / PROJECT).decode())["tool"]["flwr"]["app"]["config"])
    lines = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**config, **run_config}.items())
    files = {"given_server_app.py": server, "given_client_app.py": client}
    digest = hashlib.sha256("".join((*files.values(), lines)).encode()).hexdigest()[:12]
    folder = cache_folder() / APPS / digest / name
    folder.mkdir(parents=True, exist_ok=True)
    project = PROJECT_TEXT.format(name=json.dumps(name), config=lines)
    for file, text in {**files, PROJECT: project}.items():
        write_text(folder / file, text)
    return folder


def _place(given: Any) -> tuple[Path, str, str]:
    """The folder that an object's module is imported from, the name of its top-level package, and the source of a
    module that imports the object."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or module.__name__ == "__main__":
            continue
        for name, value in list(vars(module).items()):
            if value is given:
                depth = module.__name__.count(".") + (Path(file).name == "__init__.py")
                root = Path(file).resolve().parents[depth]
                top = module.__name__.partition(".")[0]
                return root, top, STUB.format(root=str(root), module=module.__name__, name=name)
    why = ": is no attribute of an imported module; define it in a file of its own, or give the folder of the app"
    raise ScenarioError(Argument("app", f"a {type(given).__name__}"), why)
