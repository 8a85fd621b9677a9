"""The commands of one run: run, resume, check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scenarios.cli import own_numpy
from scenarios.cli.options import (
    FINISHED,
    STOPPED,
    USAGE,
    Device,
    For,
    Json,
    Out,
    Overrides,
    Quiet,
    Report,
    RunId,
    ScenarioName,
    Seed,
    emit,
    exit_with_error,
    print_notes,
    report_or_warning,
    with_options,
    with_workers,
)
from scenarios.cli.remote import OwnWorkers, RemoteOptions
from scenarios.notes import note_printer

if TYPE_CHECKING:
    from scenarios.config.load import Loaded
    from scenarios.host import Host, Piece


@with_options(RemoteOptions)
def run(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    run_id: RunId = None,
    workers: OwnWorkers = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    piece: For = None,
    report: Report = True,
    *,
    options: RemoteOptions,
) -> None:
    """Run a scenario; write its run folder and report."""
    from scenarios import runner
    from scenarios.config.load import load

    remote_access = options.access(workers)
    loaded = load(scenario, _with_seed(overrides, seed))
    own_numpy.limit([loaded])
    print_notes(loaded)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return runner.run(loaded, host, launcher, stopped, stop_at_target=True)

    quiet = quiet or as_json
    result = with_workers([loaded], out, run_id, workers, device, quiet, work, remote_access, piece)
    _finish(loaded, result, as_json, report)


def _finish(loaded: Loaded, result: dict[str, Any], as_json: bool, report: bool) -> NoReturn:
    """Print the summary of a run, draw its report if one is wanted and not there, and exit with its code."""
    from scenarios.report import html, terminal

    stopped = result["stopped_by"] == "user"
    folder = Path(result["run_dir"])
    page: Path | None = folder / "report.html"
    if stopped:  # a user who stops a run does not wait for a report; `fedbr report` draws it later
        page = None
    elif not _is_younger(folder / "report.html", folder / "ledger.sqlite"):
        server = f", server={loaded.scenario.server}" if loaded.scenario.server != "plain" else ""
        title = f"{loaded.name}: {loaded.scenario.method}{server}"
        page = report_or_warning(lambda: html.build([folder], folder / "report.html", title)) if report else None
    emit(result, as_json, lambda: terminal.print_summary(result, page))
    for warning in result.get("warnings", []):
        print(f"fedbr: warning: {warning}", file=sys.stderr)
    raise typer.Exit(STOPPED if stopped else FINISHED)


def _is_younger(page: Path, ledger: Path) -> bool:
    """Whether there is a report, drawn after the ledger was last written."""
    return page.is_file() and page.stat().st_mtime >= ledger.stat().st_mtime


@with_options(RemoteOptions)
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="other limits, for example rounds.max=200")
    ] = None,
    workers: OwnWorkers = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    piece: For = None,
    report: Report = True,
    *,
    options: RemoteOptions,
) -> None:
    """Resume a killed or stopped run; the result is bit-identical.

    The run continues after its last committed round. For a run that has ended, print the summary, and draw the report
    if that is missing; with another limit (rounds.max, stop.*, budget.*), go on with it.
    """
    from scenarios import extension, runner
    from scenarios.host import check_room

    remote_access = options.access(workers)
    loaded, device = runner.open_existing(folder, device)
    result = runner.ended(loaded, folder)
    if overrides:
        loaded = extension.extend(loaded, folder, overrides)
        result = runner.ended(loaded, folder)
    if result is not None:
        _finish(loaded, result, as_json, report)
    check_room(folder)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return runner.resume(loaded, host, folder, launcher, stopped)

    quiet = quiet or as_json
    result = with_workers([loaded], None, None, workers, device, quiet, work, remote_access, piece)
    _finish(loaded, result, as_json, report)


def _with_seed(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


def check(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    seed: Seed = None,
    keys: Annotated[bool, typer.Option("--keys", help="also print every key of the resolved scenario")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="measure the wall time here, in a few rounds of a scratch run")
    ] = False,
    as_json: Json = False,
) -> None:
    """Validate a scenario and estimate its costs, without training.

    Exit code 2 if the run cannot work: without data, without clients that can take part, or without the memory.
    """
    from scenarios.config.load import load
    from scenarios.report import check_output
    from scenarios.studies import duration, run_costs
    from scenarios.studies import estimate as study

    loaded = load(scenario, _with_seed(overrides, seed))
    tell = note_printer()
    print_notes(loaded, tell)
    result = study.run_check(loaded, out)
    for note in result["notes"]:  # and those that need the data
        tell(note)
    if measure and result["estimate"]["data"]["found"] is not None and not result["refusals"]:
        result["costs"] = run_costs.with_pace(result["costs"], *duration.measured_here(loaded))
    emit(result, as_json, lambda: check_output.print_check(result, keys=keys))
    if result["refusals"]:
        for text in result["refusals"][:-1]:
            exit_with_error(f"{loaded.name}: {text}", USAGE)
        raise typer.Exit(exit_with_error(f"{loaded.name}: {result['refusals'][-1]}", USAGE))
