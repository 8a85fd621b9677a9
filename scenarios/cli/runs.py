"""The commands of one run: run, resume, check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scenarios.cli.options import (
    FINISHED,
    STOPPED,
    USAGE,
    AllowScenario,
    Json,
    Limits,
    Out,
    Overrides,
    ReportOutput,
    ScenarioName,
    Seed,
    emit,
    exit_with_error,
    report_or_warning,
)
from scenarios.cli.remote import ResumeOptions, RunOptions

if TYPE_CHECKING:
    from scenarios.config.load import Loaded


def run(
    scenario: ScenarioName, overrides: Overrides = None, seed: Seed = None, *, request: RunOptions, output: ReportOutput
) -> None:
    """Run a scenario; write its run folder and report."""
    from scenarios.config.load import load

    loaded = load(scenario, with_seed(overrides, seed))
    finish(loaded, output.caller().run(loaded, request), output)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    overrides: Limits = None,
    *,
    request: ResumeOptions,
    output: ReportOutput,
) -> None:
    """Resume a killed or stopped run; the result is bit-identical.

    The run continues after its last committed round. For a run that has ended, print the summary, and draw the report
    if that is missing; with another limit (rounds.max, stop.*, budget.*), go on with it.
    """
    from scenarios.config.overrides import parsed

    finish(*output.caller().resume(folder, parsed(overrides or []), request), output)


def finish(loaded: Loaded, result: dict[str, Any], output: ReportOutput) -> NoReturn:
    """Print the summary of a run, draw its report if one is wanted and not there, and exit with its code."""
    from coordinator.rounds.budget import EARLY
    from edge.protocol.plugins import display_name
    from scenarios.report import html, terminal

    stopped, folder = result["stopped_by"] in EARLY, Path(result["run_dir"])
    file, page = folder / "report.html", None  # whoever stops a run does not wait for a report
    if not stopped and file.is_file() and file.stat().st_mtime >= (folder / "ledger.sqlite").stat().st_mtime:
        page = file
    elif not stopped and output.report:
        server = f", server={loaded.scenario.server}" if loaded.scenario.server != "plain" else ""
        title = f"{loaded.name}: {display_name(loaded.scenario.method)}{server}"
        page = report_or_warning(lambda: html.build([folder], file, title))
    emit(result, output.as_json, lambda: terminal.print_summary(result, page), in_files=True)
    for warning in result.get("warnings", []):
        print(f"fedbr: warning: {warning}", file=sys.stderr)
    raise typer.Exit(STOPPED if stopped else FINISHED)


def with_seed(overrides: list[str] | None, seed: int | None) -> dict[str, Any]:
    from scenarios.config.overrides import parsed

    return parsed([*(overrides or []), *([] if seed is None else [f"seed={seed}"])])


def check(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    seed: Seed = None,
    keys: Annotated[bool, typer.Option("--all-keys", help="also print every key of the resolved scenario")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="measure the wall time here, in a few rounds of a scratch run")
    ] = False,
    allow_code: AllowScenario = False,
    as_json: Json = False,
) -> None:
    """Validate a scenario and estimate its costs, without training.

    Exit code 2 if the run cannot work: without data, without clients that can take part, or without the memory.
    """
    from scenarios.api.caller import Caller
    from scenarios.config.load import load
    from scenarios.studies.forecast import check_text
    from scenarios.studies.forecast.check import run_check

    loaded = load(scenario, with_seed(overrides, seed))
    caller = Caller()
    caller.notes(loaded)
    found = run_check(loaded, out)
    for note in found.notes:  # and those that need the data
        caller.note(note)
    if measure and found.data.found is not None and not found.refusals:
        from scenarios.studies.forecast import duration

        found = found.with_pace(*duration.measure_here(loaded))
    emit(found.plain(), as_json, lambda: check_text.print_check(found, keys=keys))
    if found.refusals:
        for text in found.refusals[:-1]:
            exit_with_error(f"{loaded.name}: {text}", USAGE)
        raise typer.Exit(exit_with_error(f"{loaded.name}: {found.refusals[-1]}", USAGE))
