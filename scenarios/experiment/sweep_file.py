"""Sweeps and decisions as TOML files: a scenario, the grid, what holds for all runs, and how many seeds.

scenario = "digits"             # a shipped one, or a file beside this one
seeds = 3
parallel = 2
targets = [0.8, 0.9]            # of the score: also ["rmse=4"]
at = { bytes = ["1 MB", "5 MB"] }
judge = "test"                  # or "validation"
rows = [{ method = "fedavg" }, { method = "fedbr", train.lr = 0.05 }]   # beside or in place of a grid

[grid]                          # or [zip]: lists side by side
method = ["fedavg", "fedbr"]
train.lr = [0.05, 0.1]

[overrides]
rounds.max = 20

[decide]                        # of fedbr decide alone, beside or in place of a grid
target = 0.9                    # or "90 %", or "rmse=4"
cost = "bytes"
budget = { bytes = "5 MB", joules_per_device = "5 Wh" }
candidates = "starter"          # or a list of tables: [{ method = "fedavg" }, { method = "fedbr", train.lr = 0.05 }]
draws = 50
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from edge.protocol.spelling import nearest
from scenarios.config import fleet_files, search_path
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import BY_OPTIONS, WHOLE
from scenarios.config.tables import TomlValue, leaves
from scenarios.config.toml_source import read
from scenarios.config.toml_writer import toml_value
from scenarios.experiment.grid import METHOD, Grid, axis_of, grid_of

KEYS = ("scenario", "grid", "zip", "rows", "overrides", "seeds", "parallel", "targets", "at", "judge", "decide")
KINDS = {dict: "a table", list: "a list", str: "text", int: "an integer", float: "a number"}
DECIDE = {"target": float, "cost": str, "budget": dict, "candidates": str, "draws": int}
"""Key of the table ``decide`` -> its type; ``candidates`` may also be a list of tables"""
DECIDE_KEYS = [f"decide.{key}" for key in DECIDE]


@dataclass(frozen=True)
class SweepFile:
    """A grid, and how it is to be run; None and () where the file does not say."""

    grid: Grid
    seeds: int | None = None
    parallel: int | None = None
    targets: tuple[float | str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    judge: Literal["test", "validation"] | None = None
    decide: Mapping[str, Any] = field(default_factory=dict)
    """What a decision looks for, by the keys of `DECIDE`; listed candidates are the grid's"""


def requested(name: str, words: Sequence[str], zipped: bool = False) -> SweepFile:
    """The sweep of a scenario or a sweep file, with KEY=VALUE words, which replace the file's of the same keys."""
    own = grid_of(name, words, zipped)
    if not is_sweep_file(name):
        return SweepFile(own)
    request = read_file(Path(name))
    keys = {axis.key for axis in own.axes} | own.overrides.keys()
    axes = (*(axis for axis in request.grid.axes if axis.key not in keys), *own.axes)
    common = {key: value for key, value in request.grid.overrides.items() if key not in keys}
    zipped = zipped or request.grid.zipped
    return replace(request, grid=replace(request.grid, axes=axes, overrides={**common, **own.overrides}, zipped=zipped))


def is_sweep_file(name: str) -> bool:
    """Whether this is a TOML file of a sweep, which names a scenario; ScenarioError for one that cannot be read."""
    path = Path(name)
    return path.suffix == ".toml" and path.is_file() and "scenario" in read(path)


def read_file(path: Path) -> SweepFile:
    """The sweep of a file; ScenarioError that names the file and the key."""
    raw = read(path)

    def wrong(key: str, value: Any, why: str) -> ScenarioError:
        return ScenarioError(f"{path.name}: {key} = {toml_value(value)}: must be {why}")

    def typed(key: str, kind: type, default: Any) -> Any:
        value = raw.get(key, default)
        if key in raw and not isinstance(value, kind):
            raise wrong(key, value, KINDS[kind])
        if kind is int and value is not None and (isinstance(value, bool) or value < 1):
            raise wrong(key, value, "an integer above 0")
        return value

    def own(settings: Mapping[str, TomlValue]) -> dict[str, TomlValue]:
        """Settings with the paths of files beside this one."""
        return {key: fleet_files.placed(key, value, path.parent) for key, value in settings.items()}

    def points(tables: Sequence[Mapping[str, TomlValue]], whole: Collection[str] = WHOLE) -> list[dict[str, TomlValue]]:
        return [own(dict(leaves(each, whole, has_empty=True))) for each in tables]

    for key in raw:
        if key not in KEYS:
            raise ScenarioError(f"{path.name}: unknown key {key}, {nearest(key, KEYS)}")
    rows = typed("rows", list, [])
    if not all(isinstance(row, dict) for row in rows):
        raise wrong("rows", rows, 'a list of tables, such as [{ method = "fedavg" }]')
    decide, listed = dict(typed("decide", dict, {})), points(rows, [key for key in WHOLE if key not in BY_OPTIONS])
    for key, value in list(decide.items()):
        if key not in DECIDE:
            raise ScenarioError(f"{path.name}: unknown key decide.{key}, {nearest(f'decide.{key}', DECIDE_KEYS)}")
        if key == "target" and _is_target(value):
            continue
        if key == "candidates" and isinstance(value, list) and all(isinstance(each, dict) for each in value):
            listed = points(value)
        elif isinstance(decide[key], bool) or not isinstance(decide[key], DECIDE[key]):
            raise wrong(f"decide.{key}", value, KINDS[DECIDE[key]])
    if "grid" in raw and "zip" in raw:
        raise ScenarioError(f"{path.name}: grid, zip: name one of the two")
    axes = []
    for key, values in leaves(typed("zip" if "zip" in raw else "grid", dict, {})):
        if not isinstance(values, list):
            raise wrong(key, values, "a list; one value goes to [overrides]")
        axes.append(axis_of(key, [fleet_files.placed(key, value, path.parent) for value in values], path.name))
    targets = typed("targets", list, [])
    if not all(map(_is_target, targets)):
        raise wrong("targets", targets, 'a list of scores, such as [0.9] or ["rmse=4"]')
    name = typed("scenario", str, "")
    beside = path.parent / name
    scenario = str(beside) if beside.suffix == ".toml" and beside.is_file() else name
    common = own(dict(leaves(typed("overrides", dict, {}), WHOLE, has_empty=True)))
    grid = Grid(scenario, tuple(axes), common, "zip" in raw, tuple(listed))
    methods = [value for axis in axes if axis.key == METHOD for value in axis.values]
    for method in (*methods, *(point[METHOD] for point in (common, *listed) if METHOD in point)):
        try:
            search_path.check_app(method, path.name)
        except ValueError as error:
            raise ScenarioError(f"{path.name}: {METHOD}: {error}") from None
    sought = {key: value for key, value in decide.items() if key != "candidates" or not listed}
    return SweepFile(
        grid,
        typed("seeds", int, None),
        typed("parallel", int, None),
        tuple(targets),
        typed("at", dict, {}),
        typed("judge", str, None),
        sought,
    )


def _is_target(value: Any) -> bool:
    """Whether a value may be a target: a number, or text such as "90 %" or "rmse=4"."""
    text = value.rpartition("=")[2].strip().removesuffix("%") if isinstance(value, str) else value
    try:
        return not isinstance(value, bool) and isinstance(float(text), float)
    except (TypeError, ValueError):
        return False
