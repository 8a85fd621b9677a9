"""A grid of settings: its words, the points that it spans, and the row of an experiment that each of them is.

An option of a method (or of another row that a key names) varies for those that have it, and goes to them alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from scenarios.config.load import Loaded, load
from scenarios.config.toml_source import COMMAND_LINE, leaves, parse, refuse_repeated
from scenarios.config.toml_writer import toml_text, toml_value
from scenarios.experiment.experiment import ExperimentRow

EXAMPLE = "train.lr=0.05,0.1"
METHOD, SEED = "method", "seed"
OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "method_options": (METHOD, resolve),
    "server_options": ("server", server_optimizer),
    "rounds.policy_options": ("rounds.policy", policy_row),
    "rounds.selection_options": ("rounds.selection", selection),
    "train.lr_schedule_options": ("train.lr_schedule", lr_schedule),
}
"""Table of options -> the key that names whose options they are, and how its row is found."""
OPTIONS_OF_METHODS = "method_options"
OPENING, CLOSING = "[{", "]}"
LONGEST_WORD, LONGEST_NAME = 40, 180
"""Characters of a value, and of all of them, in the name of a run folder; longer ones end in a hash."""
Point = Mapping[str, Any]
"""Dotted key -> value"""
NameOf = Callable[[str, Point], str]
"""(method, settings) -> a name"""


@dataclass(frozen=True)
class Axis:
    """A key, and the values that it takes."""

    key: str
    values: tuple[Any, ...]
    """At least one, all different"""


@dataclass(frozen=True)
class Grid:
    """A scenario, the values that vary, and those that all runs have."""

    scenario: str
    axes: tuple[Axis, ...] = ()
    overrides: Point = field(default_factory=dict)
    zipped: bool = False
    """Whether the axes stand side by side instead of in all combinations"""

    @property
    def varies(self) -> tuple[Axis, ...]:
        """The axes but that of the seed."""
        return tuple(axis for axis in self.axes if axis.key != SEED)

    @property
    def points(self) -> list[Point]:
        """The points, without those that differ only in what does not apply to them; the last axis is the fastest.

        ScenarioError if axes of different lengths are to be side by side.
        """
        axes = self.varies
        if self.zipped and len({len(axis.values) for axis in axes}) > 1:
            lengths = ", ".join(f"{axis.key} has {len(axis.values)}" for axis in axes)
            raise ScenarioError(f"--zip: lists side by side must be equally long: {lengths}")
        values = (axis.values for axis in axes)
        rows = zip(*values, strict=True) if self.zipped and axes else product(*values)
        own = [
            self.applied(point, point) for point in (dict(zip((a.key for a in axes), row, strict=True)) for row in rows)
        ]
        return list({json.dumps(point, sort_keys=True, default=str): point for point in own}.values())

    def applied(self, point: Point, values: Point) -> dict[str, Any]:
        """Those of ``values`` that apply to a point: options only where its method (or other row) has them.

        This is so for tables of `OPTIONS` whose key is an axis; elsewhere `load` refuses an option that is not there.
        """
        return {key: value for key, value in values.items() if self._has(point, key)}

    def _has(self, point: Point, key: str) -> bool:
        chooser, find_row = self._chooser(key)
        return find_row is None or key.rpartition(".")[2] in find_row(point[chooser]).options.model_fields

    def _chooser(self, key: str) -> tuple[str, Callable[[str], Any] | None]:
        """The axis that names whose option a key is, and how its row is found; None for all other keys."""
        chooser, find_row = OPTIONS.get(key.rpartition(".")[0], ("", None))
        return (chooser, find_row) if any(axis.key == chooser for axis in self.axes) else ("", None)

    def check_options(self) -> None:
        """ScenarioError for a method (or other row) that is unknown, and for an option that none of an axis has."""
        choosers = dict(OPTIONS.values())
        for axis in self.axes:
            for value in axis.values if axis.key in choosers else ():
                try:
                    choosers[axis.key](show(value))
                except ValueError as error:
                    raise ScenarioError(f"{COMMAND_LINE}: {axis.key}: {error}") from None
        for key in (*(axis.key for axis in self.axes), *(key for key, _ in leaves(self.overrides))):
            chooser, find_row = self._chooser(key)
            if find_row is None:
                continue
            values = next(axis.values for axis in self.axes if axis.key == chooser)
            known = {name for value in values for name in find_row(value).options.model_fields}
            table, _, option = key.rpartition(".")
            if option not in known:
                hint = nearest(key, [f"{table}.{name}" for name in sorted(known)])
                names = ", ".join(map(show, values))
                raise ScenarioError(f"{COMMAND_LINE}: unknown key {key}: none of {names} has it; {hint}")

    def load(self, point: Point, seed: int | None = None) -> Loaded:
        """The scenario of a point."""
        own = {key: value for key, value in point.items() if key != METHOD}
        seeds = {} if seed is None else {SEED: seed}
        method = show(point[METHOD]) if METHOD in point else None
        return load_with(self.scenario, {**self.applied(point, self.overrides), **own, **seeds}, method)

    def rows(
        self, first_seed: int | None, name_of: NameOf, folder_of: NameOf
    ) -> tuple[list[ExperimentRow], list[Loaded]]:
        """A row per point, and its scenario with the first seed.

        ``name_of``, ``folder_of``: (method, settings) -> name and folder of a row. ScenarioError for what `load`
        refuses at any point, and for two points that would be the same runs.
        """
        self.check_options()
        rows: list[ExperimentRow] = []
        scenarios: list[Loaded] = []
        first: dict[str, str] = {}
        for point in self.points:
            loaded = self.load(point, first_seed)
            text, words = toml_text(loaded.scenario.model_dump()), label(point)
            if text in first:
                raise ScenarioError(f"{first[text]} and {words} are the same runs; name each value once")
            first[text] = words
            method = loaded.scenario.method
            settings = {key: method if key == METHOD else value for key, value in point.items()}
            rows.append(ExperimentRow(name_of(method, settings), folder_of(method, settings), method, settings))
            scenarios.append(loaded)
        return rows, scenarios

    def without_options(self) -> Grid:
        """The grid without overrides of methods' options, which only some methods have."""
        table = OPTIONS_OF_METHODS
        common = {key: value for key, value in self.overrides.items() if key.partition(".")[0] != table}
        return replace(self, overrides=common)

    def seeds(self, count: int | None, first_seed: int | None, start: int, default: int) -> tuple[int, ...]:
        """The seeds that an axis names, or ``count`` (or else ``default``) of them from ``start`` on."""
        named = next((axis.values for axis in self.axes if axis.key == SEED), None)
        if named is None:
            return tuple(range(start, start + (count or default)))
        text = f"{SEED} = {', '.join(map(show, named))}"
        if count is not None or first_seed is not None:
            raise ScenarioError(f"{text}: names the seeds; leave out --seeds and --seed")
        if self.zipped:
            raise ScenarioError(
                f"--zip: {text}: every cell has all seeds, so they cannot stand beside the values of other keys; leave "
                "out --zip, or make a sweep per seed"
            )
        if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in named):
            raise ScenarioError(f"{text}: must be integers from 0 on")
        return named


