"""A sweep: a scenario over a grid of values and several seeds, as one experiment.

Rows are compared at the end of their runs and at each target; ``at`` amounts that users name (`at_amounts`), and
``judge`` says on which examples (`judged`).

The default run id follows from the scenario, the axes and the overrides of all runs. Thus the same command, also with
more seeds, more values or more methods, finds the runs that are there and makes those that are missing. Runs of an
earlier command that the new one does not plan stay in the folder; its result leaves them out.

    experiment = plan(grid_of("digits", ["train.lr=0.05,0.1"]), seeds=3)
    done = make_runs(experiment.run_set, host, InTurn(launcher), stopped)
    result = experiment.result(done)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from msgspec import to_builtins

from edge.protocol.better import HIGHER, LOWER
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.load import Loaded
from scenarios.config.overrides import shown, words
from scenarios.config.schema import fraction
from scenarios.config.tables import TomlValue
from scenarios.experiment import at_amounts, judged, statistics, sweep_tables
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result
from scenarios.experiment.grid import METHOD, SEED, Axis, Grid, cell_name, folder_name, label, last_part
from scenarios.experiment.run_set import RunSet
from scenarios.experiment.sweep_tables import SweepResult, SweepRow
from scenarios.report import bands, run_reader, tables, terminal
from scenarios.report.html import MOST_DRAWN
from scenarios.report.readings import differences_of, quantity, quantity_of
from scenarios.report.tables import csv_text
from scenarios.run.progress import Mean
from scenarios.run.run_folder import resolved_keys
from scenarios.run.score import OF_ACCURACY, RunScore, score_of

KIND = "sweep"
Target = float | str
"""A value of the score; as text also in percent, or after its metric: "rmse=4"."""
WORST = "worst_decile"
SEEDS = 3
LEAD = (
    "Each cell ran once per seed, to {end}; no target stopped it. Bytes are counted on the messages, down and up, "
    "of all clients; time and energy are the simulated fleet's."
)


@dataclass(frozen=True)
class Sweep(Experiment):
    """Statistics over seeds per row, and tests of all pairs of rows."""

    axes: tuple[Axis, ...] = ()
    baseline: str | None = None
    """Name of the row that others are compared with; by default all pairs on the terminal, the first in the report"""
    at: at_amounts.At = field(default_factory=dict)
    """Amounts at which scores are read"""
    judge: str = judged.TEST

    def with_baseline(self, text: str | None) -> Self:
        """The sweep with the row of this number, name or words as baseline; ScenarioError if there is none."""
        settings = [(row.method, {key: shown(value) for key, value in row.settings.items()}) for row in self.rows]
        names = [label.partition(" ")[2] for label in sweep_tables.labels_of(settings)]
        for number, (row, own) in enumerate(zip(self.rows, names, strict=True), start=1):
            if text in (str(number), own, row.name):
                return replace(self, baseline=row.name)
        if text is None:
            return self
        why = ": no row of this sweep is called so, "
        raise ScenarioError(Argument("baseline", repr(text)), why, given=text, choices=names)

    def result(self, done: Result) -> dict[str, Any]:
        """``rows``, one each with its statistics over seeds, and ``tests`` of all pairs.

        Also ``at``, as of `at_amounts.readings`, if amounts are named, and what `judged.choice` gives on validation
        examples.
        """
        chosen: judged.JudgedSettings | None = None
        if self.judge == judged.VALIDATION:
            done = judged.apart(done)
            chosen = judged.choice(self, self.axes, done)
        curves = self.trails(done["runs"])
        summaries = {run["name"]: run.get("evaluation") or {} for run in done["runs"]}
        names = {
            row.name: [self.run_name(row, seed) for seed in curves[row.name]] for row in self.rows if row.name in curves
        }
        score = self.score
        fairness = statistics.over_clients(
            {row: [summaries[run] for run in runs] for row, runs in names.items()}, score
        )
        rows = []
        for row in self.rows:
            if row.name not in curves:
                continue
            by_device = [summaries[name].get("by_device") or {} for name in names[row.name]]
            means = [{device: of["mean"] for device, of in found.items()} for found in by_device]
            rows.append(
                SweepRow(
                    row.name,
                    row.method,
                    {key: shown(value) for key, value in row.settings.items()},
                    names[row.name],
                    statistics.over_seeds(curves[row.name], self.targets),
                    means if any(means) else [],
                    fairness.get(row.name, {}),
                )
            )
        tests = statistics.tests(curves, self.targets, score)
        if fairness:
            by_seed = {name: dict(zip(curves[name], fairness[name][WORST].values, strict=True)) for name in fairness}
            tests.append(statistics.MeasureTests(WORST, None, statistics.compared(by_seed)))
        return {
            "scenario": self.scenario,
            "overrides": words(self.overrides),
            "axes": {axis.key: [shown(value) for value in axis.values] for axis in self.axes},
            "seeds": list(self.seeds),
            "targets": list(self.targets),
            **({} if score == OF_ACCURACY else score.record),
            "rows": [row.plain(score) for row in rows],
            "tests": to_builtins(tests),
            **({"at": self._at(done["runs"])} if self.at else {}),
            **({} if chosen is None else to_builtins(chosen)),
            **done,
        }

    def _at(self, runs: Sequence[Result]) -> dict[str, list[dict[str, object]]]:
        found = at_amounts.readings(self.at, self._trails_at(runs))
        return {name: [each.plain(self.score) for each in readings] for name, readings in found.items()}

    def page(self, result: Result) -> ExperimentPage:
        """Which row is best, its differences from the baseline, all tables, and the report of the runs."""
        read = sweep_tables.read(result)
        common = {"all runs": " ".join(read.overrides)} if read.overrides else {}
        title = f"{self.run_set.name}: {', '.join(read.axes) or ('rows' if len(self.rows) > 1 else 'seeds')}"
        lead = LEAD.format(end="the largest amount that is asked for, or its limit" if self.at else "its limit")
        lead = f"{judged.LEAD} {lead}" if read.choice is not None else lead
        facts = {"scenario": read.scenario, **common, "seeds": ", ".join(map(str, read.seeds))}
        rows = read.rows
        if not rows:
            return ExperimentPage(title, lead, facts, [], sweep_tables.tables(read))
        folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
        labels = dict(zip(sweep_tables.labels(rows), rows, strict=True))
        by_row = run_reader.of_rows({label: [folders[name] for name in row.runs] for label, row in labels.items()})
        better = read.score.better

        def mean(label: str) -> float:
            found = labels[label].statistics.final.mean
            return better.worst if found is None else found

        best = sorted(labels, key=mean, reverse=better is HIGHER)
        baseline = next((row.name for row in rows if row.name == self.baseline), rows[0].name)
        return ExperimentPage(
            title,
            f"{' '.join(sweep_tables.answer(read))} {lead}",
            facts,
            list(self._figures(result, read, labels, baseline, by_row)),
            sweep_tables.tables(read, baseline),
            groups=by_row,
            drawn=best[:MOST_DRAWN],
        )

    def _figures(
        self,
        result: Result,
        read: SweepResult,
        labels: Mapping[str, SweepRow],
        baseline: str,
        by_row: Sequence[run_reader.RunGroup],
    ) -> Iterator[tuple[str, str, str]]:
        """Dots of all rows; over a grid of two axes also a map."""
        from scenarios.report.html_figures import inline  # matplotlib takes half a second
        from scenarios.report.plot_style import ShownRuns
        from scenarios.report.result_figures import DotPanel, GridMap, dots, grid_maps

        runs = ShownRuns(by_row)
        names = {row.name: label for label, row in labels.items()}
        metric, held = read.score.metric, quantity_of(read.score)
        means = {label: row.statistics.final for label, row in labels.items()}
        panels = [DotPanel(f"Final {metric}", runs.accuracy, held, means)]
        if any(pair.mean is not None for pair in read.tests[0].pairs):
            pairs = statistics.against(read.tests[0].pairs, baseline)
            differences = {names[name]: each.difference for name, each in pairs.items()}
            of_pairs = differences_of(read.score)
            panels.append(DotPanel(f"Difference from {names[baseline]}", "difference", of_pairs, differences, True))
        yield (
            "rows",
            inline("rows", lambda: dots(runs, list(labels), panels)),
            f"Final {metric} of each row: the mean over seeds with its 95 % interval, and a tick per seed. On the "
            "right the differences from the baseline, paired over seeds: an interval that does not touch the dashed "
            "line tells two rows apart.",
        )
        axes = [(key, values) for key, values in read.axes.items() if len(values) > 1]
        if len(axes) == 2 and len(axes[0][1]) * len(axes[1][1]) == len(labels):
            down, across = axes
            places = {(row.settings[across[0]], row.settings[down[0]]): row.statistics for row in labels.values()}
            finals: dict[tuple[str, str], Mean | None] = {place: found.final for place, found in places.items()}
            grids = [GridMap(f"Final {metric}", across, down, held, finals)]
            for amount in sweep_tables.spent(read):
                own = {place: found.spent.get(amount.key) for place, found in places.items()}
                if len({mean.mean for mean in own.values() if mean is not None}) > 1:
                    title = f"{amount.heading[:1].upper()}{amount.heading[1:]} of whole runs"
                    grids.append(GridMap(title, across, down, quantity(amount), own))
            yield (
                "grid",
                inline("grid", lambda: grid_maps(runs, grids)),
                "The same means over both axes of the grid, and what whole runs spend where that differs.",
            )
        if self.at:
            yield at_amounts.figure(self.at, self._curves_at(read.rows, result["runs"]), by_row, read.score)

    def _trails_at(self, runs: Sequence[Result]) -> at_amounts.Trails:
        return self.trails(runs, of_devices=at_amounts.are_of_devices(self.at))

    def _curves_at(self, rows: Sequence[SweepRow], runs: Sequence[Result]) -> list[bands.Band]:
        return at_amounts.curves(self.at, self.rows, self._trails_at(runs), sweep_tables.headings(rows))

    def show(self, result: Result, page: Path) -> None:
        """Print the short tables, the answer, and the commands of chosen settings."""
        read = sweep_tables.read(result)
        for table in sweep_tables.short(read, self.baseline):
            terminal.print_table(table)
        print("\n".join(["", *sweep_tables.answer(read)]))
        for command in judged.commands(read.scenario, read.overrides, read.choice.chosen) if read.choice else ():
            print(command)
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``sweep.md``, ``sweep.tex``, ``sweep.csv`` (a row per cell), ``pairs.csv`` and ``runs.csv``; with amounts
        also ``at.csv`` and ``curves.csv``."""
        read = sweep_tables.read(result)
        shown = sweep_tables.tables(read, self.baseline)
        seeds = {row.name: row.statistics.seeds for row in read.rows}
        return {
            "sweep.md": tables.markdown(shown),
            "sweep.tex": tables.latex(shown),
            "sweep.csv": tables.numbers(sweep_tables.numbers(result)),
            "pairs.csv": csv_text(*sweep_tables.pair_numbers(read.tests)),
            "runs.csv": csv_text(*sweep_tables.runs(result)),
            **(
                at_amounts.files(read.at, seeds, self._curves_at(read.rows, result["runs"]), read.score)
                if self.at
                else {}
            ),
        }


