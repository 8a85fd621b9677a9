"""How a command makes the runs of an experiment: how long they take, the result, and the exit code."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Any, NoReturn

import typer

from scenarios.cli.options import (
    FAILED,
    FINISHED,
    STOPPED,
    ReportOutput,
    emit,
    exit_with_error,
    progress_printer,
    report_or_warning,
)

if TYPE_CHECKING:
    from scenarios.api.requests import ExperimentRequest
    from scenarios.experiment.experiment import Experiment
    from scenarios.experiment.run_set import RunSet
    from scenarios.run.host import Host, Piece


def run_experiment(
    experiment: Experiment, request: ExperimentRequest, output: ReportOutput, estimated: bool = False
) -> NoReturn:
    """Run or resume the runs of an experiment that are not finished, write its files, and exit with its code.

    ``estimated``: the expected duration is measured and printed first.
    """
    from scenarios.experiment import run_set
    from scenarios.experiment.experiment import write
    from scenarios.run.host import choose_device, piece_seconds
    from scenarios.studies.forecast import duration

    planned, expected = experiment.run_set, dict[str, Any]()
    piece_seconds(request.time_limit)  # refused before minutes are spent on an estimate
    if estimated and run_set.pending(planned, request.out, choose_device(request.device)):
        expected = estimate_of(planned, request, output)
        if not output.silent:
            show_estimate(expected, sys.stderr)
    _, result = output.caller().experiment(experiment, request)
    result |= {key: expected[key] for key in ("estimate", "estimated_seconds") if key in expected}
    stopped, folder = run_set.is_interrupted(result, planned), run_set.folder_of(result)
    if stopped:
        begun = replace(planned, run_id=folder.name)
        on = choose_device(request.device)
        left = duration.runs_left(begun, request.out, on, duration.durations(expected))
        result["left"] = asdict(left)
    page = report_or_warning(lambda: write(experiment, result, output.report and not stopped)) or folder
    emit(result, output.as_json, lambda: experiment.show(result, page), in_files=True)
    for line in run_set.warning_lines(result):
        print(f"fedbr: warning: {line}", file=sys.stderr)
    if stopped and not output.silent:
        again = "" if request.run_id is None and planned.run_id else f" with --run-id {folder.name}"
        print(f"fedbr: {left}; to go on: the same command{again}", file=sys.stderr)
    if result.get("failed"):
        raise typer.Exit(exit_with_error(run_set.failures(result["failed"]), FAILED))
    raise typer.Exit(STOPPED if stopped else FINISHED)


def estimate_of(planned: RunSet, request: ExperimentRequest, output: ReportOutput) -> dict[str, Any]:
    """The expected duration of runs on this machine (`duration.result`), measured in short runs."""
    from scenarios.api.caller import Caller
    from scenarios.run.session import Session
    from scenarios.studies.forecast import duration

    tell = progress_printer(output.silent)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        host = replace(host, out=request.out)
        return duration.result(planned, host, duration.forecast(planned, host, launcher, stopped, tell))

    return Caller(quiet=True).call(Session(request.workers, request.device), [run.loaded for run in planned.runs], work)


def show_estimate(found: dict[str, Any], stream: IO[str]) -> None:
    from scenarios.report import terminal
    from scenarios.studies.forecast import duration

    terminal.print_table(duration.table(found), stream=stream)
