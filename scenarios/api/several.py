"""Several runs at once: comparisons, the runs of a folder, and reports over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from scenarios.api import values
from scenarios.api.callbacks import CallbackObserver, Callbacks
from scenarios.api.calls import Folder, calling, path_of, session
from scenarios.api.figures import RunFigures
from scenarios.api.notebook import parallel_display, progress_display
from scenarios.api.objects import as_names, axis_names, with_names
from scenarios.api.run import Run
from scenarios.api.tables import data_frame
from scenarios.api.values import Scenario, at_least_1, check_text, listed, place
from scenarios.config.errors import ReportError, ScenarioError, worded
from scenarios.config.overrides import parse_value
from scenarios.experiment import run_set
from scenarios.experiment.experiment import Experiment, write
from scenarios.experiment.grid import METHOD, SEED, Grid, axis_of
from scenarios.run.host import Host, Piece, choose_device
from scenarios.run.observer import NotePrinter
from scenarios.run.run_finder import found
from scenarios.run.run_folder import LEDGER
from scenarios.run.run_records import read_json

if TYPE_CHECKING:
    import pandas

    from scenarios.cluster.ray_engine import RayRuns


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


def compare(
    scenario: Scenario,
    methods: Sequence[str] = ("fedavg", "fedprox", "fedmlb", "fedbr"),
    *,
    seeds: int = 1,
    baseline: str | None = None,
    parallel: int | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    progress: bool | None = None,
    on_round: Callbacks = (),
    seed: int | None = None,
    **overrides: Any,
) -> RunCollection:
    """Run each of the methods on the same data, fleet and seeds, each to its limit, in one folder.

    ``methods``: their names, also as one text with commas between them. ``seeds``: how many, counted up from ``seed``
    or the scenario's own; ``baseline``: the method that the report of several seeds compares others with. ``result``
    has the accuracies at the smallest bytes and virtual time that all runs reached,
    or with several seeds the rows and tests of a `sweep` over ``method``. With the ``run_id`` of an earlier comparison,
    finished runs are kept and interrupted ones resumed. Other arguments and errors as of `sweep`.
    """
    from scenarios.experiment.compare import plan

    check_text(run_id=run_id, device=device)
    names = methods.split(",") if isinstance(methods, str) else listed("methods", methods, "['fedavg', 'fedbr']")
    with calling() as write_note:
        axis = axis_of(METHOD, [str(as_names({METHOD: method})[METHOD]).strip() for method in names])
        common = values.overrides(as_names(overrides, scenario))
        grid = Grid(values.named(with_names(scenario)), (axis,), common)
        experiment = plan(grid, at_least_1("seeds", seeds), seed, run_id).with_baseline(baseline)
        return _made(experiment, place("out", out), workers, device, on, progress, on_round, parallel, write_note)


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 3,
    baseline: str | None = None,
    parallel: int | None = None,
    zipped: bool = False,
    targets: Sequence[float] = (),
    out: Folder = "runs",
    run_id: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on: str | None = None,
    progress: bool | None = None,
    on_round: Callbacks = (),
    seed: int | None = None,
    **overrides: Any,
) -> RunCollection:
    """Run a scenario over a grid of values and several seeds, each run to its limit, in one folder.

    ``grid``: dotted key -> its values, all combinations of which are run, or with ``zipped`` the lists side by side;
    ``seeds``: how many, counted up from ``seed`` or the scenario's own; ``baseline``: number or name of the row that
    the report compares others with; ``parallel``: runs at a time, by default one,
    which share the ``workers``; ``targets``: accuracies in (0, 1] whose costs are reported, by default the scenario's.
    ``on``: a Ray cluster, named as in `fedbr.run`, on whose nodes the runs are made as wholes, each with so many
    ``workers``: by default all that there is room for at the same time, or at most ``parallel``.

    ``result`` has ``rows``, a cell each with mean, deviation and interval over seeds, and ``tests`` of all pairs; the
    folder has them as sweep.md, sweep.csv and sweep.tex. The folder's name follows from grid and overrides, so that the
    same call with more seeds or values makes only what is missing. Other arguments as of `fedbr.run`.

    ScenarioError for anything that cannot be run in any cell; a run that fails is in ``failed``, beside those that did
    not; RunFailed if all did, or if a callback fails. If the user or a callback stops it, the runs so far are returned;
    KeyboardInterrupt if there are none.
    """
    from scenarios.experiment.sweep import plan

    with calling() as write_note:
        check_text(run_id=run_id, device=device)
        if not isinstance(grid, Mapping):
            raise ScenarioError(f"grid = {grid!r}: must be a mapping of keys to lists of values")
        named = dict(axis_names(key, each, overrides, scenario) for key, each in grid.items())
        axes = tuple(axis_of(key, values.several(key, each)) for key, each in named.items())
        goals = listed("targets", targets, "[0.9]")
        count = None if SEED in grid else at_least_1("seeds", seeds)
        common = values.overrides(as_names(overrides, scenario))
        asked = Grid(values.named(with_names(scenario)), axes, common, zipped)
        experiment = plan(asked, count, seed, goals, run_id).with_baseline(baseline)
        return _made(experiment, place("out", out), workers, device, on, progress, on_round, parallel, write_note)


def _made(
    experiment: Experiment,
    out: Path,
    workers: int | None,
    device: str,
    on: str | None,
    progress: bool | None,
    on_round: Callbacks,
    parallel: int | None,
    write_note: NotePrinter,
) -> RunCollection:
    """The runs of an experiment, after those that are missing have been made and its result has been written."""
    from scenarios.experiment.executors import choose_executor, make_runs

    planned, at_once = experiment.run_set, 1 if parallel is None else at_least_1("parallel", parallel)
    missing = run_set.pending(planned, out, choose_device(device))
    names = [run.name for run in missing]
    named = None if on is None else _cluster(on, workers, parallel, write_note)
    cluster = named if missing else None
    beside, is_in_turn = parallel_display(names, progress), at_once == 1 and cluster is None
    watch = CallbackObserver(on_round)

    def about(name: str, has_ended: bool = False) -> None:
        beside.about(name, has_ended)
        watch.about(name)

    def work(host: Host, launcher: WorkerLauncher, stopped: Piece) -> dict[str, Any]:
        with cluster or nullcontext():
            executor = choose_executor(launcher, at_once, cluster)
            return make_runs(planned, host, executor, watch.or_stopped(stopped), about)

    show = progress_display(names, progress) if is_in_turn else beside
    preload = None if is_in_turn and missing else ()  # its slots have fork servers of their own
    loaded = [run.loaded for run in missing or planned.runs[:1]]
    here = workers if named is None else 1
    needs = session(here, device, show, write_note, out=out, preload=preload)
    try:
        done = replace(needs, observers=(*needs.observers, watch)).call(loaded, work)
    except Stopped:
        watch.check(None)  # the reason of the stop, if a callback failed before the first round
        raise
    watch.check(run_set.folder_of(done), "the same call goes on with its runs")
    result = experiment.result(done) | {"warnings": done["warnings"]}
    for line in run_set.warning_lines(result):
        write_note(line)
    write(experiment, result, with_report=False)
    notes = {key: done[key] for key in ("failed", "missing") if key in done}
    return RunCollection(run_set.folder_of(result), [Run(run["run_dir"]) for run in result["runs"]], result | notes)


def _cluster(on: str, workers: int | None, parallel: int | None, write_note: Callable[[str], None]) -> RayRuns:
    """The cluster whose nodes make the runs; it is connected when it is entered. ScenarioError."""
    from scenarios.cluster.ray_engine import RayRuns

    if workers is not None:
        at_least_1("workers", workers)
    return RayRuns(on, workers, parallel, write_note, option="on =")


def open_folder(folder: Folder) -> Run | RunCollection:
    """The run of a folder, or the runs of a comparison's, study's or sweep's; ReportError for any other folder.

    Runs below the folder that have not committed anything, and damaged ones, are left out with a note. So is said how
    to go on with a comparison that has not ended.
    """
    path = path_of(folder)
    with calling() as write_note:
        return _opened(path, write_note)


def _opened(path: Path, write_note: Callable[[str], None]) -> Run | RunCollection:
    runs = found([path])
    not_begun = [file.parent for file in path.glob("*/scenario.toml") if not (file.parent / LEDGER).is_file()]
    for parts in runs.unfinished:
        write_note(worded(parts, in_python=True))
    for reason in (*runs.left_out, *(f"{run} has not committed anything" for run in sorted(not_begun))):
        write_note(f"left out: {reason}")
    if runs.comparison is None and list(runs.folders) == [path]:
        return Run(path)
    result = _result(path / run_set.MARK) if runs.comparison is None else dict(runs.comparison)
    return RunCollection(path, [Run(run) for run in runs.folders], result)


def _result(file: Path) -> dict[str, Any]:
    try:
        return read_json(file)
    except ValueError:  # a folder of runs that no study made
        return {}


def report(
    runs: Folder | Run | RunCollection | Sequence[Folder | Run | RunCollection],
    output: str | PathLike[str] | None = None,
) -> Path:
    """Write one report of runs, given as objects or folders of them, to an HTML file and return its path.

    ``output``: by default that of ``fedbr report``: ``report.html`` in the folder of one run or comparison,
    ``runs.html`` in another folder, or beside the first of several. ReportError if there is no run.
    """
    from scenarios.report import html

    named = [runs] if isinstance(runs, str | PathLike | Run | RunCollection) else runs
    if not isinstance(named, Sequence):
        raise ScenarioError(f"runs = {runs!r}: must be a run, a folder, or a list of these")
    with calling():
        folders = folders_of(named)
        if not folders:
            raise ReportError("there is no run to report")
        if output is None and isinstance(runs, RunCollection) and folders != [runs.folder]:
            output = runs.folder / html.JOINED
        return html.from_folders(folders, None if output is None else place("output", output))


def folders_of(named: Sequence[Folder | Run | RunCollection]) -> list[Path]:
    """The folders to report: those that are named, and of a collection its runs, which may be fewer than its folder's.

    A comparison that is named alone is reported as one, by its folder.
    """
    folders: list[Path] = []
    for each in named:
        if not isinstance(each, RunCollection):
            folders.append(path_of(each))
        elif len(named) == 1 and (each.folder / "compare.json").is_file():
            folders.append(each.folder)
        else:
            folders += [run.folder for run in each]
    return folders
