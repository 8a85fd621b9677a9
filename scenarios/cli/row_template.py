"""A shipped device or network as a file of the user's own, to change: ``fedbr list devices --toml NAME``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from costmodel.fleet.devices import Device, Network, devices, networks
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.config.field_docs import field_docs
from scenarios.config.toml_writer import toml_text

OWN = "my-"
"""Before the row's name, since shipped names are taken."""
COMMENT_COLUMNS = 100


def row_text(kind: str, name: str) -> str:
    """The TOML of a row under a name of its own, each key with its meaning. ScenarioError for an unknown row."""
    tables: Mapping[str, Mapping[str, Device] | Mapping[str, Network]] = {"devices": devices(), "networks": networks()}
    if kind not in tables:
        raise ScenarioError(f"list {kind} --toml: only devices and networks are rows of a file")
    if name not in tables[kind]:
        raise ScenarioError(f"list {kind} --toml {name}: {nearest(name, tables[kind])}")
    row, singular = tables[kind][name], kind.removesuffix("s")
    docs = field_docs(type(row))
    lines = [
        f"# Save it as mine.toml, change it, and use it with fleet.{singular}_file=mine.toml",
        f'# "fleet.{kind}={{{OWN}{name}=1}}". All figures are in SI units.',
        "",
        f"[{OWN}{name}]",
    ]
    for key, value in asdict(row).items():
        if key != "name" and value != {}:
            lines += [*_comment(docs.get(key, "")), _line(key, value)]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    plain = text.replace("``", "").replace("`", "")
    return textwrap.wrap(plain, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# ")


def _line(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(toml_text({name: figure}).strip() for name, figure in value.items())
        return f"{key} = {{ {inner} }}"
    return toml_text({key: value}).strip()
