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
from pathlib import Path
from typing import Any

from edge.protocol.plugins import FLOWER_APP, display_name
from scenarios.config.errors import COMMAND_LINE, Argument, ScenarioError
from scenarios.config.load import METHOD as METHOD
from scenarios.config.load import Loaded, Source, beside, load
from scenarios.config.overrides import parse, parsed_list, refuse_repeated, shown, split
from scenarios.config.plugin_points import BY_NAME_KEY, BY_OPTIONS, PluginPoint
from scenarios.config.tables import TomlValue, leaves
from scenarios.config.toml_source import UNNAMED
from scenarios.config.toml_writer import toml_text
from scenarios.experiment.experiment import ExperimentRow
from scenarios.run.score import RunScore, score_of

EXAMPLE = "train.lr=0.05,0.1"
SEED = "seed"
ZIPPED = Argument("zipped", option="zip")
LONGEST_WORD, LONGEST_NAME = 40, 180
"""Characters of a value, and of all of them, in the name of a run folder; longer ones end in a hash."""
Point = Mapping[str, TomlValue]
"""Dotted key -> value"""
NameOf = Callable[[str, Point], str]
"""(method, settings) -> a name"""


@dataclass(frozen=True)
class Axis:
    key: str
    values: tuple[Any, ...]
    """At least one, all different"""


@dataclass(frozen=True)
class Grid:
    """A scenario, the values that vary, and those that all runs have."""

    scenario: Source
    axes: tuple[Axis, ...] = ()
    overrides: Point = field(default_factory=dict)
    zipped: bool = False
    """Whether the axes stand side by side instead of in all combinations"""
    listed: tuple[Point, ...] = ()
    """Points that no axes span; each is combined with every point of the axes"""

    @property
    def scenario_name(self) -> str:
        """As it was named; of tables, the scenario that they extend."""
        return (
            self.scenario if isinstance(self.scenario, str) else Path(str(self.scenario.get("extends", UNNAMED))).stem
        )

    @property
    def varies(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.key != SEED)

    @property
    def points(self) -> list[Point]:
        """The points, without those that differ only in what does not apply to them; the last axis is the fastest.

        ScenarioError if axes of different lengths are to be side by side.
        """
        axes = self.varies
        if self.zipped and len({len(axis.values) for axis in axes}) > 1:
            lengths = ", ".join(f"{axis.key} has {len(axis.values)}" for axis in axes)
            raise ScenarioError(ZIPPED, f": lists side by side must be equally long: {lengths}")
        values = (axis.values for axis in axes)
        rows = list(zip(*values, strict=True) if self.zipped and axes else product(*values))
        points = {}
        for listed, row in product(self.listed or ({},), rows):
            point = {**listed, **dict(zip((axis.key for axis in axes), row, strict=True))}
            own = self.applied(point, point)
            points[json.dumps(own, sort_keys=True, default=str)] = own
        return list(points.values())

    def applied(self, point: Point, values: Point) -> dict[str, TomlValue]:
        """Those of ``values`` that apply to a point: options only where its method (or other row) has them.

        This is so for tables of options whose key is an axis; elsewhere `load` refuses an option that is not there.
        """

        def has(key: str) -> bool:
            rows = self._rows_of(key)
            return rows is None or key.rpartition(".")[2] in rows.row(str(point[rows.name_key])).options.model_fields

        return {key: value for key, value in values.items() if has(key)}

    def _rows_of(self, key: str) -> PluginPoint | None:
        """The axis, a plug-in point, whose rows' option a key is; None for all other keys."""
        rows = BY_OPTIONS.get(key.rpartition(".")[0])
        if rows is None or rows.takes_several or key == rows.name_key:
            return None
        return rows if any(axis.key == rows.name_key for axis in self.axes) else None

    def check_options(self) -> None:
        """ScenarioError for a method (or other row) that is unknown, and for an option that none of an axis has."""
        for axis in self.axes:
            rows = BY_NAME_KEY.get(axis.key)
            if rows is None or rows.options_key is None or rows.takes_several:
                continue
            for value in axis.values:
                try:
                    with beside(self.scenario):
                        rows.row(shown(value))
                except ValueError as error:
                    raise ScenarioError(f"{axis.key}: {error}", key=axis.key, source=COMMAND_LINE) from None
        for key in (*(axis.key for axis in self.axes), *(key for key, _ in leaves(self.overrides))):
            rows = self._rows_of(key)
            if rows is None:
                continue
            values = next(axis.values for axis in self.axes if axis.key == rows.name_key)
            known = {name for value in values for name in rows.row(value).options.model_fields}
            table, _, option = key.rpartition(".")
            if option not in known:
                choices = [f"{table}.{name}" for name in sorted(known)]
                why = f"unknown key {key}: none of {', '.join(map(shown, values))} has it; "
                raise ScenarioError(why, key=key, given=key, choices=choices, source=COMMAND_LINE)

    def load(self, point: Point, seed: int | None = None) -> Loaded:
        own = {key: value for key, value in point.items() if key != METHOD}
        seeds = {} if seed is None else {SEED: seed}
        method = shown(point[METHOD]) if METHOD in point else None
        return load(self.scenario, {**self.applied(point, self.overrides), **own, **seeds}, method)

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

    def score(self, first_seed: int | None = None) -> RunScore:
        """The metric by which the runs of its first point are judged. ScenarioError as of `rows`."""
        self.check_options()
        return score_of(self.load(next(iter(self.points)), first_seed).scenario.train)

    def without_options(self) -> Grid:
        """The grid without overrides of methods' options, which only some methods have."""
        options = "method_options"
        common = {key: value for key, value in self.overrides.items() if key.partition(".")[0] != options}
        return replace(self, overrides=common)

    def seeds(self, count: int | None, first_seed: int | None, start: int, default: int) -> tuple[int, ...]:
        """The seeds that an axis names, or ``count`` (or else ``default``) of them from ``start`` on."""
        named = next((axis.values for axis in self.axes if axis.key == SEED), None)
        if named is None:
            return tuple(range(start, start + (count or default)))
        text = f"{SEED} = {', '.join(map(shown, named))}"
        if count is not None or first_seed is not None:
            raise ScenarioError(f"{text}: names the seeds; leave out ", Argument("seeds"), " and ", Argument("seed"))
        if self.zipped:
            raise ScenarioError(
                ZIPPED,
                f": {text}: every cell has all seeds, so they cannot stand beside the values of other keys; leave out ",
                ZIPPED,
                ", or make a sweep per seed",
            )
        if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in named):
            raise ScenarioError(f"{text}: must be integers from 0 on")
        return named