def plan(
    grid: Grid,
    seeds: int | None = None,
    first_seed: int | None = None,
    targets: Sequence[Target] = (),
    run_id: str | None = None,
    at: at_amounts.Asked = (),
    judge: str = judged.TEST,
) -> Sweep:
    """The runs of every point of the grid, seed by seed.

    ``seeds``: how many, counted up from ``first_seed`` or the scenario's own (3 by default), unless an axis names them;
    ``targets``: of the score, by default the scenario's; ``at``: amounts, to whose largest runs go; ``judge``:
    the examples that tell which row is better, "test" or "validation". ScenarioError for what `load` refuses in any
    cell, and for two cells that would be the same run.
    """
    limits, given, grid = at_amounts.at_of(at), grid.overrides, judged.judged(grid, judge)
    rows, scenarios = grid.rows(first_seed, lambda method, settings: label(settings) or method, cell_name)
    numbers = grid.seeds(seeds, first_seed, scenarios[0].scenario.seed, SEEDS)
    if len(rows) == 1 and not grid.varies and len(numbers) == 1:
        raise ScenarioError(
            Argument("seeds", "1"), ": nothing varies; name values of a key, such as train.lr with 0.05 and 0.1"
        )
    if judge == judged.VALIDATION:
        judged.check(scenarios)
    at_amounts.check(limits, [loaded.scenario for loaded in scenarios])
    run_set = RunSet(KIND, scenarios[0].name, (), run_id or default_run_id(grid, scenarios, judge))
    goals = check_targets(targets, score_of(scenarios[0].scenario.train)) or default_targets(scenarios[0])
    sweep = Sweep(grid.scenario_name, given, tuple(rows), numbers, run_set, goals, grid.varies)

    def load_row(row: ExperimentRow, seed: int) -> Loaded:
        loaded = grid.load(row.settings, seed)
        return judged.on_validation(loaded) if judge == judged.VALIDATION else loaded

    return replace(sweep, at=limits, judge=judge).with_runs(load_row, at_amounts.needs(limits))


