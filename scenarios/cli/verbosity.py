"""``-v`` of every command: log lines and the place of run data on stderr, and tracebacks of errors.

Without it, logs go into run folders alone, and an error that a user can mend is one message.
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="log lines on stderr, and tracebacks of errors")]
_log = logging.getLogger("fedbr")
_handlers: list[logging.Handler] = []


def with_verbose(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the option ``-v`` as its last."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in inspect.signature(command).parameters.values()
    ]

    @wraps(command)
    def parsed(**values: Any) -> None:
        if values.pop("verbose"):
            _switch_on()
        command(**values)

    last = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)
    parameters = [*own, last]
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    parsed.__annotations__ = {each.name: each.annotation for each in parameters}
    return parsed


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


def show_traceback(error: BaseException) -> None:
    """Print where an expected error was raised, if ``-v`` was given."""
    if _handlers:
        traceback.print_exception(error, file=sys.stderr)


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
