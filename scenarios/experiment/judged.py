"""Judging a sweep on validation examples: the settings of each method under which its best round is the best.

Every run then evaluates clients' models on their validation examples and on nothing else, so that no choice can rest
on test examples. A setting whose training diverges is a result, and is never chosen; if every run diverges the sweep
fails.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from edge.protocol.better import HIGHER
from edge.protocol.fixed_point import DIVERGED
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.load import Loaded
from scenarios.config.overrides import parse, shown
from scenarios.experiment.experiment import Experiment, ExperimentRow, Result
from scenarios.experiment.grid import METHOD, Axis, Grid
from scenarios.experiment.run_set import missing_note
from scenarios.report.readings import quantity_of
from scenarios.report.tables import Number, Table, TableColumn
from scenarios.run.progress import Mean
from scenarios.run.score import RunScore

TEST, VALIDATION = "test", "validation"
JUDGES = (TEST, VALIDATION)
NOT_CHOSEN = ("eval.split", "eval.on", "eval.select", "eval.subset", "eval.drop_last")
"""Keys of what is evaluated"""
READ_AS = "best validation {} of any round ({}), mean ± half of the 95 % interval over seeds"
DIVERGED_NOTE = (
    "diverged: training gave numbers that are too large or not finite, and the run ended; it is never chosen"
)
LEAD = "Each setting was judged on the clients' validation examples alone; no run evaluated test examples."


def judged(grid: Grid, judge: str) -> Grid:
    """The grid whose runs are judged on these examples.

    ScenarioError for a judge that there is not, and for keys of what it evaluates.
    """
    if judge not in JUDGES:
        why = ": no examples are called so, "
        raise ScenarioError(Argument("judge", repr(judge)), why, given=judge, choices=JUDGES)
    if judge == TEST:
        return grid
    for key in (*grid.overrides, *(axis.key for axis in grid.axes), *(key for point in grid.listed for key in point)):
        if key in NOT_CHOSEN:
            why = f": evaluates clients' models on their validation examples alone; leave out {key}"
            raise ScenarioError(Argument("judge", VALIDATION), why)
    # An adaptation needs it, whatever the method.
    return replace(grid, overrides={**grid.overrides, "eval.on": "clients"})


def check(scenarios: Sequence[Loaded]) -> None:
    """ScenarioError for a scenario that holds out no validation examples."""
    if not all(loaded.scenario.data.validation for loaded in scenarios):
        raise ScenarioError("data.validation = 0: settings are chosen on validation examples; set data.validation=0.2")


def on_validation(loaded: Loaded) -> Loaded:
    """The scenario, which evaluates clients' validation examples alone whatever its file evaluates."""
    asked = loaded.scenario.eval
    adapt = replace(asked.adapt, before=False)
    own = replace(asked, on="clients", split="validation", select=None, subset=None, drop_last=False)
    own = replace(own, aggregators=False, adapt=adapt)
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"eval": own}))


def apart(done: Result) -> dict[str, Any]:
    """The runs, with those that diverged apart: these have not failed and are not missing.

    ``diverged``: run -> why, if any did.
    """
    failed = done.get("failed", {})
    diverged = {name: why for name, why in failed.items() if DIVERGED in why}
    notes = {
        "failed": {name: why for name, why in failed.items() if name not in diverged},
        "missing": [name for name in done.get("missing", []) if name not in diverged],
        "diverged": diverged,
    }
    others = {key: value for key, value in done.items() if key not in notes}
    return others | {key: value for key, value in notes.items() if value}


class Setting(Struct, frozen=True):
    """One setting over its seeds."""

    method: str
    settings: dict[str, str]
    seeds: list[int]
    """Those of ``validation`` and ``rounds``, in which a run that diverged has None"""
    diverged: list[int]
    validation: Mean
    rounds: list[int | None]


class ChosenSetting(Setting, frozen=True):
    """The best setting of its method."""

    at_edge: list[str]
    """Keys whose chosen value is the lowest or highest: a better one may lie beyond"""


class JudgedSettings(Struct, frozen=True):
    """The settings of a sweep that is judged on validation examples, and the best one of each method."""

    judge: str
    settings: list[Setting]
    chosen: list[ChosenSetting]


