"""The command ``fedbr``: its commands and their exit codes.

0 finished; 1 from `diff` alone, whose two sides differ; 2 bad usage or scenario; 3 the run failed, or stdout could not
be written (`scenarios.cli.output`); 4 stopped early by the user; 130 on a second Ctrl-C.
Each command imports its slow modules itself, so that help and usage errors appear at once.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, get_type_hints

import typer

from scenarios.cli import check, flower, folders, lookup, new, output, recorded, remote, runs, studies
from scenarios.cli.help_page import FirstScreen, PlainCommand, PlainGroup, show_version
from scenarios.cli.options import FAILED, FINISHED, STOPPED, USAGE, exit_with_error, parameters_of
from scenarios.config import search_path
from scenarios.run import own_numpy

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="log lines on stderr, and tracebacks of errors")]
_log = logging.getLogger("fedbr")
_handlers: list[logging.Handler] = []


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer takes it: a parameter that is a request or output becomes an option per field, and ``-v``
    is the last."""
    groups: dict[str, type[Any]] = {}
    own, shared = list[inspect.Parameter](), list[inspect.Parameter]()
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            shared += parameters_of(kind)
        else:
            own.append(parameter.replace(annotation=kind))

    @wraps(function)
    def command(**values: Any) -> None:
        if values.pop("verbose"):
            _switch_on()
        is_allowed = bool(values.get("allow_code"))
        for name, group in groups.items():
            given = {each.name: values.pop(each.name) for each in fields(group)}
            values[name] = group(**{key: value for key, value in given.items() if value is not None})
        with search_path.allowing(is_allowed):
            function(**values)

    last = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)
    parameters = [*own, *shared, last]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


@contextmanager
def restored() -> Iterator[None]:
    """Leave logging as it was, whatever the command inside switches on."""
    level, before = _log.level, list(_handlers)
    try:
        yield
    finally:
        for handler in [each for each in _handlers if each not in before]:
            _log.removeHandler(handler)
            _handlers.remove(handler)
        _log.setLevel(level)


def _switch_on() -> None:
    from edge.protocol.plugins import own_folders
    from scenarios.config.cache import cache_folder

    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _handlers.append(handler)
    _log.info("Python %s, cache %s, plug-ins from %s", sys.executable, cache_folder(), ", ".join(own_folders()))


app = typer.Typer(
    cls=FirstScreen,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Simulate federated learning on fleets of edge devices.",
)


