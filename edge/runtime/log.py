"""The log of a worker: its stderr, unless the worker was given the file itself."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import TextIO

from edge.protocol.messages import MAX_ERROR_TEXT, printable

_file: TextIO | None = None


def log_to(descriptor: int) -> None:
    """Write to this file from now on, past the pipe that stderr may be: it is there when a message tells of it."""
    global _file  # noqa: PLW0603 - one per process, as stderr is
    _file = os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def log(text: str) -> None:
    """Write lines to this worker's log, without the control characters that a message may contain.

    Errors of a full disk are ignored, so that they do not replace the error that is logged.
    """
    lines = (printable(line, MAX_ERROR_TEXT) for line in text.split("\n"))
    with suppress(OSError):
        print("\n".join(lines), file=_file or sys.stderr, flush=True)


def log_error() -> None:
    """Write the traceback of the exception that is being handled to the log."""
    log(traceback.format_exc().rstrip())
