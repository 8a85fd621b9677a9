"""How ``fedbr explain`` prints an explanation (`scenarios.api.explained`), in lines that fit the terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import IO

from rich.console import Console

from edge.protocol.plugins import is_own
from scenarios.api.explained import MOST_VALUES, Explanation
from scenarios.cli import listing_text


def show(found: Explanation, stream: IO[str] | None = None) -> None:
    """Print an explanation, in lines that fit the terminal."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    if found["kind"] == "row":
        for kind, row in found["rows"].items():
            of = "a row of your own, beside those" if is_own(found["name"]) else "one"
            console.print(f"{of} of fedbr list {kind}:", style="dim")
            listing_text.show(kind, [row], stream)
        return
    console.print(found["name"], style="bold")
    for text in _paragraphs(found):
        wrapped = textwrap.wrap(text, max(20, console.width - 4), subsequent_indent="  ", break_on_hyphens=False)
        for piece in wrapped:
            console.print(f"    {piece}")


def _paragraphs(found: Explanation) -> Iterator[str]:
    if found["kind"] == "option":
        for option in found["options"]:
            symbol = f" ({option['symbol']})" if option["symbol"] else ""
            yield f"with {_users(option)}{symbol}: {_plain(option['meaning'])}"
            yield f"  {_type(option)}; by default {option['default']}"
            if option["example"]:
                yield f"  example: {option['example']}"
        return
    yield _plain(found["meaning"])
    if found["kind"] in ("recording", "boards", "data"):
        yield from _file(found)
    if found["kind"] == "key":
        yield from _facts(found)
    for row in found.get("keys", ()):
        users = "" if found["kind"] == "table" else f" ({_users(row)})"
        yield f"{row['name']} = {row['default']}{users}: {_plain(row['meaning'])}"


def _file(found: Explanation) -> Iterator[str]:
    """What a user's file has, drawn over its time, and the key that takes it."""
    for figure in found.get("figures", ()):
        yield figure["text"]
        if figure["drawn"]:
            yield f"  |{figure['drawn']}|"
    yield from found.get("notes", ())
    yield from (f"doubted: {text}" for text in found.get("doubts", ()))
    yield f"example: {found['example']}"


def _facts(found: Explanation) -> Iterator[str]:
    yield f"type: {_type(found)}"
    unit = f", kept in {found['unit']}" if found["unit"] else ""
    yield f"default: {found['default']}{unit}"
    if found["choices"] and any(found["choices"].values()):
        yield "choices, or module:ROW:" if "sources" not in found else "choices:"
        yield from (f"  {name}: {title}" for name, title in found["choices"].items())
        for source in found.get("sources", ()):
            dates = f"of {source['published']}, read on {source['accessed']}"
            yield f"[{source['name']}]: {source['title']}; {source['place']}, {dates}"
            yield f"  counted are {source['counts']}"
    elif found["choices"] and not found["type"].startswith("one of"):
        yield f"choices: {', '.join(found['choices'])}"
    if found["used_by"]:
        yield f"used with: {_users(found)}"
    if found["synonyms"]:
        yield f"elsewhere called: {', '.join(found['synonyms'])}"
    shown = [f"{name} {value}" for name, value in found["shipped"].items() if len(value) <= 60]
    more = f" and {len(found['shipped']) - MOST_VALUES} more" if len(shown) > MOST_VALUES else ""
    if shown:
        yield f"other values in: {', '.join(shown[:MOST_VALUES])}{more}"
    if found["example"]:
        yield f"example: {found['example']}"


def _users(row: Explanation) -> str:
    """``rounds.policy = over_select or deadline``."""
    (key, *_), names = zip(*(user.split(" = ") for user in row["used_by"]), strict=True)
    return f"{key} = {' or '.join(names)}"


def _type(row: Explanation) -> str:
    return f"{row['type']}, {row['range']}" if row["range"] else str(row["type"])


def _plain(text: str) -> str:
    """Without the marks of code."""
    return text.replace("`", "")
