"""Tuning on validation examples: the settings of a grid under which each method's best round is the best.

Every run evaluates clients' models on their validation examples and on nothing else, so that no choice can rest on
test examples. A setting whose training diverges is a result, and is never chosen; if every run diverges the study
fails. One folder holds a study: a run folder per setting and seed, ``study.json``, ``table.csv`` and ``report.html``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from coordinator.methods.registry import resolve
from edge.protocol.fixed_point import DIVERGED
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.toml_source import parse
from scenarios.experiment.compare import OPTIONS, check_options, check_settings, variants
from scenarios.experiment.run_set import PlannedRun, RunSet, Study, missing_note
from scenarios.experiment.variant import Variant
from scenarios.report import terminal
from scenarios.report.columns import PERCENT, cells
from scenarios.report.csv_files import write_csv
from scenarios.report.pages import PageTable, write_study
from scenarios.run.progress import spread

KIND = "tune"
NOT_CHOSEN = ("eval.split", "eval.on", "eval.select", "eval.subset", "eval.drop_last")
"""Keys of what tuning evaluates"""
EXAMPLE = "train.lr=0.01,0.03,0.1"
READ_AS = "best validation accuracy of any round (mean over clients), mean ± deviation over seeds"
DIVERGED_NOTE = (
    "diverged: training gave numbers that are too large or not finite, and the run ended; it is never chosen"
)


@dataclass(frozen=True)
class TunePlan:
    """The settings of each method, and the runs that they need."""

    scenario: str
    overrides: Sequence[str]
    """From the command line"""
    variants: Sequence[Variant]
    grid: Mapping[str, Sequence[str]]
    """Key -> values, as they were written"""
    run_set: RunSet


def grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """The lists of the options ``--grid``; ScenarioError if there are none, or one cannot be read."""
    if not texts:
        raise ScenarioError(f"name values to choose from with --grid {EXAMPLE}")
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        pieces = [piece.strip() for piece in values.split(",")]
        if not (key and equals and all(pieces)):
            raise ScenarioError(f"--grid {text!r}: write a key and values separated by commas, for example {EXAMPLE}")
        if key in found:
            raise ScenarioError(f"--grid: {key} is named twice")
        twice = [piece for piece in pieces if pieces.count(piece) > 1]
        if twice:
            raise ScenarioError(f"--grid {text!r}: {twice[0]!r} is named twice")
        found[key] = pieces
    return found


def plan(
    scenario: str,
    overrides: Sequence[str],
    methods: str,
    values: Mapping[str, Sequence[str]],
    seeds: int,
    first_seed: int | None = None,
    run_id: str | None = None,
) -> TunePlan:
    """The runs, seed by seed; an option of a method varies for the methods that have it.

    ScenarioError for what `compare.variants` and `load` refuse, for a scenario that holds out no validation examples,
    and for an option in the grid that no method has.
    """
    asked = [f"{key}={found[0]}" for key, found in values.items()]
    for override in (*overrides, *asked):
        _refuse_test(override)
    given, overrides = overrides, [*overrides, 'eval.on="clients"']  # which an adaptation needs, whatever the method
    if not check_settings(scenario, overrides).scenario.data.validation:
        raise ScenarioError("data.validation = 0: settings are chosen on validation examples; set data.validation=0.2")
    first = variants(scenario, overrides, methods, first_seed)
    names = [loaded.scenario.method for loaded in first]
    check_options(asked, names)
    chosen = [variant for name in names for variant in _settings(name, values)]
    start = first[0].scenario.seed
    runs = [
        PlannedRun(f"{variant.name}-seed{seed}", _loaded(scenario, overrides, variant, seed, first[0].name), {})
        for seed in range(start, start + seeds)
        for variant in chosen
    ]
    return TunePlan(scenario, given, chosen, values, RunSet(KIND, first[0].name, runs, run_id))


def _refuse_test(override: str) -> None:
    key = parse(override)[0]
    if key in NOT_CHOSEN:
        raise ScenarioError(f"{key}: tuning evaluates clients' models on their validation examples alone; leave it out")


def _settings(method: str, values: Mapping[str, Sequence[str]]) -> list[Variant]:
    """The product of the values that apply to a method."""
    known = {f"{OPTIONS}.{name}" for name in resolve(method).options.model_fields}
    own = {key: found for key, found in values.items() if not key.startswith(OPTIONS) or key in known}
    return [
        Variant(method, tuple(f"{key}={value}" for key, value in zip(own, combination, strict=True)))
        for combination in product(*own.values())
    ]


def _loaded(scenario: str, overrides: Sequence[str], variant: Variant, seed: int, name: str) -> Loaded:
    """The scenario of one run, which evaluates validation examples alone whatever its file evaluates."""
    loaded = load(scenario, [*overrides, *variant.overrides, f"seed={seed}"], variant.method)
    asked = loaded.scenario.eval
    adapt = replace(asked.adapt, before=False)
    own = replace(asked, on="clients", split="validation", select=None, subset=None, drop_last=False, adapt=adapt)
    return replace(loaded, name=name, scenario=loaded.scenario.model_copy(update={"eval": own}))


def study(planned: TunePlan) -> Study:
    """The study of a `plan`."""
    return Study(planned.run_set, partial(read_off, planned), partial(draw, planned), show, write_tables)


def read_off(planned: TunePlan, done: Mapping[str, Any]) -> dict[str, Any]:
    """What ``study tune --json`` prints: a row per setting, and ``chosen``, the best setting of each method.

    The earlier of two settings that are equally good is chosen; one that diverged with any seed never is, and a method
    whose settings all did has none. ``diverged``: run -> why, if any did; these have not failed and are not missing.
    """
    found = _with_diverged(done)
    seeds = list(dict.fromkeys(run.loaded.scenario.seed for run in planned.run_set.runs))
    rows = [row for variant in planned.variants if (row := _row(variant, seeds, found)) is not None]
    usable = [row for row in rows if not row["diverged"]]
    chosen = []
    for method in dict.fromkeys(row["method"] for row in usable):
        best = max((row for row in usable if row["method"] == method), key=lambda row: row["validation"]["mean"] or 0.0)
        chosen.append({**best, "at_edge": _at_edge(planned, best["settings"])})
    return {
        "scenario": planned.scenario,
        "overrides": list(planned.overrides),
        "seeds": seeds,
        "settings": rows,
        "chosen": chosen,
        **found,
    }


def _with_diverged(done: Mapping[str, Any]) -> dict[str, Any]:
    """The runs that diverged apart from those that failed or are missing."""
    failed = done.get("failed", {})
    diverged = {name: why for name, why in failed.items() if DIVERGED in why}
    apart = {
        "failed": {name: why for name, why in failed.items() if name not in diverged},
        "missing": [name for name in done.get("missing", []) if name not in diverged],
        "diverged": diverged,
    }
    others = {key: value for key, value in done.items() if key not in apart}
    return {**others, **{key: value for key, value in apart.items() if value}}


def _row(variant: Variant, seeds: Sequence[int], found: Mapping[str, Any]) -> dict[str, Any] | None:
    """One setting over its seeds; None if none of its runs has ended or diverged.

    ``seeds``: those of ``validation`` and ``rounds``, in which a run that diverged has None.
    """
    names = {f"{variant.name}-seed{seed}": seed for seed in seeds}
    diverged = [seed for name, seed in names.items() if name in found.get("diverged", {})]
    best = {names[run["name"]]: run["best_round"] or {} for run in found["runs"] if run["name"] in names}
    best |= {seed: {} for seed in diverged}
    if not best:
        return None
    return {
        "method": variant.method,
        "settings": dict(override.split("=", 1) for override in variant.overrides),
        "seeds": sorted(best),
        "diverged": diverged,
        "validation": spread([best[seed].get("accuracy") for seed in sorted(best)]),
        "rounds": [best[seed].get("rounds") for seed in sorted(best)],
    }


def _at_edge(planned: TunePlan, settings: Mapping[str, str]) -> list[str]:
    """The keys whose chosen value is the lowest or highest of a list of numbers: a better one may lie beyond."""
    edges = []
    for key, value in settings.items():
        try:
            numbers = [float(text) for text in planned.grid[key]]
        except ValueError:
            continue
        if len(numbers) > 1 and float(value) in (min(numbers), max(numbers)):
            edges.append(key)
    return edges


def write_tables(result: Mapping[str, Any], folder: Path) -> None:
    """Write ``table.csv``, a row per method, setting and seed."""
    rows = (
        [row["method"], _text(row["settings"]), seed, value, round]
        for row in result["settings"]
        for seed, value, round in zip(row["seeds"], row["validation"]["values"], row["rounds"], strict=True)
    )
    write_csv(folder / "table.csv", ["method", "settings", "seed", "validation_accuracy", "best_round"], rows)


def draw(planned: TunePlan, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the report: a table of all settings, and the chosen ones."""
    return write_study(
        folder / "report.html",
        f"{planned.run_set.name}: tuning",
        "Each setting ran once per seed, and was judged on the clients' validation examples alone; no run evaluated "
        "test examples.",
        {"scenario": planned.scenario, "seeds": ", ".join(map(str, result["seeds"]))},
        [],
        tables(result),
    )


