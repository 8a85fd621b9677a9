"""Several methods on the same data, fleet and seed: which reaches the target first, and at what cost?

Each method runs to its limit; the target does not stop it. Accuracies are also read at the smallest total of bytes and
at the smallest virtual time that all runs reached. One folder holds a comparison: a run folder per method and seed,
``compare.json`` and ``report.html``. With several seeds it is a sweep over ``method``, with its statistics and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.methods.registry import resolve
from edge.protocol.spelling import nearest
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.toml_source import COMMAND_LINE, parse
from scenarios.experiment import results
from scenarios.experiment import sweep_page as page
from scenarios.experiment.run_set import PlannedRun, RunSet, Study
from scenarios.report import html, terminal
from scenarios.report.progress import at_budget, trail

OPTIONS = "method_options"


def variants(name: str, overrides: Sequence[str], methods: str, seed: int | None = None) -> list[Loaded]:
    """The scenario once per method of a list separated by commas.

    Options of ``method_options`` apply to the methods that have them. ScenarioError for a method that is unknown or
    named twice, and for an option of the command line that no method has.
    """
    names = [method.strip() for method in methods.split(",")]
    if not all(names):
        raise ScenarioError(f"--methods {methods!r}: write names separated by commas, for example fedavg,fedbr")
    overrides = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    check_settings(name, overrides)  # with the method of the file, whose options are then checked too
    runs = [load(name, overrides, method=method) for method in names]
    resolved = [run.scenario.method for run in runs]
    for method in resolved:
        spellings = dict.fromkeys(name for name, other in zip(names, resolved, strict=True) if other == method)
        if resolved.count(method) > 1:
            twice = "are the same method" if len(spellings) > 1 else "is named twice"
            raise ScenarioError(f"--methods: {' and '.join(spellings)} {twice}")
    check_options(overrides, names)
    return runs


def check_settings(name: str, overrides: Sequence[str]) -> Loaded:
    """The scenario without overrides of method options; ScenarioError for overrides that name a method."""
    settings = [override for override in overrides if not _is_option(override)]
    if any(parse(override)[0] == "method" for override in settings):
        raise ScenarioError(f"{COMMAND_LINE}: method: the methods of a comparison are named by --methods")
    return load(name, settings)


def _is_option(override: str) -> bool:
    return parse(override)[0].split(".")[0] == OPTIONS


def check_options(overrides: Sequence[str], methods: Sequence[str]) -> None:
    """ScenarioError for an option of the command line that no method has."""
    known = {name for method in methods for name in resolve(method).options.model_fields}
    for override in filter(_is_option, overrides):
        key, value = parse(override)
        for option in [key.split(".")[1]] if "." in key else value:
            if option not in known:
                hint = nearest(f"{OPTIONS}.{option}", [f"{OPTIONS}.{name}" for name in sorted(known)])
                raise ScenarioError(
                    f"{COMMAND_LINE}: unknown key {OPTIONS}.{option}: none of {', '.join(methods)} has it, {hint}"
                )


def plan(
    name: str,
    overrides: Sequence[str],
    methods: str,
    seed: int | None = None,
    run_id: str | None = None,
    seeds: int = 1,
) -> RunSet:
    """One run per method and seed, each to its limit; ScenarioError as `variants` raises it.

    Those of the first seed have the names of their methods, so that seeds can be added to a comparison.
    """
    first = variants(name, overrides, methods, seed)
    start = first[0].scenario.seed
    runs = [PlannedRun(_run_name(loaded, start), loaded, {}) for loaded in first]
    for other in range(start + 1, start + seeds):
        runs += [
            PlannedRun(_run_name(loaded, start), loaded, {}) for loaded in variants(name, overrides, methods, other)
        ]
    return RunSet("compare", first[0].name, runs, run_id, mark="compare.json")


def _run_name(loaded: Loaded, first_seed: int) -> str:
    method, seed = loaded.scenario.method, loaded.scenario.seed
    return method if seed == first_seed else f"{method}-seed{seed}"


def study(planned: RunSet) -> Study:
    """The comparison of the runs of a `plan`."""
    if len({run.loaded.scenario.seed for run in planned.runs}) > 1:
        return Study(
            planned, partial(over_seeds, planned), partial(page.draw, planned.name), page.show, page.write_tables
        )
    return Study(planned, partial(read_off, planned), partial(draw, planned), terminal.print_comparison)


def over_seeds(planned: RunSet, done: Mapping[str, Any]) -> dict[str, Any]:
    """What ``compare --seeds N --json`` prints: the keys of a sweep over ``method``, beside ``target_accuracy``."""
    target = planned.runs[0].loaded.scenario.stop.target_accuracy
    targets = () if target is None else (target,)
    names: dict[str, dict[int, str]] = {}
    for run in planned.runs:
        names.setdefault(run.loaded.scenario.method, {})[run.loaded.scenario.seed] = run.name
    curves = {method: runs for method, runs in results.trails(names, done["runs"]).items() if runs}
    return {
        "target_accuracy": target,
        "scenario": planned.name,
        "axes": {"method": list(names)},
        "seeds": list(dict.fromkeys(run.loaded.scenario.seed for run in planned.runs)),
        "targets": list(targets),
        "rows": [
            {
                "name": method,
                "method": method,
                "settings": {"method": method},
                "runs": [names[method][seed] for seed in runs],
                **results.statistics(runs, targets),
            }
            for method, runs in curves.items()
        ],
        "tests": results.tests(curves, targets),
        **done,
    }


def read_off(planned: RunSet, done: Mapping[str, Any]) -> dict[str, Any]:
    """What ``compare --json`` prints, from what `make_runs` returns."""
    return {
        "target_accuracy": planned.runs[0].loaded.scenario.stop.target_accuracy,
        "runs": [{key: value for key, value in run.items() if key != "name"} for run in done["runs"]],
        **in_common(done["runs"]),
        **({"failed": done["failed"]} if "failed" in done else {}),
    }


def in_common(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The accuracy of each run at the smallest bytes, and at the smallest virtual time, that all runs reached.

    Runs without bytes, of methods that exchange nothing, are within any budget of bytes.
    """
    sent = [run["bytes_down"] + run["bytes_up"] for run in runs]
    limits = {
        "bytes": min((nbytes for nbytes in sent if nbytes), default=0),
        "seconds": min(run["virtual_seconds"] for run in runs),
    }
    trails = {run["method"]: trail(Path(run["run_dir"])) for run in runs}
    return {
        f"at_common_{name}": {
            name: limits[name],
            "accuracy": {method: at_budget(points, kind, limits[name]).accuracy for method, points in trails.items()},
        }
        for name, kind in (("bytes", "bytes"), ("seconds", "time"))
    }


def draw(planned: RunSet, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the report of the runs that were compared."""
    methods = ", ".join(run["method"] for run in result["runs"])
    runs = [Path(run["run_dir"]) for run in result["runs"]]
    return html.build(runs, folder / "report.html", f"{planned.name}: {methods}", result)
