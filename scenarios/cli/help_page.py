"""The help of ``fedbr``: commands under headings, no line cut; and its version."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from typer.core import TyperGroup

OTHERS = "Commands"
"""Heading of commands that are registered without one"""


class GroupedCommands(TyperGroup):
    """Commands under the headings that they are registered with (``rich_help_panel``)."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading; a text that is too long for a line goes on in the next."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                heading = heading if isinstance(heading, str) else OTHERS
                sections.setdefault(heading, []).append((name, command.get_short_help_str(limit=1000)))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def show_version(wanted: bool) -> None:
    """Print the versions of the product, of Python and of torch, which is not imported, and exit."""
    if wanted:
        print(f"fedbr {_version('fedbr-edge')}, Python {platform.python_version()}, torch {_version('torch')}")
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