def show(result: Mapping[str, Any], page: Path) -> None:
    """Print the tables, and the words that choose each method's best setting."""
    for table in tables(result):
        terminal.print_table(table)
    for row in result["chosen"]:
        print(shlex.join(["fedbr", "run", result["scenario"], *_words(result["overrides"], row)]))
    terminal.print_location(page)


def _words(overrides: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE that give a run of a setting, each key once."""
    chosen = {"method": row["method"], **row["settings"]}
    common = [override for override in overrides if parse(override)[0] not in chosen]
    return [*common, *(f"{key}={value}" for key, value in chosen.items())]


def tables(result: Mapping[str, Any]) -> list[PageTable]:
    """All settings; then the best of each method."""
    header = ["method", "settings", "validation accuracy", "best round"]
    every, chosen = (_rows(result[key]) for key in ("settings", "chosen"))
    edges = [
        f"{row['method']}: {', '.join(row['at_edge'])} is chosen at the edge of its grid: a better value may lie beyond"
        for row in result["chosen"]
        if row["at_edge"]
    ]
    settled = {row["method"] for row in result["chosen"]}
    none = [
        f"{method}: no setting is free of runs that diverged"
        for method in dict.fromkeys(row["method"] for row in result["settings"])
        if method not in settled
    ]
    notes = [READ_AS, *missing_note(result), *([DIVERGED_NOTE] if "diverged" in result else [])]
    return [
        PageTable("all settings", header, every, notes),
        PageTable("chosen on validation examples", header, chosen, [*edges, *none]),
    ]


def _text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _rows(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    means, deviations = ([row["validation"][key] for row in found] for key in ("mean", "deviation"))
    rows = []
    for row, accuracy in zip(found, cells(PERCENT, means, deviations, "-"), strict=True):
        diverged, seeds = len(row["diverged"]), len(row["seeds"])
        partly = f"diverged with {diverged} of {seeds} seeds" if diverged else accuracy
        rounds = ", ".join("-" if round is None else str(round) for round in row["rounds"])
        shown = "diverged" if diverged == seeds else partly
        rows.append([row["method"], _text(row["settings"]), shown, rounds])
    return rows
