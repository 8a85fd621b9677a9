"""Parts that the commands of ``fedbr`` share: options, the start of workers, output, and exit codes.

Slow modules are imported by functions, when a command runs.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from scenarios.cli import output, own_numpy
from scenarios.cli.completion import complete_overrides, complete_scenarios
from scenarios.run.observer import NotePrinter

if TYPE_CHECKING:
    from scenarios.config.load import Loaded
    from scenarios.report.live import LiveTable
    from scenarios.run.session import Session, Work

FINISHED, DIFFERENT, USAGE, FAILED, STOPPED = 0, 1, 2, 3, 4
"""Exit codes; `DIFFERENT` is that of ``diff`` alone"""


def each_once(ctx: typer.Context, words: list[str] | None) -> list[str] | None:
    """KEY=VALUE words as they are; ScenarioError for a key that two of them set."""
    if words and not ctx.resilient_parsing:  # while a shell completes, they are not whole
        from scenarios.config.overrides import parsed

        parsed(words)
    return words


ScenarioName = Annotated[
    str,
    typer.Argument(help="a shipped scenario (fedbr list scenarios) or a TOML file", autocompletion=complete_scenarios),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="for example train.lr=0.05",
        autocompletion=complete_overrides,
        callback=each_once,
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="other limits, for example rounds.max=200", callback=each_once),
]
Out = Annotated[Path, typer.Option("--out", help="folder for run folders")]
RunId = Annotated[str | None, typer.Option("--run-id", metavar="NAME", help="name of the run folder")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="worker processes; by default one per core, on GPUs by memory")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="the same as seed=N")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda (all GPUs), cuda:N or auto")]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="import the run's modules also from the current folder and from where they were"),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout and nothing else; implies --quiet")]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", min=1, help="runs at a time, which share the --workers; with --on, at most so many"),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="DURATION", help='stop at a round\'s end after so long, to go on later: "2 h"; exit code 4'
    ),
]
Report = Annotated[
    bool, typer.Option("--report/--no-report", envvar="FEDBR_REPORT", help="draw the report, which takes seconds")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="no progress")]


SpreadOn = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray|auto|HOST:PORT|ray://HOST:PORT",
        help="a Ray cluster whose nodes make the runs, each with --workers cores",
    ),
]


@dataclass(frozen=True)
class SharedOptions:
    """Options of every command that makes runs."""

    device: Device = "auto"
    as_json: Json = False
    quiet: Quiet = False
    piece: For = None
    report: Report = True

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class StudyOptions(SharedOptions):
    """Options of every command that makes several runs in one folder."""

    out: Out = Path("runs")
    run_id: RunId = None
    workers: Workers = None
    seed: Seed = None


@dataclass(frozen=True)
class SpreadOptions(StudyOptions):
    """The same with those of commands whose runs may be made at the same time, here or on the nodes of a cluster."""

    parallel: Parallel = None
    on: SpreadOn = None


def with_options(group: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose last parameter, ``options``, is such a group: its fields become options of their own."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "options"
        ]
        hints = get_type_hints(group, include_extras=True)
        bases = list(group.__mro__)
        depths = {name: bases.index(base) for base in reversed(bases) for name in inspect.get_annotations(base)}
        inherited_last = sorted(fields(group), key=lambda field: depths[field.name])
        shared = [
            inspect.Parameter(field.name, own[0].kind, default=field.default, annotation=hints[field.name])
            for field in inherited_last
        ]

        @wraps(command)
        def parsed(**values: Any) -> None:
            options = group(**{parameter.name: values.pop(parameter.name) for parameter in shared})
            command(**values, options=options)

        parameters = [*own, *shared]
        parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
        parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return parsed

    return decorate


def call_session(
    runs: Sequence[Loaded], work: Work, session: Session, quiet: bool, show: LiveTable | None = None
) -> dict[str, Any]:
    """`Session.call`, of which a live table of ``runs``, or ``show``, is told. Errors as of it."""
    from coordinator.workers.monitor import FIRST_REMOTE_WORKER_SECONDS
    from scenarios.report.live import LiveTable

    own_numpy.limit(runs)
    access, engine = session.remote_access, session.engine
    names = access.names if access is not None else engine.names if engine is not None else {}
    first_wait = FIRST_REMOTE_WORKER_SECONDS if access is not None and session.workers == 0 else None
    methods = [loaded.scenario.method for loaded in runs]
    show = show or LiveTable(methods, None, quiet, names, first_wait, shows_address=engine is None)
    return replace(session, observers=(show, NotePrinter())).call(runs, work)


def report_or_warning(draw: Callable[[], Path]) -> Path | None:
    """The report; None with a warning if it cannot be written, since the result must be printed all the same."""
    from scenarios.config.errors import ReportError

    try:
        return draw()
    except (OSError, ReportError) as error:
        print(f"fedbr: warning: there is no report: {error}", file=sys.stderr)
        return None


def print_notes(loaded: Loaded, tell: NotePrinter | None = None) -> None:
    """Print the notes for a scenario's author to stderr, by default with a printer of their own."""
    from scenarios.run import builder

    tell = tell or NotePrinter()
    for note in (*loaded.notes, *builder.fleet_notes(loaded)):
        tell(note)


def progress_printer(silent: bool) -> Callable[[str], None]:
    """A function that prints lines of progress to stderr, unless the command is to be silent."""

    def tell(text: str) -> None:
        if not silent:
            print(f"fedbr: {text}", file=sys.stderr, flush=True)

    return tell


def emit(result: Any, as_json: bool, show: Callable[[], None], in_files: bool = False) -> None:
    """Print the result as one JSON object, or call ``show``.

    ``in_files``: what ``show`` prints is also in the folders of runs, so that a full disk below stdout is no failure.
    """
    if as_json:
        print(json.dumps(_finite(result)))
        return
    if in_files:
        output.spare()
    show()


def _finite(value: Any) -> Any:
    """The value with null for infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exit_with_error(text: str, code: int) -> int:
    """Print one message to stderr and return the exit code. Control characters from files are escaped."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)
    print(f"fedbr: {plain}", file=sys.stderr)
    return code
