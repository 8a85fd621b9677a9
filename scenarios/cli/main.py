"""The command ``fedbr``: its commands and their exit codes.

0 finished; 2 bad usage or scenario; 3 the run failed; 4 stopped early by the user; 130 on a second Ctrl-C.
Each command imports its slow modules itself, so that help and usage errors appear at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from scenarios import search_path
from scenarios.cli import lookup, recorded, remote, runs, studies
from scenarios.cli.options import FAILED, FINISHED, STOPPED, USAGE, exit_with_error

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Simulate federated learning on heterogeneous edge fleets: real training, a virtual clock, all bytes counted.",
)


def main() -> None:
    """Entry point. Files are never writable by others, whatever the user's umask is.

    A user's own modules are imported from the current folder, too (`scenarios.search_path`).
    """
    os.umask(os.umask(0o022) | 0o022)
    search_path.protect()
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


for command in (runs.run, runs.resume, studies.compare, runs.check, recorded.report):
    app.command()(command)
app.command("list")(lookup.list_)
for command in (lookup.doctor, remote.keys, remote.worker):
    app.command()(command)
app.add_typer(studies.several, name="study")
for command in (studies.reproduce, recorded.replay, recorded.verify, recorded.measure):
    app.command()(command)
app.command("check-plugin")(studies.check_plugin)
app.command()(studies.stress)


if __name__ == "__main__":
    main()
