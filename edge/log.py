"""The log of a worker: its stderr."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress


def log(text: str) -> None:
    """One line of this worker's log; on a full disk it is not written, which must not hide what it tells of."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def log_error() -> None:
    """The traceback of the error that is being handled, as `log` would write it."""
    log(traceback.format_exc().rstrip())
