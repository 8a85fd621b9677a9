"""The log of a worker: its stderr."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

from edge.protocol.messages import MAX_ERROR_TEXT, printable


def log(text: str) -> None:
    """A line or more of this worker's log, without control characters that others may have sent.

    On a full disk it is not written, which must not hide what it tells of.
    """
    lines = (printable(line, MAX_ERROR_TEXT) for line in text.split("\n"))
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def log_error() -> None:
    """The traceback of the error that is being handled, as `log` would write it."""
    log(traceback.format_exc().rstrip())
