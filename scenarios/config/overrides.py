"""KEY=VALUE words as values, and values as such words: text is parsed here, once, and travels as values from here on.

A value is TOML, or text where it is none: ``0.05``, ``20 Mbit/s``, ``["accuracy", "hessian"]``, ``{a = 1}``. A list of
values, as grids have it, is separated by commas outside quotes and brackets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from costmodel.files import parse_toml
from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.config.tables import leaves
from scenarios.config.toml_writer import toml_value

KeyValues = Mapping[str, object]
"""Dotted key of a scenario -> value"""
OPENING, CLOSING = "[{", "]}"


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Key -> value of KEY=VALUE words; ScenarioError for a word that is none, and for a key that two of them set."""
    pairs = [parse(word) for word in words]
    refuse_repeated(pairs)
    return dict(pairs)


def parse_all(words: Iterable[str]) -> dict[str, Any]:
    """Key -> value of KEY=VALUE words, of which a later one replaces an earlier one of its key."""
    return dict(map(parse, words))


def parse(word: str) -> tuple[str, Any]:
    """Key and value of one word."""
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(
            f"{word!r}: an override reads KEY=VALUE, for example train.lr=0.05; values of a list are separated by "
            "commas without spaces"
        )
    return key.strip(), parse_value(text, key.strip())


def parse_value(text: str, key: str = "value") -> Any:
    """The value of a text: TOML, or the text itself. ScenarioError, naming the key, for what no parser should take."""
    try:
        tables = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; lists in lists without end
        raise ScenarioError(f"{key}: {error}", key=key, source=COMMAND_LINE) from None
    # Text of several lines can parse as a value and further keys, which the word does not name.
    return tables["value"] if len(tables) == 1 else text.strip()


def refuse_repeated(overrides: Iterable[tuple[str, Any]]) -> None:
    """ScenarioError for a key that two of the overrides set, as TOML refuses it; also within tables."""
    given: set[str] = set()
    for key, value in overrides:
        keys = {key, *(leaf for leaf, _ in leaves({key: value}))}
        for repeated in sorted(keys & given):
            raise ScenarioError(f"{repeated}: is given twice; a key has one value", key=repeated, source=COMMAND_LINE)
        given |= keys


def words(overrides: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE for each value, which `parsed` reads as it is: text without quotes where it stays text."""
    return [f"{key}={as_text(value)}" for key, value in overrides.items()]


def as_text(value: Any) -> str:
    """A value as `parse_value` reads it."""
    if isinstance(value, str) and value and value == value.strip():
        with suppress(ScenarioError):
            if parse_value(value) == value:
                return value
    return toml_value(value)


# --- lists of values --------------------------------------------------------------------------------------------------


def parsed_list(text: str, key: str = "value") -> list[Any]:
    """The values of a list, ``0.05,0.1``; ScenarioError, naming the key, if one is empty."""
    pieces = split(text)
    if not all(pieces):
        raise ScenarioError(
            f"{key}: write values separated by commas, for example train.lr=0.05,0.1", key=key, source=COMMAND_LINE
        )
    return [parse_value(piece, key) for piece in pieces]


def split(text: str) -> list[str]:
    """The pieces of a list; commas within quotes, brackets and braces belong to a piece."""
    pieces, depth, quote, escaped = [""], 0, "", False
    for letter in text:
        if quote:
            is_end = letter == quote and not escaped
            escaped = letter == "\\" and quote == '"' and not escaped
            quote = "" if is_end else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            pieces.append("")
            continue
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        pieces[-1] += letter
    return [piece.strip() for piece in pieces]


def shown(value: Any) -> str:
    """A value as tables and folders have it: ``0.10`` and ``1e-1`` are ``0.1``, ``"sync"`` is ``sync``, ``5.0`` is
    ``5``."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return toml_value(value)
