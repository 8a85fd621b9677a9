"""The grid of a sweep: axes, which are keys with several values each, and the cells that they span.

Values are written as those of overrides are: TOML, or plain text. Nothing is loaded or run here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from coordinator.aggregation.optimizers import server_optimizer
from coordinator.methods.registry import resolve
from coordinator.rounds.policy import policy_row
from coordinator.rounds.selectors.registry import selection
from edge.protocol.lr_schedules import lr_schedule
from edge.protocol.plugins import display_name
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.config.toml_source import COMMAND_LINE, parse, refuse_repeated
from scenarios.config.toml_writer import toml_value

EXAMPLE = "train.lr=0.05,0.1"
METHOD = "method"
OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "method_options": (METHOD, resolve),
    "server_options": ("server", server_optimizer),
    "rounds.policy_options": ("rounds.policy", policy_row),
    "rounds.selection_options": ("rounds.selection", selection),
    "train.lr_schedule_options": ("train.lr_schedule", lr_schedule),
}
"""Table of options -> the key that names whose options they are, and how its row is found."""
OPENING, CLOSING = "[{", "]}"
LONGEST_WORD, LONGEST_NAME = 40, 180
"""Characters of a value, and of all of them, in the name of a run folder; longer ones end in a hash."""


@dataclass(frozen=True)
class SweepAxis:
    """A key, and the values that it takes."""

    key: str
    values: tuple[str, ...]
    """As overrides have them, at least one, all different"""


@dataclass(frozen=True)
class SweepCell:
    """One point of the grid: a run per seed."""

    method: str
    """The method's own name, without its aliases."""
    settings: Mapping[str, str]
    """Key -> value as it is shown, of each axis that applies to the cell."""
    overrides: tuple[str, ...]
    """``KEY=VALUE`` for each of the settings."""

    @property
    def name(self) -> str:
        """For names of folders: ``fedbr-lr-0.05``. It depends on the method and the settings alone, not their order."""
        words = [(last_part(key), value) for key, value in sorted(self.settings.items()) if key != METHOD]
        return folder_name([self.method, *(word for pair in words for word in pair)])

    @property
    def label(self) -> str:
        """For tables: ``method=fedbr train.lr=0.05``."""
        return display_name(" ".join(f"{key}={value}" for key, value in self.settings.items()) or self.method)

    def run_name(self, seed: int) -> str:
        """The folder of the run with a seed."""
        return f"{self.name}-seed{seed}"


def _word(value: str) -> str:
    """A value in the name of a folder. One with letters that names do not have ends in a hash, to be like no other."""
    word = re.sub(r"[^A-Za-z0-9._]+", "-", value).strip("-.")
    is_same = word == value and len(value) <= LONGEST_WORD
    return word if is_same else "-".join(filter(None, [word.lower()[:LONGEST_WORD], _hash(value)]))


def last_part(key: str) -> str:
    """``lr`` of ``train.lr``."""
    return key.rpartition(".")[2]


def folder_name(words: Sequence[str]) -> str:
    """The name of a folder from these words."""
    return _within("-".join(map(_word, words)), LONGEST_NAME)


