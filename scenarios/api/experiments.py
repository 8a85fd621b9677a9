"""Several runs at once: comparisons, the runs of a folder, and reports over runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scenarios.api import values
from scenarios.api.calling import Call, Folder, calling, path_of, plain, takes
from scenarios.api.figures import RunFigures
from scenarios.api.keys import KeysButSeed
from scenarios.api.notebook import of_result, of_tables
from scenarios.api.objects import as_names, axis_names, with_names
from scenarios.api.requests import (
    CompareRequest,
    DecideRequest,
    ReproduceRequest,
    SweepRequest,
)
from scenarios.api.run import Run
from scenarios.api.tables import data_frame
from scenarios.api.values import Scenario, listed, place
from scenarios.config.errors import ReportError, ScenarioError, worded
from scenarios.config.overrides import parse_value
from scenarios.experiment import run_set
from scenarios.experiment.experiment import Experiment, write
from scenarios.experiment.grid import METHOD, Grid, axis_of
from scenarios.run.run_finder import found
from scenarios.run.run_folder import LEDGER
from scenarios.run.run_records import read_json

if TYPE_CHECKING:
    import pandas

    from scenarios.report.tables import Table


class RunCollection(RunFigures, Sequence[Run]):
    """The runs of a comparison or a sweep, in the order in which they were planned."""

    def __init__(self, folder: Path, runs: Sequence[Run], result: dict[str, Any]) -> None:
        self.folder, self._runs = folder, tuple(runs)
        self.result = result
        """What the command prints with ``--json``"""

    @property
    def failed(self) -> dict[str, str]:
        """Name -> reason of the runs that failed; the others are there all the same."""
        return dict(self.result.get("failed", {}))

    @property
    def missing(self) -> list[str]:
        """Names of the runs that were not made, since the user stopped; the same call with ``run_id`` makes them."""
        return list(self.result.get("missing", []))

    def report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write one report of all runs and return its path.

        By default it is ``report.html`` in the folder of a comparison, and ``runs.html`` in that of a sweep or study,
        whose own ``report.html`` stays.
        """
        return report(self, path)

    def run_folders(self) -> list[Path]:
        """The folders that figures are drawn of."""
        return [run.folder for run in self]

    def to_pandas(self, by: Literal["run", "cell"] = "run") -> pandas.DataFrame:
        """A row per run: ``run``, the keys of the grid, ``seed``, and its readings; or ``by="cell"`` a row per cell.

        Readings of a run are ``accuracy``, ``best_accuracy``, ``rounds``, ``virtual_seconds``, ``bytes_down``,
        ``bytes_up``, ``joules``, ``model_sha256``, and what it had spent until each target (``bytes_to_0.9``). A cell
        has the keys, the number of its ``seeds``, and of each reading ``mean``, ``deviation``, and the ends of the 95 %
        interval, ``low`` and ``high``. Seconds, bytes and joules; accuracies in [0, 1]. ImportError without pandas;
        ScenarioError for cells of runs that have none, such as a comparison with one seed.
        """
        return data_frame("RunCollection.to_pandas", *_rows_of(self, by))

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"<fedbr.RunCollection {self.folder}: {len(self)} runs>"

    def _repr_html_(self) -> str:
        return of_result(self.result) or of_tables([_each_run(self)])


def _each_run(runs: RunCollection) -> Table:
    """The readings of runs that have no table over seeds."""
    from scenarios.report.columns import BYTES, SECONDS
    from scenarios.report.readings import quantity_of
    from scenarios.report.tables import Table, TableColumn
    from scenarios.report.terminal import judged_by
    from scenarios.run.run_records import SummaryRecord

    score = judged_by([SummaryRecord.model_validate(run.summary) for run in runs])
    held = quantity_of(score)
    columns = [TableColumn("run"), TableColumn(score.metric, held), TableColumn("best", held)]
    columns += [TableColumn("virtual time", SECONDS), TableColumn("bytes", BYTES)]
    rows = []
    for run in runs:
        found = run.summary
        nbytes = found["bytes_down"] + found["bytes_up"]
        rows.append([run.folder.name, found["score"], found["best_score"], found["virtual_seconds"], float(nbytes)])
    return Table(str(runs.folder), columns, rows)


