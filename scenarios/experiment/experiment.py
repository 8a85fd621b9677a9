"""An experiment as a value: rows of settings x seeds, a run each, and how their results are read.

compare, sweep, decide and reproduce are kinds of it. A kind plans its rows; this module
names their runs, finds what each row has after them, and writes and shows the result. Nothing is run here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.files import write_text
from edge.protocol.home import shared
from scenarios.config.load import Loaded
from scenarios.config.tables import TomlValue
from scenarios.experiment.run_set import PlannedRun, RunSet, folder_of, warning_lines
from scenarios.report import html, terminal, theme
from scenarios.report.run_reader import RunGroup
from scenarios.report.tables import Table
from scenarios.run.host import Host
from scenarios.run.progress import Trail
from scenarios.run.run_folder import RunFolder
from scenarios.run.score import OF_ACCURACY, RunScore, score_of

Result = Mapping[str, Any]
"""What a command prints with ``--json``"""
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class ExperimentRow:
    """A method with settings of its own; its runs differ in the seed alone."""

    name: str
    """By which results and tables name it; that of no other row"""
    folder: str
    """The beginning of its run folders' names"""
    method: str
    settings: Mapping[str, TomlValue]
    """Dotted key -> value, of the keys that it sets"""


@dataclass(frozen=True)
class ExperimentPage:
    title: str
    lead: str
    """The answer first"""
    facts: Mapping[str, str]
    figures: Sequence[tuple[str, str, str]]
    """(name, inline SVG, caption)"""
    tables: Sequence[Table]
    figure_folder: str = ""
    """The folder of the figures as files of their own; empty: they are in the report alone"""
    groups: Sequence[RunGroup] = ()
    """The runs of each row, whose report is below; without any there is none"""
    drawn: Sequence[str] = ()
    """Labels of the groups in figures of that report"""


@dataclass(frozen=True)
class Experiment:
    """Rows x seeds, and how the results of their runs are read.

    Subclasses customise by

    * `result`: the keys of ``--json``, from what `executors.make_runs` returns
    * `page`: what the report shows of a result; `write_page`, for a report of another form
    * `show`: what the terminal does, by default the tables of the page
    * `files`: further files beside the runs
    * `further`: more runs, as those that there are say
    * `complete`: further work on the runs before the result is read
    * `run_name`, `result_file`, `page_file`: names of files
    """

    scenario: str
    """As the user has named it"""
    overrides: Mapping[str, TomlValue]
    """Dotted key -> value, of all runs"""
    rows: tuple[ExperimentRow, ...]
    seeds: tuple[int, ...]
    run_set: RunSet
    targets: tuple[float, ...] = ()
    """Scores whose costs are reported, the easiest first"""

    @property
    def score(self) -> RunScore:
        """The metric by which its runs are judged."""
        return score_of(self.run_set.runs[0].loaded.scenario.train) if self.run_set.runs else OF_ACCURACY

    @property
    def result_file(self) -> str:
        return self.run_set.mark

    @property
    def page_file(self) -> str:
        return "report.html"

    def run_name(self, row: ExperimentRow, seed: int) -> str:
        return f"{row.folder}-seed{seed}"

    def result(self, done: Result) -> dict[str, Any]:
        """The result, from what `executors.make_runs` returns."""
        raise NotImplementedError

    def page(self, result: Result) -> ExperimentPage:
        """What the report shows."""
        raise NotImplementedError

    def write_page(self, result: Result, folder: Path) -> Path:
        """Write the report and return it."""
        page = self.page(result)
        for name, svg, _ in page.figures if page.figure_folder else ():
            (folder / page.figure_folder).mkdir(exist_ok=True)
            write_text(folder / page.figure_folder / f"{name}.svg", theme.standalone(svg))
        answer = html.ExperimentAnswer(page.lead, page.facts, page.figures, page.tables, warning_lines(result))
        target = self.targets[0] if self.targets else None
        return html.write_experiment(folder / self.page_file, page.title, answer, page.groups, target, page.drawn)

    def show(self, result: Result, page: Path) -> None:
        """Print what a terminal has room for, and where the report is; ``page`` is the folder where there is none."""
        for table in self.page(result).tables:
            terminal.print_table(table)
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> Mapping[str, str]:
        """Name -> text of further files in ``folder``, that of the runs."""
        return {}

    def further(self, done: Result) -> Self | None:
        """The experiment with more runs, or longer ones, after all of `run_set` have ended; None: these are enough.

        ``done``: what `executors.make_runs` returns. The same runs give the same answer, so that an experiment that was
        interrupted goes on from its first runs.
        """
        return None

    def complete(self, done: Result, host: Host, launcher: WorkerLauncher, stopped: Stopped) -> None:
        """Work on finished runs before the result is read."""

    def with_runs(
        self, load_row: Callable[[ExperimentRow, int], Loaded], needs: Mapping[str, float] | None = None
    ) -> Self:
        """The experiment with a planned run per row and seed, seed by seed; ``needs`` as of `PlannedRun`."""
        pairs = ((row, seed) for seed in self.seeds for row in self.rows)
        runs = [PlannedRun(self.run_name(row, seed), load_row(row, seed), needs or {}) for row, seed in pairs]
        return replace(self, run_set=replace(self.run_set, runs=runs))

    def runs_by_row(self, runs: Sequence[Result]) -> dict[str, dict[int, Result]]:
        """Name of a row -> seed -> its summary, of rows with runs that have ended."""
        ended = {run["name"]: run for run in runs}
        names = {row.name: {seed: self.run_name(row, seed) for seed in self.seeds} for row in self.rows}
        rows = {row: {seed: ended[name] for seed, name in own.items() if name in ended} for row, own in names.items()}
        return {row: own for row, own in rows.items() if own}

    def trails(self, runs: Sequence[Result], of_devices: bool = False) -> dict[str, dict[int, Trail]]:
        """Name of a row -> seed -> the progress of its run, of rows with runs that have ended.

        Whole rounds alone count: a last row that is no round has the number of the round before. ``of_devices``: with
        what single clients have spent.
        """

        def whole_rounds(run: Result) -> Trail:
            folder = RunFolder(Path(run["run_dir"]))
            points = folder.device_trail if of_devices else folder.trail
            return Trail(replace(point, rounds=min(point.rounds, run["rounds"])) for point in points)

        by_row = self.runs_by_row(runs)
        return {row: {seed: whole_rounds(run) for seed, run in own.items()} for row, own in by_row.items()}


def write(experiment: Experiment, result: Result, with_report: bool) -> Path:
    """Write the files of an experiment beside its run folders; returns the report, or the folder without one."""
    folder = folder_of(result)
    text = json.dumps(shared({**experiment.run_set.marks, **result}), indent=1)
    write_text(folder / experiment.result_file, text)
    for name, content in experiment.files(result, folder).items():
        write_text(folder / name, content)
    return experiment.write_page(result, folder) if with_report else folder
