"""The help of ``fedbr``: commands on one screen, no line cut, words for what is to be written; and its version."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WORDS = {
    **dict.fromkeys(("int", "int range", "integer", "integer range"), "N"),
    **dict.fromkeys(("float", "float range"), "X"),
    "path": "PATH",
}
"""Type of an option, as typer writes it -> the word for its value; TEXT for any other"""
TYPE = re.compile("<(.*)>|((?:INTEGER|FLOAT)(?: RANGE)?)$")
"""The same in the help of an option: ``<int range>``, and ``INTEGER RANGE`` before typer 0.21"""


class PlainCommand(TyperCommand):
    """A command whose help has words in place of types, and that knows the keys of a scenario, given as options."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] SCENARIO [KEY=VALUE]...``"""
        pieces = ["[OPTIONS]"]
        for each in self.get_params(ctx):
            if each.param_type_name == "argument":
                name = _argument(each)
                pieces.append(name if each.required or name.startswith("[") else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what each argument and option means."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            is_argument, record = each.param_type_name == "argument", each.get_help_record(ctx)
            if record is not None:
                worded = TYPE.sub(lambda kind: WORDS.get((kind[1] or kind[2]).lower(), "TEXT"), record[0])
                # "at least 1" for typer's x>=1, and "1 to 4096" for 1<=x<=4096
                text = re.sub(r"\b([\d.]+)<=x<=([\d.]+)", r"\1 to \2", record[1])
                text = re.sub(r"\bx>=([\d.]+)", r"at least \1", text).replace("\\[", "[")  # typer escapes it for rich
                name = _argument(each) if is_argument else worded
                sections["Arguments" if is_argument else "Options"].append((name, text))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments; the error about an unknown option says how the key of that name is written."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if hasattr(error, "message"):
                error.message = re.sub(r"is not a valid integer( range)?", "is not a whole number", error.message)
            if option in ("--gpu", "--gpus", "--cuda") and any(each.name == "device" for each in self.get_params(ctx)):
                error.message += "; use --device cuda"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
                raise
            near = getattr(error, "possibilities", None) or ()
            takes_keys = any("KEY=" in (each.metavar or "") for each in self.get_params(ctx))
            if option is not None and takes_keys and f"{option}s" not in near and (key := _key_of(option)):
                value = ".."
                for word, following in zip(words, [*words[1:], "-"], strict=True):
                    name, equals, own = word.partition("=")
                    if name == option:
                        value = own if equals else ".." if following.startswith("-") else following
                        break
                error.message += f"; keys of a scenario are written {key}={value}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]  # as click's NoSuchOption has it
            raise


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _key_of(option: str) -> str | None:
    """The key of a scenario that an option's name means, also in the plural; None if it is no key's."""
    from scenarios.config.error_messages import known_keys, named_like
    from scenarios.config.schema import Scenario

    name = option.lstrip("-").replace("-", "_")
    return named_like(name, known_keys(Scenario)) or named_like(name.removesuffix("s"), known_keys(Scenario))


class PlainGroup(TyperGroup):
    """Commands whose texts go on in the next line where they are too long for one."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the name and the text of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in self.shown(ctx)])

    def shown(self, ctx: Any) -> list[tuple[str, Any]]:
        """The commands that help has, by name."""
        named = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, command) for name, command in named if command is not None and not command.hidden]


class FirstScreen(PlainGroup):
    """The help of ``fedbr`` itself: a line per command, beside its heading (``rich_help_panel``), in 80 x 24."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, commands in the order of their headings, and where the rest is."""
        self.format_usage(ctx, formatter)
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.shown(ctx):
            headings.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(limit=1000)))
        formatter.write("\n")
        for heading, rows in headings.items():
            for number, (name, text) in enumerate(rows):
                formatter.write(f"{'' if number else heading:<10}{name:<10} {text}\n")
        options = ", ".join("/".join(each.opts) for each in self.get_params(ctx) if each.name != "help")
        formatter.write(f"\n{options}\n")
        formatter.write("fedbr COMMAND -h: its options. fedbr explain NAME: a key or name of a scenario.\n")


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
