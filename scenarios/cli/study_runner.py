"""How a command makes the runs of a study: what is missing, how long it takes, the result, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Any, NoReturn

import typer

from scenarios.cli.options import (
    FAILED,
    FINISHED,
    STOPPED,
    StudyOptions,
    call_session,
    emit,
    exit_with_error,
    progress_printer,
    report_or_warning,
)

if TYPE_CHECKING:
    from scenarios.cluster.ray_engine import RayRuns
    from scenarios.experiment.experiment import Experiment
    from scenarios.experiment.run_set import RunSet
    from scenarios.run.host import Host, Piece


def run_experiment(
    experiment: Experiment,
    options: StudyOptions,
    estimated: bool = False,
    watch: Callable[[Host, int, int], Host] | None = None,
    parallel: int | None = None,
    on: str | None = None,
) -> NoReturn:
    """Run or resume the runs of a study that are not finished, write its files, and exit with its code.

    ``estimated``: the expected duration is measured and printed first; ``watch``: (host, planned runs, runs to be
    made) -> the host, with what is to be said while they work; ``parallel``: runs at a time, which are then
    shown by their names; ``on``: the cluster whose nodes make them.
    """
    from scenarios.experiment import run_set
    from scenarios.experiment.executors import choose_executor, make_runs
    from scenarios.report.live import LiveTable, ParallelTable
    from scenarios.run.host import choose_device, piece_seconds
    from scenarios.run.session import Session

    planned, piece = experiment.run_set, options.piece
    piece_seconds(piece)  # refused before minutes are spent on an estimate
    missing = run_set.pending(planned, options.out, choose_device(options.device))
    loaded = [run.loaded for run in missing or planned.runs[:1]]
    expected: dict[str, Any] = {}
    if estimated and missing:
        expected = estimate_of(planned, options)
        if not options.silent:
            show_estimate(expected, sys.stderr)

    names, at_once, named = [run.name for run in missing], parallel or 1, _cluster(on, options, parallel)
    cluster = named if missing else None
    side_by_side = at_once > 1 or cluster is not None
    table = ParallelTable(names, quiet=options.silent)
    in_turn = None if parallel is None else LiveTable(names, quiet=options.silent)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        watched = host if watch is None else watch(host, len(planned.runs), len(missing))
        with cluster or nullcontext():
            made = make_runs(planned, watched, choose_executor(launcher, at_once, cluster), stopped, table.about)
        if not run_set.is_interrupted(made, planned):
            experiment.complete(made, host, launcher, stopped)
        return made

    workers, preload = options.workers if named is None else 1, () if side_by_side or not missing else None
    here = Session(workers, options.device, out=options.out, piece=piece, preload=preload)
    made = call_session(loaded, work, here, options.silent, table if side_by_side else in_turn)
    _finish(experiment, experiment.result(made) | {"warnings": made["warnings"]}, options, expected)


def _cluster(on: str | None, options: StudyOptions, parallel: int | None) -> RayRuns | None:
    """The cluster whose nodes make the runs, if one is named; it is connected when it is entered. ScenarioError."""
    if on is None:
        return None
    from scenarios.cluster.ray_engine import RayRuns

    return RayRuns(on, options.workers, parallel, progress_printer(options.silent))


def _finish(
    experiment: Experiment, result: dict[str, Any], options: StudyOptions, expected: dict[str, Any]
) -> NoReturn:
    """Write and print what a study found, and say what is left of one that was stopped; exit with its code."""
    from scenarios.experiment import run_set
    from scenarios.experiment.experiment import write
    from scenarios.run.host import choose_device
    from scenarios.studies.forecast import duration

    result |= {key: expected[key] for key in ("estimate", "estimated_seconds") if key in expected}
    stopped, folder = run_set.is_interrupted(result, experiment.run_set), run_set.folder_of(result)
    if stopped:
        begun = replace(experiment.run_set, run_id=folder.name)
        on = choose_device(options.device)
        left = duration.runs_left(begun, options.out, on, duration.durations(expected))
        result["left"] = asdict(left)
    page = report_or_warning(lambda: write(experiment, result, options.report and not stopped)) or folder
    emit(result, options.as_json, lambda: experiment.show(result, page), in_files=True)
    for line in run_set.warning_lines(result):
        print(f"fedbr: warning: {line}", file=sys.stderr)
    if stopped and not options.silent:
        again = "" if options.run_id is None and experiment.run_set.run_id else f" with --run-id {folder.name}"
        print(f"fedbr: {left}; to go on: the same command{again}", file=sys.stderr)
    if result.get("failed"):
        raise typer.Exit(exit_with_error(run_set.failures(result["failed"]), FAILED))
    raise typer.Exit(STOPPED if stopped else FINISHED)


def estimate_of(planned: RunSet, options: StudyOptions) -> dict[str, Any]:
    """The expected duration of a study on this machine (`duration.result`), measured in short runs."""
    from scenarios.run.session import Session
    from scenarios.studies.forecast import duration

    tell = progress_printer(options.silent)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        host = replace(host, out=options.out)
        return duration.result(planned, host, duration.forecast(planned, host, launcher, stopped, tell))

    runs = [run.loaded for run in planned.runs]
    return call_session(runs, work, Session(options.workers, options.device), quiet=True)


def show_estimate(found: dict[str, Any], stream: IO[str]) -> None:
    from scenarios.report import terminal
    from scenarios.studies.forecast import duration

    terminal.print_table(duration.table(found), stream=stream)
