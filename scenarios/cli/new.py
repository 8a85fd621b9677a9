"""``fedbr new``: writes a start of a plug-in, device or scenario: files that work as they are, and their test.

The texts are in ``starts/``; ``$name`` and ``$Name`` in them stand for the new name and its class. Nothing here
overwrites a file, and no start is imported.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from scenarios.cli.options import Json, emit

STARTS = Path(__file__).parent / "starts"
OURS = ("coordinator", "costmodel", "edge", "fedbr", "scenarios", "tests")
MODULE = re.compile(r"[a-z][a-z0-9_]*")
ROW_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")


@dataclass(frozen=True)
class Start:
    """What is written for one kind of thing."""

    files: Mapping[str, str]
    """File name, with ``$name`` -> its text in ``starts/``; the test is written for every kind."""
    commands: tuple[str, ...]
    """The next commands, with ``$name``; no name has a character that a shell would take for its own."""


KINDS: Mapping[str, Start] = {
    "method": Start(
        {"$name.py": "method.py.txt", "${name}_client.py": "method_client.py.txt"},
        ("fedbr check --plugin $name:SPEC", "fedbr run digits method=$name:SPEC"),
    ),
    "model": Start(
        {"$name.py": "model.py.txt", "${name}_net.py": "model_net.py.txt"},
        ("fedbr check --plugin $name:ROW", "fedbr run digits method=fedavg model.name=$name:ROW"),
    ),
    "dataset": Start(
        {"$name.py": "dataset.py.txt"},
        (
            "fedbr check --plugin $name:ROW model.name=mlp",
            "fedbr run digits method=fedavg data.name=$name:ROW model.name=mlp",
        ),
    ),
    "codec": Start(
        {"$name.py": "codec.py.txt"},
        ("fedbr check --plugin $name:ROW", "fedbr run digits method=fedavg codec.up.kind=$name:ROW"),
    ),
    "device": Start(
        {"$name.toml": "device.toml.txt"},
        ("fedbr run digits method=fedavg fleet.device_file=$name.toml 'fleet.devices={ $name = 1.0 }'",),
    ),
    "scenario": Start({"$name.toml": "scenario.toml.txt"}, ("fedbr check $name.toml", "fedbr run $name.toml")),
    "selector": Start(
        {"$name.py": "selector.py.txt"},
        ("fedbr check --plugin $name:ROW", "fedbr run digits method=fedavg rounds.selection=$name:ROW"),
    ),
}


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    name: Annotated[str, typer.Argument(help="in small letters: mine")],
    out: Annotated[Path, typer.Option("--out", help="folder for the files")] = Path(),
    as_json: Json = False,
) -> None:
    """Write a working start of your own, with a test."""
    result = write(kind, name, out)
    emit(result, as_json, lambda: show(result))


def write(kind: str, name: str, out: Path) -> dict[str, Any]:
    """Write the files of a start: {kind, name, files, commands}. ScenarioError for a bad kind, name or folder."""
    from edge.protocol.spelling import nearest
    from scenarios.config.errors import ScenarioError

    if kind not in KINDS:
        raise ScenarioError(f"new {kind!r}: {nearest(kind, KINDS)}")
    start = KINDS[kind]
    problem = _problem(kind, name)
    if problem:
        raise ScenarioError(f"new {kind} {name!r}: {problem}")
    sources = {_filled(file, name): source for file, source in start.files.items()}
    sources[f"{_test_name(name)}.py"] = f"{kind}_test.py.txt"
    files = {
        out / file: _filled((STARTS / source).read_text(encoding="utf-8"), name) for file, source in sources.items()
    }
    there = [str(path) for path in files if path.exists()]
    if there:
        raise ScenarioError(f"new {kind} {name!r}: {', '.join(there)}: exists already; take another name or --out")
    shadowed = [path.stem for path in files if path.suffix == ".py" and importlib.util.find_spec(path.stem) is not None]
    if shadowed:
        raise ScenarioError(f"new {kind} {name!r}: a module {shadowed[0]} exists already; take {name}_{kind}")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    commands = [_filled(command, name) for command in (*start.commands, f"python -m pytest {_test_name(name)}.py")]
    return {"kind": kind, "name": name, "folder": str(out), "files": list(map(str, files)), "commands": commands}


def show(result: Mapping[str, Any]) -> None:
    """Print the files and the next commands."""
    for file in result["files"]:
        print(f"wrote {file}")
    print("next:")
    if Path(result["folder"]) != Path():
        print(f"  cd {shlex.quote(result['folder'])}")
    for command in result["commands"]:
        print(f"  {command}")


def _problem(kind: str, name: str) -> str | None:
    """Why the name cannot be taken, with a nearest one; None if it can."""
    from costmodel.fleet.devices import devices
    from scenarios.config.toml_source import shipped

    if not any(file.endswith(".py") for file in KINDS[kind].files):
        if not ROW_NAME.fullmatch(name):
            return f"must be of small letters, digits, '-' and '_'; take {_tidied(name)!r}"
        is_shipped = name in (devices() if kind == "device" else shipped())
        return f"is a shipped {kind}; take 'my-{name}'" if is_shipped else None
    if not MODULE.fullmatch(name):
        return f"must be of small letters, digits and '_', as a Python module; take {_tidied(name)!r}"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return f"is a word of Python; take 'my_{name}'"
    if name in sys.stdlib_module_names:
        return f"would hide Python's module {name}; take 'my_{name}'"
    return f"would hide a package of FedBR Edge; take 'my_{name}'" if name in OURS else None


def _tidied(name: str) -> str:
    tidy = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
    return tidy if MODULE.fullmatch(tidy) else f"my_{tidy}".rstrip("_")


def _test_name(name: str) -> str:
    return f"test_{name.replace('-', '_')}"


def _filled(text: str, name: str) -> str:
    camel = "".join(part.capitalize() for part in re.split(r"[-_]", name))
    return Template(text).substitute(name=name, Name=camel, year=date.today().year)