@app.callback()
def options_of_all(
    ctx: typer.Context,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress, of commands that show it")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="log lines on stderr, and tracebacks of errors")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Options before the command: those of every command may stand here, too."""
    given = {name: True for name, is_given in (("quiet", quiet), ("verbose", verbose)) if is_given}
    ctx.default_map = _for_each_command(ctx.command, given)


def _for_each_command(group: Any, values: Mapping[str, object]) -> dict[str, object]:
    """The values as defaults of all commands below a group, by their names, as click reads them."""
    return {
        name: _for_each_command(command, values) if hasattr(command, "commands") else dict(values)
        for name, command in group.commands.items()
    }


def main() -> None:
    """Entry point. Files are never writable by others, whatever the user's umask is.

    A user's own modules are imported from the current folder, too (`scenarios.config.search_path`), but for commands
    on runs that there are.
    """
    os.umask(os.umask(0o022) | 0o022)
    search_path.protect()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    searched: AbstractContextManager[None] = search_path.with_current_folder()
    if command in (*COMMANDS[RECORDED], "resume"):
        search_path.leave_current_folder()
        searched = nullcontext()
    own_numpy.claim()
    output.guard()
    with searched:
        code = run_command(sys.argv[1:])
    if (loss := output.lost()) is not None:
        problem, is_needed = loss
        failed = exit_with_error(f"stdout cannot be written: {problem}", FAILED)
        code = failed if code == FINISHED and is_needed else code
    sys.exit(code)


@cache
def _all_commands() -> Any:
    """What typer makes of ``app``, once for all command lines of a process."""
    return typer.main.get_command(app)


def run_command(arguments: Sequence[str]) -> int:
    """The exit code of a command line; every expected failure becomes one message on stderr, never a traceback."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # Python's surrogates for other bytes
            return exit_with_error(f"{argument!r}: must be UTF-8", USAGE)
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    command = next((word for word in words if not word.startswith("-")), "")
    if command in SUCCESSORS:
        return exit_with_error(f"{command}: is now {SUCCESSORS[command]}", USAGE)
    with restored(), search_path.restored():
        try:
            _all_commands()(words, prog_name="fedbr")
        except SystemExit as end:
            cause: BaseException | None = end  # perhaps of a Ctrl-C that no command handled
            while cause is not None and not isinstance(cause, KeyboardInterrupt):
                cause = cause.__cause__ or cause.__context__
            if cause is not None:
                return exit_with_error("stopped", STOPPED)
            return end.code if isinstance(end.code, int) else FINISHED
        except KeyboardInterrupt:
            return exit_with_error("stopped", STOPPED)
        except Exception as error:
            code = _expected(error)
            if code is None:
                raise
            if _handlers:  # -v was given
                traceback.print_exception(error, file=sys.stderr)
            return exit_with_error(str(error) or "stopped", code)
    return FINISHED


def _expected(error: Exception) -> int | None:
    from edge.data.registry import DataError
    from edge.runtime.keys import KeyFileError
    from scenarios.config.load import ScenarioError

    if isinstance(error, ScenarioError | DataError | KeyFileError):
        return USAGE
    from coordinator.rounds.run import RunFailed
    from coordinator.workers.task import PoolError, Stopped
    from scenarios.config.errors import ReportError

    if isinstance(error, ReportError):
        return USAGE
    if isinstance(error, Stopped):
        return STOPPED
    return FAILED if isinstance(error, RunFailed | PoolError | OSError) else None


ONE_RUN, RECORDED = "One run", "Recorded"
COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    ONE_RUN: {"run": runs.run, "resume": runs.resume, "check": check.check},
    RECORDED: {
        "report": recorded.report,
        "audit": recorded.audit,
        "replay": recorded.replay,
        "diff": folders.diff,
        "ls": folders.ls,
    },
    "Names": {"list": lookup.list_, "explain": lookup.explain},
    "Studies": {
        "compare": studies.compare,
        "sweep": studies.sweep,
        "decide": studies.decide,
        "reproduce": studies.reproduce,
        "stress": studies.stress,
    },
    "Others": {"new": new.new, "worker": remote.worker},
}
"""Heading of the help -> name -> command"""
SUCCESSORS = {
    "check-plugin": "check --plugin MODULE:NAME",
    "doctor": "check, without a scenario",
    "gc": "ls --unneeded --rm",
    "keys": "worker --new-keys NAME",
    "measure": "replay --measure METRICS RUN",
    "pack": "report --pack RUN",
    "rm": "ls --rm RUN",
    "schema": "explain --schema",
    "study": "sweep, with --at NAME=AMOUNTS for budgets and --judge validation for tuning",
    "verify": "diff --again RUN",
}
"""Name of an earlier command -> the words that are in its place"""
CLASSES = {"report": recorded.ReportCommand}
"""Name -> how its words are read, where that is special"""

for heading, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=CLASSES.get(name, PlainCommand), rich_help_panel=heading)(as_command(command))
apps = typer.Typer(no_args_is_help=True, help="Apps of Flower on a fleet, and scenarios as such apps.")
for of_apps in (flower.run, flower.export):
    apps.command(of_apps.__name__, cls=PlainCommand)(as_command(of_apps))
app.add_typer(apps, name="flower", cls=PlainGroup, rich_help_panel=ONE_RUN)


if __name__ == "__main__":
    main()
