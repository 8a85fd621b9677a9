"""The commands of one run: run, resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from scenarios.cli.options import (
    FINISHED,
    STOPPED,
    Limits,
    Overrides,
    ReportOutput,
    ScenarioName,
    Seed,
    emit,
    report_or_warning,
)
from scenarios.cli.remote import ResumeOptions, RunOptions

if TYPE_CHECKING:
    from scenarios.config.load import Loaded
    from scenarios.config.tables import TomlValue
    from scenarios.run.run_summary import RunSummary


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
    """Resume a killed or stopped run, bit-identically.

    The run continues after its last committed round. For a run that has ended, print the summary, and draw the report
    if that is missing; with another limit (rounds.max, stop.*, budget.*), go on with it.
    """
    from scenarios.config.overrides import parsed

    finish(*output.caller().resume(folder, parsed(overrides or []), request), output)


def finish(loaded: Loaded, result: RunSummary, output: ReportOutput) -> NoReturn:
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


def with_seed(overrides: list[str] | None, seed: int | None) -> dict[str, TomlValue]:
    from scenarios.config.overrides import parsed

    return parsed([*(overrides or []), *([] if seed is None else [f"seed={seed}"])])