def _within(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[:most]}-{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


# --- axes ---------------------------------------------------------------------------------------------------------


def read_words(words: Sequence[str]) -> tuple[list[SweepAxis], list[str]]:
    """The axes among KEY=VALUE words, and the words with one value, which are overrides of all runs.

    ScenarioError for a word that is none, an empty or repeated value, and a key that is named twice.
    """
    axes: list[SweepAxis] = []
    overrides: list[str] = []
    for word in words:
        key, values = parse(word)[0], split(word.partition("=")[2])
        if any(key == axis.key for axis in axes):
            raise ScenarioError(f"{COMMAND_LINE}: {key}: is named twice; write all its values as one list, {EXAMPLE}")
        if len(values) == 1:
            overrides.append(word)
        else:
            axes.append(axis(key, values))
    keys = [parse(override)[0] for override in overrides]
    for one in axes:
        if one.key in keys:
            raise ScenarioError(f"{COMMAND_LINE}: {one.key}: is named twice; write all its values as one list")
    refuse_repeated(map(parse, overrides))
    return axes, overrides


def split(text: str) -> list[str]:
    """The values of a list; commas within quotes, brackets and braces belong to a value."""
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


def axis(key: str, values: Sequence[Any], source: str = COMMAND_LINE) -> SweepAxis:
    """The axis of a key. Texts are read as overrides are, other values are those of TOML.

    ScenarioError for a list without values, and for one with an empty or repeated value.
    """
    texts = [value if isinstance(value, str) else toml_value(value) for value in values]
    if not texts or not all(text.strip() for text in texts):
        raise ScenarioError(f"{source}: {key}: write values separated by commas, for example {EXAMPLE}")
    shown = [show(text) for text in texts]
    for text in shown:
        if shown.count(text) > 1:
            raise ScenarioError(f"{source}: {key} = {text}: is named twice; name each value once")
    return SweepAxis(key, tuple(texts))


def show(text: str) -> str:
    """A value as tables and folders have it: ``0.10`` and ``1e-1`` are ``0.1``, ``"sync"`` is ``sync``."""
    value = parse(f"value={text}")[1]
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return toml_value(value)


# --- cells --------------------------------------------------------------------------------------------------------


def points(axes: Sequence[SweepAxis], zipped: bool = False) -> list[dict[str, str]]:
    """Key -> value for each point: every combination, the last axis the fastest, or the axes side by side.

    ScenarioError if axes of different lengths are to be side by side.
    """
    counts = {len(axis.values) for axis in axes}
    if zipped and len(counts) > 1:
        lengths = ", ".join(f"{axis.key} has {len(axis.values)}" for axis in axes)
        raise ScenarioError(f"--zip: lists side by side must be equally long: {lengths}")
    values = (axis.values for axis in axes)
    rows = zip(*values, strict=True) if zipped else product(*values)
    return [dict(zip((axis.key for axis in axes), row, strict=True)) for row in rows]


def applied(axes: Sequence[SweepAxis], point: Mapping[str, str]) -> dict[str, str]:
    """The values of a point that apply to it: options only where the method (or other row) of the point has them.

    This is so for tables of `OPTIONS` whose key is an axis; elsewhere `load` refuses an option that is not there.
    """
    return {key: value for key, value in point.items() if _has(axes, point, key)}


def _has(axes: Sequence[SweepAxis], point: Mapping[str, str], key: str) -> bool:
    named = _table_of(axes, key)
    if named is None:
        return True
    chooser, option, find_row = named
    return option in find_row(show(point[chooser])).options.model_fields


def _table_of(axes: Sequence[SweepAxis], key: str) -> tuple[str, str, Callable[[str], Any]] | None:
    """(the axis whose options the key is of, the option, how a row is found); None for all other keys."""
    table, _, option = key.rpartition(".")
    chooser, find_row = OPTIONS.get(table, (None, None))
    if chooser is None or find_row is None or all(axis.key != chooser for axis in axes):
        return None
    return chooser, option, find_row


def check_rows(axes: Sequence[SweepAxis], overrides: Sequence[str]) -> None:
    """ScenarioError for a method (or other row) that is unknown, and for an option that none of an axis has."""
    choosers = dict(OPTIONS.values())
    for one in axes:
        for value in one.values if one.key in choosers else ():
            try:
                choosers[one.key](show(value))
            except ValueError as error:
                raise ScenarioError(f"{COMMAND_LINE}: {one.key}: {error}") from None
    for key in (*(one.key for one in axes), *(parse(override)[0] for override in overrides)):
        _check_option(axes, key)


def _check_option(axes: Sequence[SweepAxis], key: str) -> None:
    named = _table_of(axes, key)
    if named is None:
        return
    chooser, option, find_row = named
    values = next(axis.values for axis in axes if axis.key == chooser)
    known = {name for value in values for name in find_row(show(value)).options.model_fields}
    if option not in known:
        table = key.rpartition(".")[0]
        hint = nearest(key, [f"{table}.{name}" for name in sorted(known)])
        names = ", ".join(map(show, values))
        raise ScenarioError(f"{COMMAND_LINE}: unknown key {key}: none of {names} has it; {hint}")


def fixed(axes: Sequence[SweepAxis], point: Mapping[str, str], overrides: Sequence[str]) -> Iterator[str]:
    """The overrides of all runs that apply to a point, as `applied` says."""
    return (override for override in overrides if _has(axes, point, parse(override)[0]))
