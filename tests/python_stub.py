"""The stubs of ``import fedbr``: editors have from them the arguments that functions take of requests.

python -m tests.python_stub     # writes them; tests/api/test_requests.py compares
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fedbr

FOLDER = Path(fedbr.__file__).parent
HEAD = '''"""Types of {title}, written by ``python -m tests.python_stub``."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from costmodel.units import Quantity
from scenarios.api.callbacks import Callbacks
from scenarios.api.calling import Folder
from scenarios.api.keys import Keys, KeysButFleet, KeysButSeed
from scenarios.api import values
from scenarios.api.values import Scenario
from scenarios.config.tables import TomlValue
'''
OF_MODULE = """
__version__: str
__all__ = {names}
_HOMES: dict[str, str]
_MODULES: set[str]
_OTHER_NAMES: dict[str, str]

def main() -> None: ...
"""


def texts() -> dict[Path, str]:
    """File -> what it has to be."""
    exported = {name: getattr(fedbr, name) for name in fedbr._HOMES}
    homes = fedbr._HOMES | {"flower": "fedbr"}
    of_flower = {name: getattr(exported["flower"], name) for name in ("run", "export")}
    whole = _text("``import fedbr``", exported, homes, OF_MODULE.format(names=fedbr.__all__))
    of_flower["Run"] = fedbr.Run
    beside = _text("``fedbr.flower``", of_flower, {"Run": homes["Run"], "export": "scenarios.api.flower"})
    return {FOLDER / "__init__.pyi": whole, FOLDER / "flower.pyi": beside}


def _text(title: str, exported: Mapping[str, Any], homes: Mapping[str, str], more: str = "") -> str:
    taken = {name: each for name, each in exported.items() if hasattr(each, "__signature__")}
    imports = [
        f"from {homes[name]} import {fedbr._OTHER_NAMES.get(name, name)} as {name}"
        for name in exported
        if name not in taken
    ]
    functions = [_function(name, each) for name, each in taken.items()]
    text = "\n".join([HEAD.format(title=title), *imports, more, *functions])
    for words in (("check", "--select", "I,F401", "--fix", "--quiet"), ("format",)):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(FOLDER / "__init__.pyi"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _function(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    arguments = "".join(f"    {each},\n" for each in _parameters(signature))
    doc = textwrap.indent(inspect.cleandoc(function.__doc__ or ""), "    ").strip()
    return f'def {name}(\n{arguments}) -> {signature.return_annotation}:\n    """{doc}\n    """\n'


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    is_keyword = False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            yield "*"
            is_keyword = True
        name = f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name
        yield f"{name}: {each.annotation}" + ("" if each.default is each.empty else f" = {each.default!r}")


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text)
