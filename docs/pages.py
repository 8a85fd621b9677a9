"""Hooks of ``mkdocs build`` (`make docs`): pages that are made from what there is, so that nothing is written twice.

The first page is README, the page of keys is what ``fedbr list keys`` prints, and the decisions enter the navigation.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
KEYS_HEAD = """# Keys of a scenario

Each key with its type and default, as `fedbr list keys` prints them; `fedbr explain KEY` tells more.

"""


def on_config(config: Any) -> Any:
    """Decisions, newest last, in the navigation."""
    listed = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for section in config.nav:
        if "Background" in section:
            section["Background"].append({"Decisions": [f"decisions/{name}" for name in listed]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """The pages that no file of docs has."""
    made = {"index.md": of_root("README.md"), "contributing.md": of_root("CONTRIBUTING.md"), "keys.md": keys()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def of_root(name: str) -> str:
    """A page beside docs, with links as they are from docs."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = text.replace("[how to cite](CITATION.cff)", "how to cite: `CITATION.cff`")
    text = text.replace("](docs/decisions)", "](decisions/0001-a-fork-server-of-our-own.md)")
    return text.replace("](CONTRIBUTING.md)", "](contributing.md)").replace("](docs/", "](")


def keys() -> str:
    """What ``fedbr list keys`` prints."""
    sys.path.insert(0, str(ROOT))
    os.environ["COLUMNS"] = "110"
    from scenarios.cli.main import run_command

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if run_command(["list", "keys"]) != 0:
            raise PluginError("fedbr list keys failed")
    return f"{KEYS_HEAD}```text\n{printed.getvalue()}```\n"
