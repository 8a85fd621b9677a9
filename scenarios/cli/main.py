"""The command ``fedbr``: its commands and their exit codes.

0 finished; 2 bad usage or scenario; 3 the run failed; 4 stopped early by the user; 130 on a second Ctrl-C.
Each command imports its slow modules itself, so that help and usage errors appear at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scenarios.cli import remote, studies
from scenarios.cli.options import (
    FAILED,
    FINISHED,
    STOPPED,
    USAGE,
    Device,
    For,
    Json,
    Out,
    Overrides,
    Quiet,
    RunId,
    ScenarioName,
    Seed,
    emit,
    exit_with_error,
    note_printer,
    print_notes,
    report_or_warning,
    with_options,
    with_workers,
)
from scenarios.cli.remote import OwnWorkers, RemoteOptions

if TYPE_CHECKING:
    from scenarios.config.load import Loaded
    from scenarios.host import Host, Piece

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Simulate federated learning on heterogeneous edge fleets: real training, a virtual clock, all bytes counted.",
)


def main() -> None:
    """Entry point. Files are never writable by others, whatever the user's umask is.

    A user's own modules are imported from the current folder, too; installed ones come first.
    """
    os.umask(os.umask(0o022) | 0o022)
    with suppress(FileNotFoundError):  # the current folder was removed
        if not {"", str(Path.cwd())} & set(sys.path):
            sys.path.append(str(Path.cwd()))
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """The exit code of a command line; every expected failure becomes one message on stderr, never a traceback."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # Python's surrogates for other bytes
            return exit_with_error(f"{argument!r}: must be UTF-8", USAGE)
    try:
        app(list(arguments), prog_name="fedbr")
    except SystemExit as end:
        if _is_interrupted(end):
            return exit_with_error("stopped", STOPPED)
        return end.code if isinstance(end.code, int) else FINISHED
    except KeyboardInterrupt:
        return exit_with_error("stopped", STOPPED)
    except Exception as error:
        code = _expected(error)
        if code is None:
            raise
        return exit_with_error(str(error) or "stopped", code)
    return FINISHED


