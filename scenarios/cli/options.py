"""Parts that the commands of ``fedbr`` share: options, the start of workers, output, and exit codes.

Slow modules are imported by functions, when a command runs.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from scenarios.api.requests import ALLOW_SCENARIO, Option, options_of
from scenarios.cli import output
from scenarios.cli.completion import complete_overrides, complete_scenarios

if TYPE_CHECKING:
    from scenarios.api.caller import Caller

FINISHED, DIFFERENT, USAGE, FAILED, STOPPED = 0, 1, 2, 3, 4
"""Exit codes; `DIFFERENT` is that of ``diff`` alone"""


def each_once(ctx: typer.Context, words: list[str] | None) -> list[str] | None:
    """KEY=VALUE words as they are; ScenarioError for a key that two of them set."""
    if words and not ctx.resilient_parsing:  # while a shell completes, they are not whole
        from scenarios.config.overrides import parsed

        parsed(words)
    return words


def typer_option(name: str, option: Option) -> Any:
    """The option of a request's field of this name, as typer takes it."""
    flag = f"--{(option.name or name).replace('_', '-')}"
    return typer.Option(flag, metavar=option.metavar, min=option.least, help=option.help)


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
AllowScenario = Annotated[bool, typer_option("allow_code", ALLOW_SCENARIO)]
"""`scenarios.cli.main` allows it for the whole command"""
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="the same as seed=N")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout and nothing else; implies --quiet")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="no progress")]


@dataclass(frozen=True)
class Output:
    """What commands that train print."""

    as_json: Json = False
    quiet: Quiet = False

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json

    def tell(self, text: str) -> None:
        """Print a line of progress to stderr, unless the command is to be silent."""
        if not self.silent:
            print(f"fedbr: {text}", file=sys.stderr, flush=True)

    def caller(self) -> Caller:
        from scenarios.api.caller import Caller

        return Caller(self.silent)


@dataclass(frozen=True)
class ReportOutput(Output):
    """What commands print that also draw a report."""

    report: Annotated[
        bool, typer.Option("--report/--no-report", envvar="FEDBR_REPORT", help="draw the report, which takes seconds")
    ] = True


@dataclass(frozen=True)
class ExperimentOutput(ReportOutput):
    """What commands print that make several runs."""

    estimate: Annotated[
        bool, typer.Option("--estimate", help="print runs, bytes and duration on this machine, and run nothing of it")
    ] = False


def parameters_of(group: type[Any]) -> Iterator[inspect.Parameter]:
    """The options of a request or output, a dataclass, those that it inherits last."""
    for name, each in options_of(group).items():
        kind, default, option = _kind_of_words(each.kind), each.default, each.option
        if get_origin(kind) is list:
            kind, default, option = kind | None, None, replace(option, help=f"{option.help}; may be repeated")
        option = typer_option(name, option) if isinstance(option, Option) else option
        keyword = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option])


def _kind_of_words(kind: Any) -> Any:
    """The type that a command line gives, of which Python may take more: a list of words, or a text."""
    kinds = get_args(kind)
    if any(each in (Sequence[float | str], Sequence[str]) for each in (kind, *kinds)):
        return list[str]
    if len(kinds) > 2 or any(get_origin(each) is Literal for each in kinds):
        return str | None
    return kind


def report_or_warning(draw: Callable[[], Path]) -> Path | None:
    """The report; None with a warning if it cannot be written, since the result must be printed all the same."""
    from scenarios.config.errors import ReportError

    try:
        return draw()
    except (OSError, ReportError) as error:
        print(f"fedbr: warning: there is no report: {error}", file=sys.stderr)
        return None


def emit(result: Any, as_json: bool, show: Callable[[], None], in_files: bool = False) -> None:
    """Print the result, whose keys are those of a dict or names of a struct's fields, as JSON, or call ``show``.

    ``in_files``: what ``show`` prints is also in the folders of runs, so that a full disk below stdout is no failure.
    """
    if as_json:
        from msgspec import Struct, to_builtins

        print(json.dumps(_finite(to_builtins(result) if isinstance(result, Struct) else result)))
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
