"""The runs of one part of a trial. All parts share a folder, in which a run is named by variant, skew and seed.

A variant that the scenario does not allow is left out with the reason; a mistake of the user's is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge.protocol.spelling import nearest
from scenarios.config.errors import COMMAND_LINE, Argument, ScenarioError
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.grid import METHOD, Grid, axis_of, choices_of
from scenarios.experiment.run_set import RunSet
from scenarios.experiment.sweep import check_targets
from scenarios.papers.trial import analyses, speed_map
from scenarios.papers.trial.trial import KIND, NOTHING, PartAnalysis, Say, Trial, TrialRow
from scenarios.papers.trial.variants import PARTS, TrialPart, reference_of, skew_name

ANALYSES: Mapping[str, PartAnalysis] = {
    "calibrated": analyses.CALIBRATION,
    "skew": analyses.CALIBRATION,
    "bandit": analyses.BANDIT,
    "map": speed_map.ANALYSIS,
}
"""Part -> what it has beside the others."""
TARGETS = (0.25, 0.3, 0.35, 0.4)
VARIANT, SKEW = "variant", "skew"


def plan(
    grid: Grid,
    part_name: str = "details",
    seeds: int = 3,
    first_seed: int | None = None,
    targets: Sequence[float] = (),
    run_id: str | None = None,
    say: Say = lambda text: None,
) -> Trial:
    """The runs of a part, seed by seed; the axes ``variant`` and ``skew`` of the grid choose by name.

    ``targets``: accuracies of the tables, of which figures show the first; by default `TARGETS` and the scenario's.
    ScenarioError for a user's mistake, and if no variant is left.
    """
    if part_name not in PARTS:
        raise ScenarioError(Argument("part", repr(part_name)), f": {nearest(part_name, PARTS)}")
    if METHOD in grid.overrides or any(axis.key == METHOD for axis in grid.axes):
        raise ScenarioError(
            f"method: those of a trial are named by its part; {VARIANT}=A,B chooses from them", source=COMMAND_LINE
        )
    grid, chosen = choices_of(grid, (VARIANT, SKEW))
    part, base = PARTS[part_name], grid.without_options().load({})
    part.check(load(grid.scenario, grid.overrides, "fedbr"))  # refuses options that FedBR does not take
    all_targets, target = _targets(targets, base)
    first = base.scenario.seed if first_seed is None else first_seed
    rows, left_out = _rows(grid, part_name, part, base, chosen)
    replace(grid, axes=(axis_of(METHOD, dict.fromkeys(row.method for row in rows)),)).check_options()
    trial = Trial(
        grid.scenario_name,
        grid.overrides,
        tuple(rows),
        tuple(range(first, first + seeds)),
        RunSet(KIND, base.name, (), run_id or KIND),
        all_targets,
        part_name,
        part,
        target,
        left_out,
        ANALYSES.get(part_name, NOTHING),
        say,
    )
    return trial.with_runs(lambda row, seed: _load(grid, row, seed))


def _targets(given: Sequence[float], base: Loaded) -> tuple[tuple[float, ...], float]:
    """(all targets, the one of the figures): that which is named first, else the scenario's, else the middle one."""
    goal = base.scenario.stop.target_accuracy
    if given:
        return check_targets(given), given[0]
    target = goal or TARGETS[len(TARGETS) // 2]
    return check_targets([*TARGETS, target]), target


def _rows(
    grid: Grid, name: str, part: TrialPart, base: Loaded, chosen: Mapping[str, Sequence[str]]
) -> tuple[list[TrialRow], dict[str, str]]:
    """Every chosen variant on every chosen skew that the scenario allows; and those left out, with reasons."""
    left_out: dict[str, str] = {}
    skews = _skews(grid, part, left_out)
    variants = {variant.name: variant for variant in part.variants(base)}
    for kind, known in ((VARIANT, list(variants)), (SKEW, list(skews))):
        for name_given in chosen[kind]:
            if name_given not in known:
                raise ScenarioError(
                    f"{kind}: no {kind} {name_given!r}: {nearest(name_given, known)}", source=COMMAND_LINE
                )
    rows: list[TrialRow] = []
    for skew in chosen[SKEW] or skews:
        seen: dict[str, str] = {}
        for variant in (variants[name] for name in variants if name in chosen[VARIANT] or not chosen[VARIANT]):
            folder = f"{skew}-{variant.name}"
            reference = f"{skew}-{reference_of(variant).name}"
            settings = {**skews[skew], **variant.settings}
            row = TrialRow(folder, folder, variant.method, settings, variant.name, skew, reference)
            try:
                key = repr(_load(grid, row, base.scenario.seed).scenario.model_dump())
                if key in seen:  # it names the values that an earlier one has without naming them
                    raise ScenarioError(f"the same runs as {seen[key]}")
            except ScenarioError as error:
                left_out.setdefault(variant.name, error.why)
            else:
                seen[key] = variant.name
                rows.append(row)
    if not rows:
        raise ScenarioError(f"--part {name}: no variant is left: {'; '.join(dict.fromkeys(left_out.values()))}")
    return rows, left_out


def _skews(grid: Grid, part: TrialPart, left_out: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Name -> overrides; invalid skews go into ``left_out``."""
    skews: dict[str, dict[str, Any]] = {}
    for words in part.skews:
        settings = parse_all(words)
        try:
            loaded = grid.without_options().load(settings)
        except ScenarioError as error:
            left_out[" ".join(words)] = error.why  # without the place: the user wrote nothing of it
        else:
            skews.setdefault(skew_name(loaded.scenario.data.partition), settings)
    return skews


def _load(grid: Grid, row: ExperimentRow, seed: int) -> Loaded:
    """The scenario of one run. ScenarioError for a detail that it does not allow."""
    own = replace(grid, axes=(axis_of(METHOD, [row.method]),))
    loaded = own.load({METHOD: row.method, **row.settings}, seed)
    replace(own, overrides=row.settings).check_options()  # those that no method has are dropped in silence
    return loaded
