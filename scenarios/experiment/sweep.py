"""A sweep: a scenario over a grid of values and several seeds, as one run set.

The default run id follows from the scenario, the axes and the overrides of all runs. Thus the same command, also with
more seeds, more values or more methods, finds the runs that are there and makes those that are missing. Runs of an
earlier command that the new one does not plan stay in the folder; its result leaves them out.

    planned = plan("digits", [axis("train.lr", [0.05, 0.1])], seeds=3)
    done = make_runs(planned.run_set, host, InTurn(launcher), stopped)
    result = read_off(planned, done)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded, load
from scenarios.config.toml_source import parse
from scenarios.config.toml_writer import toml_text
from scenarios.experiment import results
from scenarios.experiment.grid import (
    METHOD,
    SweepAxis,
    SweepCell,
    applied,
    check_rows,
    fixed,
    folder_name,
    last_part,
    points,
    show,
)
from scenarios.experiment.run_set import PlannedRun, RunSet, resolved_keys

KIND = "sweep"
SEED = "seed"
SEEDS = 3


@dataclass(frozen=True)
class SweepPlan:
    """The cells of a sweep, and the runs that they need."""

    scenario: str
    overrides: tuple[str, ...]
    """Of all runs"""
    axes: tuple[SweepAxis, ...]
    cells: tuple[SweepCell, ...]
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    """Accuracies in (0, 1] whose costs are reported"""
    run_set: RunSet


def plan(
    scenario: str,
    axes: Sequence[SweepAxis],
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    first_seed: int | None = None,
    zipped: bool = False,
    targets: Sequence[float] = (),
    run_id: str | None = None,
) -> SweepPlan:
    """The runs of every cell, seed by seed.

    ``overrides``: ``KEY=VALUE`` of all runs; ``seeds``: how many, counted up from ``first_seed`` or the scenario's own
    (3 by default), unless an axis names them by the key ``seed``; ``zipped``: axes side by side instead of all
    combinations; ``targets``: accuracies in (0, 1], by default the scenario's. ScenarioError for what `load` refuses in
    any cell, and for two cells that would be the same run.
    """
    named = next((axis for axis in axes if axis.key == SEED), None)
    axes = [axis for axis in axes if axis.key != SEED]
    if named is not None and zipped:
        raise ScenarioError(
            f"--zip: {SEED} = {', '.join(named.values)}: every cell has all seeds, so they cannot stand beside the "
            "values of other keys; leave out --zip, or make a sweep per seed"
        )
    check_rows(axes, overrides)
    chosen = _distinct(axes, points(axes, zipped))
    scenarios = [_load(scenario, axes, overrides, point, first_seed) for point in chosen]
    _refuse_same(axes, chosen, scenarios)
    cells = [_cell(applied(axes, point), loaded) for point, loaded in zip(chosen, scenarios, strict=True)]
    numbers = _seeds(named, seeds, first_seed, scenarios[0].scenario.seed)
    if not axes and len(numbers) == 1:
        raise ScenarioError("--seeds 1: nothing varies; name values of a key, such as train.lr with 0.05 and 0.1")
    runs = [
        PlannedRun(cell.run_name(seed), _load(scenario, axes, overrides, point, seed), {})
        for seed in numbers
        for cell, point in zip(cells, chosen, strict=True)
    ]
    goal = scenarios[0].scenario.stop.target_accuracy
    return SweepPlan(
        scenario,
        tuple(overrides),
        tuple(axes),
        tuple(cells),
        numbers,
        check_targets(targets) or (() if goal is None else (goal,)),
        RunSet(KIND, scenarios[0].name, runs, run_id or default_run_id(axes, overrides, scenarios)),
    )


def _distinct(axes: Sequence[SweepAxis], all_points: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The points without those that differ only in what does not apply to them."""
    return list({tuple(applied(axes, point).items()): point for point in all_points}.values())


def _refuse_same(axes: Sequence[SweepAxis], chosen: Sequence[Mapping[str, str]], scenarios: Sequence[Loaded]) -> None:
    first: dict[str, str] = {}
    for point, loaded in zip(chosen, scenarios, strict=True):
        text = toml_text(loaded.scenario.model_dump())
        words = " ".join(f"{key}={show(value)}" for key, value in applied(axes, point).items())
        if text in first:
            raise ScenarioError(f"{first[text]} and {words} are the same runs; name each value once")
        first[text] = words


