"""Sweeps as TOML files: a scenario, the grid, what holds for all runs, and how many seeds.

scenario = "digits"             # a shipped one, or a file beside this one
seeds = 3
parallel = 2
targets = [0.8, 0.9]

[grid]                          # or [zip]: lists side by side
method = ["fedavg", "fedbr"]
train.lr = [0.05, 0.1]

[overrides]
rounds.max = 20
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import WHOLE
from scenarios.config.tables import leaves
from scenarios.config.toml_source import read
from scenarios.config.toml_writer import toml_value
from scenarios.experiment.grid import Axis, Grid, axis_of, grid_of

KEYS = ("scenario", "grid", "zip", "overrides", "seeds", "parallel", "targets")
KINDS = {dict: "a table", list: "a list", str: "text", int: "an integer"}


@dataclass(frozen=True)
class SweepFile:
    """A grid, and how it is to be run; None and () where the file does not say."""

    grid: Grid
    seeds: int | None = None
    parallel: int | None = None
    targets: tuple[float, ...] = ()


def requested(name: str, words: Sequence[str], zipped: bool = False) -> SweepFile:
    """The sweep of a scenario or a sweep file, with KEY=VALUE words, which replace the file's of the same keys."""
    own = grid_of(name, words, zipped)
    if not is_sweep_file(name):
        return SweepFile(own)
    request = read_file(Path(name))
    keys = {axis.key for axis in own.axes} | own.overrides.keys()
    axes = (axis for axis in request.grid.axes if axis.key not in keys)
    common = {key: value for key, value in request.grid.overrides.items() if key not in keys}
    grid = replace(
        request.grid,
        axes=(*axes, *own.axes),
        overrides={**common, **own.overrides},
        zipped=zipped or request.grid.zipped,
    )
    return replace(request, grid=grid)


def is_sweep_file(name: str) -> bool:
    """Whether this is a TOML file of a sweep, which names a scenario; ScenarioError for one that cannot be read."""
    path = Path(name)
    return path.suffix == ".toml" and path.is_file() and "scenario" in read(path, set())


def read_file(path: Path) -> SweepFile:
    """The sweep of a file; ScenarioError that names the file and the key."""
    raw = read(path, set())
    for key in raw:
        if key not in KEYS:
            raise ScenarioError(f"{path.name}: unknown key {key}, {nearest(key, KEYS)}")
    if "grid" in raw and "zip" in raw:
        raise ScenarioError(f"{path.name}: grid, zip: name one of the two")
    axes = _typed(path, raw, "zip" if "zip" in raw else "grid", dict, {})
    targets = _typed(path, raw, "targets", list, [])
    if not all(isinstance(target, float | int) for target in targets):
        raise ScenarioError(
            f"{path.name}: targets = {toml_value(targets)}: must be a list of accuracies, such as [0.9]"
        )
    name = _typed(path, raw, "scenario", str, "")
    beside = path.parent / name
    grid = Grid(
        str(beside) if beside.suffix == ".toml" and beside.is_file() else name,
        tuple(_axes(path, axes)),
        dict(leaves(_typed(path, raw, "overrides", dict, {}), WHOLE)),
        "zip" in raw,
    )
    return SweepFile(grid, _count(path, raw, "seeds"), _count(path, raw, "parallel"), tuple(map(float, targets)))


def _axes(path: Path, lists: Mapping[str, Any]) -> Iterator[Axis]:
    for key, values in leaves(lists):
        if not isinstance(values, list):
            raise ScenarioError(
                f"{path.name}: {key} = {toml_value(values)}: must be a list; one value goes to [overrides]"
            )
        yield axis_of(key, values, path.name)


def _count(path: Path, raw: Mapping[str, Any], key: str) -> int | None:
    count: int | None = _typed(path, raw, key, int, None)
    if count is not None and (isinstance(count, bool) or count < 1):
        raise ScenarioError(f"{path.name}: {key} = {toml_value(count)}: must be an integer above 0")
    return count


def _typed(path: Path, raw: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = raw.get(key, default)
    if key in raw and not isinstance(value, kind):
        raise ScenarioError(f"{path.name}: {key} = {toml_value(value)}: must be {KINDS[kind]}")
    return value