def default_targets(loaded: Loaded) -> tuple[float, ...]:
    """That of the scenario, if it has one."""
    goal = loaded.scenario.stop.goal
    return () if goal is None else (goal,)


def default_run_id(grid: Grid, scenarios: Sequence[Loaded], judge: str = judged.TEST) -> str:
    """``sweep-lr-3fa9c1``: the keys of the axes, and a hash of these keys and of the overrides of all runs.

    A ``judge`` other than test examples is named behind ``sweep``.

    Values count as ``scenarios``, those of the cells, have them: "20 Mbit/s" is "20000 kbit/s". Method and seed, whose
    runs have folders of their own names, do not count; without anything else it is ``sweep``.
    """
    resolved: dict[str, TomlValue] = {}
    for loaded in reversed(scenarios):
        resolved |= resolved_keys(loaded.scenario)

    def plain(value: Any) -> Any:
        """Without the difference between 20 and 20.0, which no scenario makes."""
        if isinstance(value, list):
            return [plain(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def in_scenario(key: str, value: Any) -> Any:
        """A value as the scenario has it; as it was given where the scenario leaves it out, such as None."""
        if isinstance(value, Mapping):
            return {name: in_scenario(f"{key}.{name}", each) for name, each in value.items()}
        return plain(resolved.get(key, value))

    common = {key: in_scenario(key, value) for key, value in grid.overrides.items() if key not in (METHOD, SEED)}
    named = {axis.key for axis in grid.varies} | {key for point in grid.listed for key in point}
    keys = sorted(named - {METHOD})
    text = json.dumps([keys, common], sort_keys=True, default=str)
    end = [hashlib.sha256(text.encode()).hexdigest()[:6]] if keys or common else []
    return folder_name([KIND, *([judge] if judge != judged.TEST else []), *map(last_part, keys), *end])


def check_targets(targets: Sequence[Target], score: RunScore, name: str = "targets") -> tuple[float, ...]:
    """The targets, each once and the easiest first; ScenarioError as of `target_of`. ``name``: in Python."""
    return tuple(sorted({target_of(target, score, name) for target in targets}, reverse=score.better is LOWER))


def target_of(target: Target, score: RunScore, name: str = "target") -> float:
    """A target of runs that are judged by this metric: a number, or text such as "90 %" or "rmse=4".

    ScenarioError for one of another metric, and for a share beyond (0, 1]. ``name``: of the argument in Python.
    """
    metric, equals, text = target.partition("=") if isinstance(target, str) else ("", "", "")
    shown, example = (target if isinstance(target, str) else f"{target:g}"), "0.9" if score.is_share else "4.2"
    asked = Argument(name, repr(target) if isinstance(target, str) else shown, option="target")
    if equals and metric.strip() != score.metric:
        why = f": its runs are judged by {score.metric}; write {score.metric}={example}"
        raise ScenarioError(asked, why)
    given = text.strip() if equals else target
    try:
        value = float(str(fraction(given) if score.is_share else given))
    except ValueError:
        value = math.nan
    if score.is_share and not 0 < value <= 1:
        what = "an accuracy" if score == OF_ACCURACY else f"a value of {score.metric}"
        raise ScenarioError(asked, f": must be {what} above 0 and at most 1, for example 0.9")
    if not math.isfinite(value):
        raise ScenarioError(asked, f": must be a value of {score.metric}, for example {example}")
    return value
