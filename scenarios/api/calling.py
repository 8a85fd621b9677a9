"""How Python calls: functions whose keyword arguments are the fields of a request, with errors as Python has them.

`takes` gives such a function its signature and the arguments of its help, from the fields and texts that give the
command of the same name its options.

    @takes(RunRequest, Keys)
    def run(call: Call[RunRequest], scenario: Scenario) -> Run: ...
"""

from __future__ import annotations

import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter
from os import PathLike
from pathlib import Path
from signal import Signals
from textwrap import TextWrapper
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar

from msgspec import Struct, to_builtins

from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError, Stopped
from scenarios.api.callbacks import CallbackObserver, Callbacks
from scenarios.api.caller import Caller
from scenarios.api.object_modules import in_cells
from scenarios.api.requests import MachineRequest, Option, options_of
from scenarios.api.run import Run
from scenarios.api.values import listed, place
from scenarios.config import search_path
from scenarios.config.errors import ScenarioError
from scenarios.run.host import KILLED
from scenarios.run.run_summary import RunSummary

Folder = str | PathLike[str]
RequestType = TypeVar("RequestType", bound=MachineRequest)
Result = TypeVar("Result")
Own = ParamSpec("Own")
KEYWORD, REST = Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD
OVERRIDES = "overrides"
fill = TextWrapper(116, subsequent_indent=8 * " ", break_on_hyphens=False).fill
FLAG = re.compile(r"--([a-z-]+)")
"""An option in a text of the command line"""


@dataclass(frozen=True)
class Told:
    """Arguments of Python alone: who is told of a call's progress."""

    progress: Annotated[bool | None, Option("None shows it in a notebook and on a terminal, True everywhere")] = None
    on_round: Annotated[Callbacks, Option("callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`")] = ()


@dataclass(frozen=True)
class Call(Generic[RequestType]):
    """A call of such a function."""

    request: RequestType
    caller: Caller
    overrides: Mapping[str, object]
    """Keyword arguments that are keys of a scenario"""


def takes(
    kind: type[RequestType], keys: Any = None
) -> Callable[[Callable[Concatenate[Call[RequestType], Own], Result]], Callable[..., Result]]:
    """A decorator for functions of a `Call`, whose keyword arguments are also the fields of a request and of `Told`.

    ``keys``: the type of further keyword arguments, keys of a scenario: a TypedDict or Any.
    """
    options = options_of(kind) | options_of(Told)

    def decorate(function: Callable[Concatenate[Call[RequestType], Own], Result]) -> Callable[..., Result]:
        whole = inspect.signature(function)
        own = list(whole.parameters.values())[1:]
        given = [
            Parameter(name, KEYWORD, default=_plain(each.default), annotation=each.text)
            for name, each in options.items()
        ]
        further = (
            []
            if keys is None
            else [Parameter(OVERRIDES, REST, annotation="Any" if keys is Any else f"Unpack[{keys.__name__}]")]
        )
        signature = whole.replace(parameters=[*own, *given, *further])

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Result:
            arguments = signature.bind(*args, **kwargs).arguments
            overrides = arguments.pop(OVERRIDES, {})
            told = {name: arguments.pop(name) for name in options_of(Told) if name in arguments}
            mine: Any = {each.name: arguments[each.name] for each in own if each.name in arguments}
            with calling(**told, allow_code=arguments.get("allow_code", False)) as caller:
                return function(Call(request_of(kind, arguments), caller, overrides), **mine)  # type: ignore[call-arg]

        called.__signature__ = signature  # type: ignore[attr-defined]
        helped = [fill(f"    {name}: {_text(each.option)}") for name, each in options.items()]
        called.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Args:", *helped, ""])
        return called

    return decorate


def _plain(default: Any) -> Any:
    return str(default) if isinstance(default, Path) else default


def _text(option: Option) -> str:
    """The help of an option, with names of arguments for those of options, and with the forms of its value."""
    text = FLAG.sub(lambda flag: f"``{flag[1].replace('-', '_')}``", option.help)
    forms = (option.metavar or "").split("|")
    return f"{text}: {', '.join(forms[:-1])} or {forms[-1]}" if len(forms) > 1 else text


@contextmanager
def calling(progress: bool | None = None, on_round: Callbacks = (), allow_code: bool = False) -> Iterator[Caller]:
    """A caller whose errors are as Python has them: KeyboardInterrupt for a stop without a result, and no mention of a
    command line. SIGTERM ends a script as it always does; its runs can be resumed.

    ``progress``: None shows it where a person sees it, in a notebook or on a terminal, True anywhere; ``allow_code``:
    as of `run`.
    """
    stream = UpdatedLine() if progress is not False and in_notebook() else None
    is_shown = stream is not None or progress or (progress is None and sys.stderr.isatty())
    try:
        with search_path.allowing(allow_code):
            yield Caller(not is_shown, stream, (Signals.SIGINT,), CallbackObserver(on_round))
    except ScenarioError as error:
        error.word_for_python()
        error.reword(in_cells)
        _show_in_one_line(error)
        raise
    except Stopped:
        raise KeyboardInterrupt from None
    except RunFailed as error:
        error.args = (in_cells(str(error)),)
        _show_in_one_line(error)
        raise
    except PoolError as error:
        raise RunFailed(str(error)) from error
    except SystemExit as end:
        if end.code != KILLED:
            raise
        raise KeyboardInterrupt from None


def request_of(kind: type[RequestType], arguments: Mapping[str, Any]) -> RequestType:
    """The request of a function's call, whose fields are among its ``arguments``."""
    given = {field.name: arguments[field.name] for field in fields(kind) if field.name in arguments}
    if given.get("out") is not None:
        given["out"] = place("out", given["out"])
    if "targets" in given:
        given["targets"] = tuple(listed("targets", given["targets"], "[0.9]"))
    return kind(**given)


def plain(result: Struct) -> dict[str, Any]:
    """A result as the command prints it with ``--json``."""
    tables: dict[str, Any] = to_builtins(result)
    return tables


def made(caller: Caller, result: RunSummary) -> Run:
    """The run with this result, of whose warnings the caller is told."""
    for warning in result.get("warnings", []):
        caller.note(warning)
    return Run(result["run_dir"])


def path_of(folder: Folder | Run) -> Path:
    """The folder of a run; ScenarioError for anything else than a run or a path."""
    if not isinstance(folder, Run | str | PathLike) or folder == "":
        raise ScenarioError(f"{folder!r}: must be a run, or the path of its folder")
    return folder.folder if isinstance(folder, Run) else Path(folder)


def _show_in_one_line(error: ScenarioError | RunFailed) -> None:
    """Have IPython print the text of an error that its user can correct, in place of this product's frames."""
    if "IPython" in sys.modules:
        error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[union-attr]


def in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class UpdatedLine(io.StringIO):
    """A stream whose last line is shown in the cell's output, in the place of the one before."""

    _shown: Any = None

    def write(self, text: str) -> int:
        from IPython import display as output

        display: Any = output.display
        lines = text.split("\n")
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None and self._shown is None:
            self._shown = display({"text/plain": last}, raw=True, display_id=True)
        elif last is not None:
            self._shown.update({"text/plain": last}, raw=True)
        return len(text)