def _is_interrupted(end: SystemExit) -> bool:
    """Whether this exit stems from a Ctrl-C that no command handled."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _expected(error: Exception) -> int | None:
    from edge.data.registry import DataError
    from edge.runtime.keys import KeyFileError
    from scenarios.config.load import ScenarioError

    if isinstance(error, ScenarioError | DataError | KeyFileError):
        return USAGE
    from coordinator.rounds.run import RunFailed
    from coordinator.workers.task import PoolError, Stopped
    from scenarios.report.run_reader import ReportError

    if isinstance(error, ReportError):
        return USAGE
    if isinstance(error, Stopped):
        return STOPPED
    return FAILED if isinstance(error, RunFailed | PoolError | OSError) else None


@app.command()
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
    *,
    options: RemoteOptions,
) -> None:
    """Run a scenario; write its run folder and report."""
    from scenarios import runner
    from scenarios.config.load import load

    remote_access = options.access(workers)
    loaded = load(scenario, _with_seed(overrides, seed))
    print_notes(loaded)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return runner.run(loaded, host, launcher, stopped, stop_at_target=True)

    quiet = quiet or as_json
    _finish(loaded, with_workers([loaded], out, run_id, workers, device, quiet, work, remote_access, piece), as_json)


def _finish(loaded: Loaded, result: dict[str, Any], as_json: bool) -> NoReturn:
    """Print the summary of a run, draw its report if there is no current one, and exit with its code."""
    from scenarios.report import html, terminal

    stopped = result["stopped_by"] == "user"
    folder = Path(result["run_dir"])
    page: Path | None = folder / "report.html"
    if stopped:  # a user who stops a run does not wait for a report; `fedbr report` draws it later
        page = None
    elif not _is_younger(folder / "report.html", folder / "ledger.sqlite"):
        title = f"{loaded.name}: {loaded.scenario.method}"
        page = report_or_warning(lambda: html.build([folder], folder / "report.html", title))
    emit(result, as_json, lambda: terminal.print_summary(result, page))
    raise typer.Exit(STOPPED if stopped else FINISHED)


def _is_younger(page: Path, ledger: Path) -> bool:
    """Whether there is a report, drawn after the ledger was last written."""
    return page.is_file() and page.stat().st_mtime >= ledger.stat().st_mtime


@app.command()
@with_options(RemoteOptions)
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of an interrupted run")],
    workers: OwnWorkers = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    piece: For = None,
    *,
    options: RemoteOptions,
) -> None:
    """Resume a killed or stopped run; the result is bit-identical.

    The run continues after its last committed round. For a run that has ended, print the summary, and draw the report
    if that is missing.
    """
    from scenarios import runner
    from scenarios.host import check_room

    remote_access = options.access(workers)
    loaded, device = runner.open_existing(folder, device)
    result = runner.ended(loaded, folder)
    if result is not None:
        _finish(loaded, result, as_json)
    check_room(folder)

    def work(host: Host, launcher: Any, stopped: Piece) -> dict[str, Any]:
        return runner.resume(loaded, host, folder, launcher, stopped)

    quiet = quiet or as_json
    _finish(loaded, with_workers([loaded], None, None, workers, device, quiet, work, remote_access, piece), as_json)


app.command()(studies.compare)


def _with_seed(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


@app.command()
def check(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Validate a scenario and estimate its costs, without training."""
    from scenarios.config.load import load
    from scenarios.report import terminal
    from scenarios.studies import estimate as study

    loaded = load(scenario, _with_seed(overrides, seed))
    tell = note_printer()
    print_notes(loaded, tell)
    result = study.run_check(loaded, out)
    for note in result["notes"]:  # and those that need the data
        tell(note)
    emit(result, as_json, lambda: terminal.print_check(result))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a run folder, or the folder of a comparison")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="the HTML file")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="also write one row per round as CSV, and evaluations beside it")
    ] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="the same as Parquet")] = None,
) -> None:
    """Write the report of a run or a comparison as one HTML file."""
    from scenarios.report import html as reports
    from scenarios.report.run_reader import ReportError

    try:
        print(reports.from_folder(folder, output, csv, parquet))
    except OSError as error:
        raise ReportError(f"cannot write {error.filename}: {error.strerror}") from None


@app.command("list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods (with corrections), servers, selections, policies, schedules, models, datasets, partitions, "
            "metrics, devices, networks, scenarios",
        ),
    ],
    assumed: Annotated[bool, typer.Option("--assumed", help="only rows with assumed figures")] = False,
    as_json: Json = False,
) -> None:
    """List the names that a scenario can use."""
    from scenarios.cli import listing

    rows = listing.rows(kind, assumed)
    emit(rows, as_json, lambda: listing.show(kind, rows, assumed=assumed))


@app.command()
def doctor(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure training steps, and save a device for fleets")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="name of the calibrated device")] = "this-host",
    passes: Annotated[int, typer.Option("--passes", help="repetitions of a calibration")] = 3,
    as_json: Json = False,
) -> None:
    """Show this machine: cores, memory, GPUs, versions, data sets."""
    from scenarios.studies import doctor as checks

    if calibrate:
        result = checks.calibrate(name, quiet=as_json, passes=passes)
        emit(result, as_json, lambda: checks.show_calibration(result))
        return
    result = checks.examine()
    emit(result, as_json, lambda: checks.show(result))


app.command()(remote.keys)
app.command()(remote.worker)
app.add_typer(studies.several, name="study")
app.command()(studies.reproduce)
app.command()(studies.replay)
app.command()(studies.verify)
app.command()(studies.measure)
app.command("check-plugin")(studies.check_plugin)
app.command()(studies.stress)


if __name__ == "__main__":
    main()
