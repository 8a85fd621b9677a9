"""The log of a worker: its stderr."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

from edge.protocol.messages import MAX_ERROR_TEXT, printable


def log(text: str) -> None:
    """Write lines to this worker's log, without the control characters that a message may contain.

    Errors of a full disk are ignored, so that they do not replace the error that is logged.
    """
    lines = (printable(line, MAX_ERROR_TEXT) for line in text.split("\n"))
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def log_error() -> None:
    """Write the traceback of the exception that is being handled to the log."""
    log(traceback.format_exc().rstrip())
