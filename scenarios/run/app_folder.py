"""The folder of a Flower app: what its ``pyproject.toml`` says, and a hash of its files. Nothing of it is imported."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.protocol.home import expanded
from edge.protocol.options.flower_app import FlowerAppOptions
from edge.protocol.plugins import expect_allowed
from edge.protocol.spelling import nearest
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.tables import TomlValue, value_at

PROJECT = "pyproject.toml"
NAME, CONFIG = "project.name", "tool.flwr.app.config"
CLIENT_APP, SERVER_APP = "tool.flwr.app.components.clientapp", "tool.flwr.app.components.serverapp"
REFERENCE = re.compile(r"[\w.]+:[\w.]+")
SOURCES = (".py", ".toml")
"""Endings of the files that make an app"""
MOST_FILES, MOST_NBYTES = 100_000, 8_000_000
"""Of such files, and bytes of each"""
GUIDE = "docs/flower-apps.md"


@dataclass(frozen=True)
class FlowerApp:
    """An app as its folder has it."""

    folder: Path
    name: str
    client_app: str
    """``module:attribute``"""
    server_app: str
    run_config: Mapping[str, TomlValue]
    """With the scenario's values in place of the app's own"""
    sha256: str


def flower_app(loaded: Loaded) -> FlowerApp:
    """The app that is the method of a scenario, read but not run. ScenarioError names what it lacks, or the key that
    it has not."""
    assert loaded.method.app is not None and isinstance(loaded.options, FlowerAppOptions), loaded.method
    if importlib.util.find_spec("flwr") is None:
        raise ScenarioError(f"method = {loaded.method.name!r}: needs Flower: pip install 'fedbr-edge[flower]'")
    folder = expanded(loaded.method.app).resolve()
    file = folder / PROJECT
    try:
        project = tomllib.loads(content(file).decode())
        tables = value_at(project, CONFIG)
        config = flat(tables) if isinstance(tables, Mapping) else {}
    except OSError as error:
        raise ScenarioError(
            f"{file}: {error.strerror}; a Flower app is a folder with a {PROJECT} that has [tool.flwr.app]; a script "
            f"that calls start_simulation is to be made one ({GUIDE})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: {error}") from None
    except RecursionError:
        raise ScenarioError(f"{file}: its tables or lists are nested too deeply") from None
    texts = dict[str, str]()
    for key in (CLIENT_APP, SERVER_APP, NAME):
        value = value_at(project, key)
        if not isinstance(value, str):
            raise ScenarioError(f"{file}: no Flower app: it lacks {key}")
        if key != NAME and not REFERENCE.fullmatch(value):
            raise ScenarioError(f"{file}: {key} = {value!r}: must be module:attribute")
        texts[key] = value
    own = loaded.options.run_config
    for key, given in config.items():
        if not isinstance(given, bool | int | float | str):
            raise ScenarioError(f"{file}: {CONFIG}.{key}: Flower takes a text, a number, true or false")
    for key in own:
        if key not in config:
            raise ScenarioError(f"method_options.run_config.{key}: {file} has no such key; {nearest(key, config)}")
    try:
        sha256 = sources_sha256(folder)
    except OSError as error:
        raise ScenarioError(f"{error.filename}: {error.strerror}") from None
    return FlowerApp(folder, texts[NAME], texts[CLIENT_APP], texts[SERVER_APP], config | dict(own), sha256)


def runnable_app(loaded: Loaded) -> FlowerApp:
    """The same, to be run; ScenarioError, too, if only a recorded run names it, and its user has not allowed that."""
    try:
        expect_allowed(loaded.scenario.method)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return flower_app(loaded)


def flat(table: Mapping[str, TomlValue], at: str = "") -> dict[str, TomlValue]:
    """Dotted key -> value."""
    found: dict[str, TomlValue] = {}
    for key, value in table.items():
        found |= flat(value, f"{at}{key}.") if isinstance(value, Mapping) else {f"{at}{key}": value}
    return found


def content(path: Path) -> bytes:
    """The bytes of an app's file, or of the one that it links to. OSError that names it, for one that is no file, too
    large for source code, or a pipe, whose writer would be waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        stats = os.fstat(file.fileno())
        if not stat.S_ISREG(stats.st_mode):
            raise OSError(errno.EINVAL, "is no ordinary file", str(path))
        raw = file.read(MOST_NBYTES + 1)
    if len(raw) > MOST_NBYTES:
        raise OSError(errno.EFBIG, f"has more than {MOST_NBYTES} bytes, the most of a source file", str(path))
    return raw


def source_files(folder: Path) -> Iterator[Path]:
    """The files that make an app, in order. OSError for more than `MOST_FILES` of them."""
    files = 0
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in SOURCES and path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            files += 1
            if files > MOST_FILES:
                raise OSError(errno.EFBIG, f"has more than {MOST_FILES} source files", str(folder))
            yield path


def sources_sha256(folder: Path) -> str:
    """One hash over `source_files`, their names and lengths. OSError as of these and of `content`."""
    digest = hashlib.sha256()
    for path in source_files(folder):
        text = content(path)
        digest.update(f"{path.relative_to(folder)}\n{len(text)}\n".encode(errors="surrogateescape") + text)
    return digest.hexdigest()