def _load(
    scenario: str, axes: Sequence[SweepAxis], overrides: Sequence[str], point: Mapping[str, str], seed: int | None
) -> Loaded:
    own = applied(axes, point)
    words = [*fixed(axes, point, overrides), *(f"{key}={value}" for key, value in own.items() if key != METHOD)]
    method = show(own[METHOD]) if METHOD in own else None
    return load(scenario, [*words, *([] if seed is None else [f"{SEED}={seed}"])], method)


def _cell(own: Mapping[str, str], loaded: Loaded) -> SweepCell:
    method = loaded.scenario.method
    settings = {key: method if key == METHOD else show(value) for key, value in own.items()}
    return SweepCell(method, settings, tuple(f"{key}={value}" for key, value in own.items()))


def _seeds(named: SweepAxis | None, count: int | None, first_seed: int | None, start: int) -> tuple[int, ...]:
    if named is None:
        return tuple(range(start, start + (count or SEEDS)))
    if count is not None or first_seed is not None:
        raise ScenarioError(f"{SEED} = {', '.join(named.values)}: names the seeds; leave out --seeds and --seed")
    if not all(value.isdecimal() for value in named.values):
        raise ScenarioError(f"{SEED} = {', '.join(named.values)}: must be integers from 0 on")
    numbers = tuple(map(int, named.values))
    if len(set(numbers)) < len(numbers):
        raise ScenarioError(f"{SEED} = {', '.join(named.values)}: name each seed once")
    return numbers


def check_targets(targets: Sequence[float]) -> tuple[float, ...]:
    """The targets, each once and the smallest first; ScenarioError for one that is no accuracy."""
    for target in targets:
        if not 0 < target <= 1:
            raise ScenarioError(f"--target {target:g}: must be an accuracy above 0 and at most 1, for example 0.9")
    return tuple(sorted(set(targets)))


def default_run_id(axes: Sequence[SweepAxis], overrides: Sequence[str], scenarios: Sequence[Loaded]) -> str:
    """``sweep-lr-3fa9c1``: the keys of the axes, and a hash of these keys and of the overrides of all runs.

    Values count as ``scenarios``, those of the cells, have them: "20 Mbit/s" is "20000 kbit/s". Method and seed, whose
    runs have folders of their own names, do not count; without anything else it is ``sweep``.
    """
    resolved: dict[str, Any] = {}
    for loaded in reversed(scenarios):
        resolved |= resolved_keys(loaded.scenario)
    given = dict(parse(override) for override in overrides)
    common = {key: _resolved(key, value, resolved) for key, value in given.items() if key not in (METHOD, SEED)}
    keys = sorted(axis.key for axis in axes if axis.key != METHOD)
    text = json.dumps([keys, common], sort_keys=True, default=str)
    end = [hashlib.sha256(text.encode()).hexdigest()[:6]] if keys or common else []
    return folder_name([KIND, *map(last_part, keys), *end])


def _resolved(key: str, value: Any, resolved: Mapping[str, Any]) -> Any:
    """A value as the scenario has it; as it was given where the scenario leaves it out, such as None."""
    if isinstance(value, Mapping):
        return {name: _resolved(f"{key}.{name}", each, resolved) for name, each in value.items()}
    return _plain(resolved.get(key, value))


def _plain(value: Any) -> Any:
    """Without the difference between 20 and 20.0, which no scenario makes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_off(planned: SweepPlan, done: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of ``sweep``, from the result of `make_runs`: ``rows``, a cell each, and ``tests`` of all pairs."""
    names = {cell.label: {seed: cell.run_name(seed) for seed in planned.seeds} for cell in planned.cells}
    curves = results.trails(names, done["runs"])
    there = {label: runs for label, runs in curves.items() if runs}
    return {
        "scenario": planned.scenario,
        "overrides": list(planned.overrides),
        "axes": {axis.key: [show(value) for value in axis.values] for axis in planned.axes},
        "seeds": list(planned.seeds),
        "targets": list(planned.targets),
        "rows": [_row(cell, there[cell.label], planned) for cell in planned.cells if cell.label in there],
        "tests": results.tests(there, planned.targets),
        **done,
    }


def _row(cell: SweepCell, runs: Mapping[int, Any], planned: SweepPlan) -> dict[str, Any]:
    return {
        "name": cell.label,
        "method": cell.method,
        "settings": dict(cell.settings),
        "runs": [cell.run_name(seed) for seed in runs],
        **results.statistics(runs, planned.targets),
    }