def load_with(scenario: str, overrides: Point, method: str | None = None) -> Loaded:
    """The scenario with these values."""
    return load(scenario, [f"{key}={toml_value(value)}" for key, value in overrides.items()], method)


def row_of(method: str, settings: Point) -> ExperimentRow:
    """A method with these settings, named as `variant_name` does."""
    name = variant_name(method, settings)
    return ExperimentRow(name, name, method, settings)


def row_of_words(method: str, words: Iterable[str]) -> ExperimentRow:
    """A method with settings KEY=VALUE."""
    return row_of(method, dict(map(parse, words)))


# --- words --------------------------------------------------------------------------------------------------------


def grid_of(scenario: str, words: Sequence[str], zipped: bool = False) -> Grid:
    """The grid of KEY=VALUE words: a word with several values is an axis, one with a single value an override.

    ScenarioError for a word that is none, an empty or repeated value, and a key that is named twice.
    """
    axes: list[Axis] = []
    overrides: list[tuple[str, Any]] = []
    for word in words:
        key, value = parse(word)
        texts = split(word.partition("=")[2])
        if any(key == axis.key for axis in axes):
            raise ScenarioError(f"{COMMAND_LINE}: {key}: is named twice; write all its values as one list, {EXAMPLE}")
        if len(texts) == 1:
            overrides.append((key, value))
        elif all(texts):
            axes.append(axis_of(key, [parse(f"value={text}")[1] for text in texts]))
        else:
            raise ScenarioError(f"{COMMAND_LINE}: {key}: write values separated by commas, for example {EXAMPLE}")
    for axis in axes:
        if any(axis.key == key for key, _ in overrides):
            raise ScenarioError(f"{COMMAND_LINE}: {axis.key}: is named twice; write all its values as one list")
    refuse_repeated(overrides)
    return Grid(scenario, tuple(axes), dict(overrides), zipped)


