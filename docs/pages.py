"""Hooks of ``mkdocs build`` (`make docs`): pages that are made from what there is, so that nothing is written twice.

The first page is README, the page of keys has the lines of ``fedbr list keys``, and links to files beside ``docs`` lead
to pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
KEYS_HEAD = """# Keys of a scenario

What `fedbr list keys` prints, as tables. `fedbr explain KEY` tells more, and `fedbr explain --schema` is for editors.
"""


def on_files(files: Any, config: Any) -> Any:
    """The pages that no file of docs has."""
    made = {"index.md": of_root("README.md"), "contributing.md": of_root("CONTRIBUTING.md"), "keys.md": keys()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page's text, whose links to files beside docs lead to the pages that are made of them."""
    above = "../" * page.file.src_uri.count("/")
    return linked(markdown, f"{above}../", above)


def of_root(name: str) -> str:
    """A page beside docs, with links as they are from docs."""
    return linked((ROOT / name).read_text(encoding="utf-8"), "").replace("](docs/", "](")


def linked(text: str, root: str, above: str = "") -> str:
    """The text with links from the folder in which ``root`` leads to the repository, and ``above`` to docs: pages, or
    names of other files."""
    text = text.replace("](docs/decisions)", "](decisions/0001-a-fork-server-of-our-own.md)")
    for name, page in (("README.md", "index.md"), ("CONTRIBUTING.md", "contributing.md")):
        text = re.sub(rf"\]\({re.escape(root + name)}(#[\w-]+)?\)", rf"]({above}{page}\1)", text)
    return re.sub(rf"\[([^\]]+)\]\({re.escape(root)}((?:examples/|CITATION)[\w.-]+)\)", r"\1 (`\2`)", text)


def keys() -> str:
    """A table per table of the scenario: key, type or names, default, meaning."""
    sys.path.insert(0, str(ROOT))
    from scenarios.api.listing import rows

    lines = [KEYS_HEAD]
    for table, of_table in groupby(rows("keys"), lambda row: row["name"].rpartition(".")[0]):
        lines += ["", f"## {table or 'The run'}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for row in of_table:
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |")
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield f"`{row['name']}`"
    yield ", ".join(f"`{name}`" for name in row["choices"] or ()) or row["type"]
    yield "" if row["default"] is None else f"`{row['default']}`"
    yield row["meaning"].replace("``", "`")