def choice(experiment: Experiment, axes: Sequence[Axis], done: Result) -> JudgedSettings:
    """The best setting of each method; ``done`` as of `apart`.

    The earlier of two settings that are equally good is chosen; one that diverged with any seed never is, and a method
    whose settings all did has none.
    """
    rows = [setting for row in experiment.rows if (setting := _setting(experiment, row, done)) is not None]
    usable = [row for row in rows if not row.diverged]
    chosen = []
    for method in dict.fromkeys(row.method for row in usable):
        of_method = [row for row in usable if row.method == method]
        better = experiment.score.better
        known = [(row.validation.mean, row) for row in of_method if row.validation.mean is not None]
        best = (max if better is HIGHER else min)(known, key=itemgetter(0))[1] if known else of_method[0]
        edges = []
        for axis in axes:
            numbers = [value for value in axis.values if isinstance(value, int | float)]
            ends = (shown(min(numbers)), shown(max(numbers))) if len(numbers) == len(axis.values) > 1 else ()
            if best.settings.get(axis.key) in ends:
                edges.append(axis.key)
        chosen.append(ChosenSetting(**asdict(best), at_edge=edges))
    return JudgedSettings(VALIDATION, rows, chosen)


def _setting(experiment: Experiment, row: ExperimentRow, done: Result) -> Setting | None:
    """One setting over its seeds; None if none of its runs has ended or diverged."""
    ended = experiment.runs_by_row(done["runs"]).get(row.name, {})
    diverged = [seed for seed in experiment.seeds if experiment.run_name(row, seed) in done.get("diverged", {})]
    best = {seed: run["best_round"] or {} for seed, run in ended.items()} | {seed: {} for seed in diverged}
    if not best:
        return None
    return Setting(
        row.method,
        {key: shown(value) for key, value in row.settings.items() if key != METHOD},
        sorted(best),
        diverged,
        Mean.of([best[seed].get("score") for seed in sorted(best)]),
        [best[seed].get("rounds") for seed in sorted(best)],
    )


def commands(scenario: str, overrides: Sequence[str], chosen: Sequence[ChosenSetting]) -> Iterator[str]:
    """The command that makes a run of each chosen setting."""
    for row in chosen:
        yield shlex.join(["fedbr", "run", scenario, *run_words(overrides, row.method, row.settings)])


def run_words(overrides: Sequence[str], method: str, settings: Mapping[str, str]) -> list[str]:
    """KEY=VALUE that give a run of a setting, each key once."""
    chosen = {"method": method, **settings}
    common = [override for override in overrides if parse(override)[0] not in chosen]
    return [*common, *(f"{key}={value}" for key, value in chosen.items())]


def tables(choice: JudgedSettings, score: RunScore, missing: Sequence[str], has_diverged: bool) -> list[Table]:
    """The best setting of each method; then all of them. ``missing``: names of runs."""
    columns = [
        *map(TableColumn, ("method", "settings")),
        TableColumn(f"validation {score.metric}", quantity_of(score), missing="-"),
    ]
    columns.append(TableColumn("best round"))
    every, chosen = ([_cells(row) for row in rows] for rows in (choice.settings, choice.chosen))
    edges = [
        f"{row.method}: {', '.join(row.at_edge)} is chosen at the edge of its grid: a better value may lie beyond"
        for row in choice.chosen
        if row.at_edge
    ]
    settled = {row.method for row in choice.chosen}
    none = [
        f"{method}: no setting is free of runs that diverged"
        for method in dict.fromkeys(row.method for row in choice.settings)
        if method not in settled
    ]
    notes = [
        READ_AS.format(score.metric, score.over_clients),
        *missing_note(missing),
        *([DIVERGED_NOTE] if has_diverged else []),
    ]
    return [
        Table("chosen on validation examples", columns, chosen, [*edges, *none]),
        Table("all settings", columns, every, notes),
    ]


def _cells(row: Setting) -> list[str | Number]:
    diverged, seeds = len(row.diverged), len(row.seeds)
    partly = f"diverged with {diverged} of {seeds} seeds" if diverged < seeds else "diverged"
    rounds = ", ".join("-" if count is None else str(count) for count in row.rounds)
    accuracy = partly if diverged else Number.mean(row.validation)
    settings = " ".join(f"{key}={value}" for key, value in row.settings.items())
    return [row.method, settings, accuracy, rounds]