def axis_of(key: str, values: Iterable[Any], source: str = COMMAND_LINE) -> Axis:
    """The axis of a key; ScenarioError for a list without values, and for a repeated value."""
    kept = tuple(values)
    if not kept:
        raise ScenarioError(f"{source}: {key}: write values separated by commas, for example {EXAMPLE}")
    texts = [show(value) for value in kept]
    for text in texts:
        if texts.count(text) > 1:
            raise ScenarioError(f"{source}: {key} = {text}: is named twice; name each value once")
    return Axis(key, kept)


def over_methods(grid: Grid, methods: Sequence[str]) -> Grid:
    """The grid with an axis for the method first: its own, the one method that it names, or else ``methods``."""
    own = next((axis for axis in grid.axes if axis.key == METHOD), None)
    named = [grid.overrides[METHOD]] if METHOD in grid.overrides else methods
    others = tuple(axis for axis in grid.axes if axis.key != METHOD)
    common = {key: value for key, value in grid.overrides.items() if key != METHOD}
    return replace(grid, axes=(own or axis_of(METHOD, named), *others), overrides=common)


def choices_of(grid: Grid, keys: Sequence[str]) -> tuple[Grid, dict[str, list[str]]]:
    """The grid without words of these ``keys``, which choose by name, and the names that each of them has.

    ScenarioError for several values of any other key: what varies is the experiment's own.
    """
    chosen: dict[str, list[str]] = {key: [] for key in keys}
    for axis in grid.axes:
        if axis.key not in keys:
            names = ", ".join(keys)
            raise ScenarioError(f"{COMMAND_LINE}: {axis.key}: takes one value here; {names} take several")
        chosen[axis.key] = list(map(show, axis.values))
    chosen |= {key: [show(value)] for key, value in grid.overrides.items() if key in keys}
    others = {key: value for key, value in grid.overrides.items() if key not in keys}
    return replace(grid, axes=(), overrides=others), chosen


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


def show(value: Any) -> str:
    """A value as tables and folders have it: text as it is, 16.0 as ``16``, others as TOML writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return toml_value(value)


def override_text(key: str, value: Any) -> str:
    """KEY=VALUE that is read as this value, text without quotes where it can be."""
    is_plain = isinstance(value, str) and parse(f"{key}={value}") == (key, value)
    return f"{key}={value if is_plain else toml_value(value)}"


# --- names --------------------------------------------------------------------------------------------------------


def label(settings: Point) -> str:
    """``method=fedbr train.lr=0.05``."""
    return display_name(" ".join(f"{key}={show(value)}" for key, value in settings.items()))


def variant_name(method: str, settings: Point) -> str:
    """A folder's name in the order of the settings, such as ``fedavg-server-fedadam-lr-0.01``."""
    words = [f"{last_part(key)} {show(value)}".lower() for key, value in settings.items() if key != METHOD]
    return "-".join([method, *(re.sub(r"[^a-z0-9.]+", "-", word).strip("-") for word in words)])


def cell_name(method: str, settings: Point) -> str:
    """A folder's name, such as ``fedbr-lr-0.05``, that depends on the settings alone and not on their order.

    A value with letters that names do not have ends in a hash, to be like no other.
    """
    words = [(last_part(key), show(value)) for key, value in sorted(settings.items()) if key != METHOD]
    return folder_name([method, *(word for pair in words for word in pair)])


def last_part(key: str) -> str:
    """``lr`` of ``train.lr``."""
    return key.rpartition(".")[2]


def folder_name(words: Sequence[str]) -> str:
    """The name of a folder from these words."""
    name = "-".join(map(_word, words))
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{_hash(name)}"


def _word(value: str) -> str:
    word = re.sub(r"[^A-Za-z0-9._]+", "-", value).strip("-.")
    is_same = word == value and len(value) <= LONGEST_WORD
    return word if is_same else "-".join(filter(None, [word.lower()[:LONGEST_WORD], _hash(value)]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