def row_of(method: str, settings: Point) -> ExperimentRow:
    """A method with these settings, named as `variant_name` does."""
    name = variant_name(method, settings)
    return ExperimentRow(name, name, method, settings)


# --- words --------------------------------------------------------------------------------------------------------


def grid_of(scenario: Source, words: Sequence[str], zipped: bool = False) -> Grid:
    """The grid of KEY=VALUE words: a word with several values is an axis, one with a single value an override.

    ScenarioError for a word that is none, an empty or repeated value, and a key that is named twice.
    """
    axes: list[Axis] = []
    overrides: list[tuple[str, Any]] = []
    for word in words:
        key, value = parse(word)
        text = word.partition("=")[2]
        if any(key == axis.key for axis in axes):
            raise ScenarioError(
                f"{key}: is named twice; write all its values as one list, {EXAMPLE}", source=COMMAND_LINE
            )
        if len(split(text)) == 1:
            overrides.append((key, value))
        else:
            axes.append(axis_of(key, parsed_list(text, key)))
    for axis in axes:
        if any(axis.key == key for key, _ in overrides):
            raise ScenarioError(f"{axis.key}: is named twice; write all its values as one list", source=COMMAND_LINE)
    refuse_repeated(overrides)
    return Grid(scenario, tuple(axes), dict(overrides), zipped)


def axis_of(key: str, values: Iterable[Any], source: str = COMMAND_LINE) -> Axis:
    """The axis of a key; ScenarioError for a list without values, and for a repeated value."""
    kept = tuple(values)
    if not kept:
        raise ScenarioError(f"{key}: write values separated by commas, for example {EXAMPLE}", key=key, source=source)
    texts = [shown(value) for value in kept]
    for text in texts:
        if texts.count(text) > 1:
            raise ScenarioError(f"{key} = {text}: is named twice; name each value once", key=key, source=source)
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
            raise ScenarioError(f"{axis.key}: takes one value here; {names} take several", source=COMMAND_LINE)
        chosen[axis.key] = list(map(shown, axis.values))
    chosen |= {key: [shown(value)] for key, value in grid.overrides.items() if key in keys}
    others = {key: value for key, value in grid.overrides.items() if key not in keys}
    return replace(grid, axes=(), overrides=others), chosen


# --- names --------------------------------------------------------------------------------------------------------


def label(settings: Point) -> str:
    """``method=fedbr train.lr=0.05``."""
    return display_name(" ".join(f"{key}={shown(value)}" for key, value in settings.items()))


def variant_name(method: str, settings: Point) -> str:
    """A folder's name in the order of the settings, such as ``fedavg-server-fedadam-lr-0.01``."""
    words = [f"{last_part(key)} {shown(value)}".lower() for key, value in settings.items() if key != METHOD]
    name = _word(method) if method.startswith(FLOWER_APP) else method  # whose name has slashes
    return "-".join([name, *(re.sub(r"[^a-z0-9.]+", "-", word).strip("-") for word in words)])


def cell_name(method: str, settings: Point) -> str:
    """A folder's name, such as ``fedbr-lr-0.05``, that depends on the settings alone and not on their order.

    A value with letters that names do not have ends in a hash, to be like no other.
    """
    words = [(last_part(key), shown(value)) for key, value in sorted(settings.items()) if key != METHOD]
    return folder_name([method, *(word for pair in words for word in pair)])


def last_part(key: str) -> str:
    """``lr`` of ``train.lr``."""
    return key.rpartition(".")[2]


def folder_name(words: Sequence[str]) -> str:
    name = "-".join(map(_word, words))
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{_hash(name)}"


def _word(value: str) -> str:
    word = re.sub(r"[^A-Za-z0-9._]+", "-", value).strip("-.")
    is_same = word == value and len(value) <= LONGEST_WORD
    return word if is_same else "-".join(filter(None, [word.lower()[:LONGEST_WORD], _hash(value)]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