def _rows_of(runs: RunCollection, by: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(rows, columns) of `RunCollection.to_pandas`."""
    from scenarios.experiment import sweep_tables
    from scenarios.report.tables import amounts

    if by not in ("run", "cell"):
        raise ScenarioError(f"by = {by!r}: must be 'run' or 'cell'")
    has_cells = {"axes", "rows", "targets"} <= runs.result.keys()
    if by == "cell" and not has_cells:
        raise ScenarioError("by = 'cell': these runs have no cells over seeds; use by='run'")
    if not has_cells:
        columns = ["run", "method", "seed", *sweep_tables.OF_RUN]
        return [{"run": run.folder.name} | {key: run.summary.get(key) for key in columns[1:]} for run in runs], columns
    result = runs.result
    header, table = sweep_tables.runs(result) if by == "run" else amounts(sweep_tables.numbers(result))
    keys = {key for row in result["rows"] for key in row["settings"]}
    rows = [dict(zip(header, cells, strict=True)) for cells in table]
    for row in rows:
        row.update({key: parse_value(row[key]) for key in keys if row[key] is not None})
    return rows, header


@takes(CompareRequest, KeysButSeed)
def compare(
    call: Call[CompareRequest],
    scenario: Scenario,
    methods: Sequence[str] = ("fedavg", "fedprox", "fedmlb", "fedbr"),
) -> RunCollection:
    """Run each of the methods on the same data, fleet and seeds, each to its limit, in one folder.

    ``methods``: their names, also as one text with commas between them. ``result`` is that of a `sweep` over
    ``method``, with the accuracies at the smallest bytes and virtual time that all runs have spent, and under
    ``measured`` the rounds of real devices beside those of the runs. With the ``run_id`` of an earlier comparison,
    finished runs are kept and interrupted ones resumed. Errors as of `sweep`.
    """
    return _made(call.request.plan(_over_methods(scenario, methods, call.overrides)), call)


@takes(SweepRequest, KeysButSeed)
def sweep(
    call: Call[SweepRequest], scenario: Scenario, grid: Mapping[str, Sequence[Any]], *, zipped: bool = False
) -> RunCollection:
    """Run a scenario over a grid of values and several seeds, each run to its limit, in one folder.

    ``grid``: dotted key -> its values, all combinations of which are run, or with ``zipped`` the lists side by side.
    Amounts of ``at`` are text with units or numbers in SI units, such as ``{"bytes": ["1 MB", 5e6]}``.

    ``result`` has ``rows``, a cell each with mean, deviation and interval over seeds, ``tests`` of all pairs, ``at``
    with the accuracies at each amount, and ``chosen``, the best settings of each method, where that was asked; the
    folder has them as sweep.md, sweep.csv and sweep.tex. The folder's name follows from grid and overrides, so that the
    same call with more seeds or values makes only what is missing. Overrides as of `fedbr.run`.

    ScenarioError for anything that cannot be run in any cell; a run that fails is in ``failed``, beside those that did
    not; RunFailed if all did, or if a callback fails. If the user or a callback stops it, the runs so far are returned;
    KeyboardInterrupt if there are none.
    """
    return _made(call.request.plan(_grid(scenario, grid, call.overrides, zipped)), call)


@takes(DecideRequest, KeysButSeed)
def decide(
    call: Call[DecideRequest], scenario: Scenario, grid: Mapping[str, Sequence[Any]] | None = None
) -> RunCollection:
    """Decide which candidate reaches a ``target`` for the least ``cost``, or is the best within ``budgets``.

    Candidates are all combinations of ``grid``, each with one of ``candidates``: mappings of dotted keys to values, or
    "starter". ``budgets``: name of an amount -> its limit, text with a unit or a number in SI units.
    ``result["chosen"]`` names the candidate, and ``recommended.toml`` in the folder is its scenario. Errors as of
    `sweep`.
    """
    return _made(call.request.plan(_grid(scenario, grid or {}, call.overrides), call.caller.note), call)


@takes(ReproduceRequest)
def reproduce(
    call: Call[ReproduceRequest], name: str, cells: Mapping[str, Sequence[str]] | None = None
) -> RunCollection:
    """Reproduce a published figure or table beside its values: ``fedbr reproduce``.

    ``name``: such as "fedbr:fig3" or "fedmlb:1a"; ``cells``: those to make, by ``row``, ``panel`` and ``setting``, such
    as ``{"row": ["FedAvg", "FedBR"]}``; by default all. Errors as of `sweep`.
    """
    axes = tuple(axis_of(key, values.several(key, each)) for key, each in (cells or {}).items())
    return _made(call.request.plan(name, Grid(name, axes, {}), call.caller.note), call)


def _over_methods(scenario: Scenario, methods: Sequence[str], overrides: Mapping[str, object]) -> Grid:
    names = methods.split(",") if isinstance(methods, str) else listed("methods", methods, "['fedavg', 'fedbr']")
    return _grid(scenario, {METHOD: [name.strip() if isinstance(name, str) else name for name in names]}, overrides)


def _grid(
    scenario: Scenario, grid: Mapping[str, Sequence[Any]], overrides: Mapping[str, object], zipped: bool = False
) -> Grid:
    if not isinstance(grid, Mapping):
        raise ScenarioError(f"grid = {grid!r}: must be a mapping of keys to lists of values")
    named = dict(axis_names(key, each, overrides, scenario) for key, each in grid.items())
    axes = tuple(axis_of(key, values.several(key, each)) for key, each in named.items())
    return Grid(values.named(with_names(scenario)), axes, values.overrides(as_names(overrides, scenario)), zipped)


def _made(experiment: Experiment, call: Call[Any]) -> RunCollection:
    """The runs of an experiment, after those that are missing have been made and its result has been written."""
    caller, (experiment, made, result) = call.caller, call.caller.experiment(experiment, call.request)
    for line in run_set.warning_lines(result):
        caller.note(line)
    write(experiment, result, with_report=False)
    notes = {key: made[key] for key in ("failed", "missing") if key in made}
    return RunCollection(run_set.folder_of(result), [Run(run["run_dir"]) for run in result["runs"]], result | notes)


def open_folder(folder: Folder) -> Run | RunCollection:
    """The run of a folder, or the runs of a comparison's, study's or sweep's; ReportError for any other folder.

    Runs below the folder that have not committed anything, and damaged ones, are left out with a note. So is said how
    to go on with a comparison that has not ended.
    """
    path = path_of(folder)
    with calling() as caller:
        runs = found([path])
        not_begun = [file.parent for file in path.glob("*/scenario.toml") if not (file.parent / LEDGER).is_file()]
        for parts in runs.unfinished:
            caller.note(worded(parts, in_python=True))
        for reason in (*runs.left_out, *(f"{run} has not committed anything" for run in sorted(not_begun))):
            caller.note(f"left out: {reason}")
        if runs.comparison is None and list(runs.folders) == [path]:
            return Run(path)
        result = {} if runs.comparison is None else runs.comparison.model_dump()
        if runs.comparison is None:
            with suppress(ValueError):  # a folder of runs that no study made
                result = read_json(path / run_set.MARK)
        return RunCollection(path, [Run(run) for run in runs.folders], result)


def report(
    runs: Folder | Run | RunCollection | Sequence[Folder | Run | RunCollection],
    output: str | PathLike[str] | None = None,
) -> Path:
    """Write one report of runs, given as objects or folders of them, to an HTML file and return its path.

    ``output``: by default that of ``fedbr report``: ``report.html`` in the folder of one run or comparison,
    ``runs.html`` in another folder, or beside the first of several. ReportError if there is no run.
    """
    from scenarios.report import html

    with calling():
        folders = folders_of(runs)
        if not folders:
            raise ReportError("there is no run to report")
        if output is None and isinstance(runs, RunCollection) and folders != [runs.folder]:
            output = runs.folder / html.JOINED
        return html.from_folders(folders, None if output is None else place("output", output))


def audit(
    runs: Folder | Run | RunCollection | Sequence[Folder | Run | RunCollection],
    *,
    target: float | str | None = None,
    twin: str | Run | None = None,
    output: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """What runs cost, from the bytes that papers count to joules: what ``fedbr audit --json`` prints.

    A run with codecs is compared with its twin without, seed by seed, at the best score that both have reached,
    or at ``target``; another run with the first of FedAvg on the same data, or with ``twin``: a label, method, name or
    run. ``output``: an HTML page that is written, too. ReportError for runs that have not ended, and for a target that
    none has reached.
    """
    from scenarios.studies import audit as study

    with calling():
        name = str(twin.folder) if isinstance(twin, Run) else twin
        audited = study.audit(folders_of(runs), target, name)
        found = audited.result()
        if output is not None:
            study.write_page(audited, found, place("output", output))
        return plain(found)


def folders_of(runs: Folder | Run | RunCollection | Sequence[Folder | Run | RunCollection]) -> list[Path]:
    """The folders of runs that are given: of a collection its runs, which may be fewer than its folder's.

    A comparison that is named alone is one folder. ScenarioError for anything else.
    """
    named = [runs] if isinstance(runs, str | PathLike | Run | RunCollection) else runs
    if not isinstance(named, Sequence):
        raise ScenarioError(f"runs = {runs!r}: must be a run, a folder, or a list of these")
    folders: list[Path] = []
    for each in named:
        if not isinstance(each, RunCollection):
            folders.append(path_of(each))
        elif len(named) == 1 and (each.folder / "compare.json").is_file():
            folders.append(each.folder)
        else:
            folders += [run.folder for run in each]
    return folders
