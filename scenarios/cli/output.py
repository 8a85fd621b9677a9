"""stdout and stderr of the command ``fedbr``: what cannot be written there ends nothing.

A reader that has gone (``| head -1``), or a stream that was closed before the start, wants no more: the rest is
dropped, and the exit code is what it would have been. That of git and ls is 141, since a signal ends them; a run goes
on, and a list has nothing left to do. Where the output is lost to somebody who wants it, as on a full disk, the command
goes on as well, and says so at its end (`lost`). Never in a process that is not the command's own.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO


class _Descriptor(io.FileIO):
    """A descriptor that takes everything: after the first error, what is written goes nowhere."""

    error: OSError | None = None
    is_needed = True
    """Whether what is written is nowhere else"""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


_descriptors: dict[str, _Descriptor] = {}
"""Those of stdout and stderr, in a process of the command ``fedbr``"""


def guard() -> None:
    """Have this process, which is the command's own, write so from now on."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # or the next file to be opened would take its place
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in enumerate(("stdout", "stderr"), 1):
        before: TextIO | None = getattr(sys, name)
        descriptor = _descriptors[name] = _Descriptor(number, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(descriptor),
            encoding=before.encoding if before is not None else "utf-8",
            errors=before.errors if before is not None else "backslashreplace",
            line_buffering=getattr(before, "line_buffering", False) or getattr(before, "write_through", False),
        )
        setattr(sys, name, stream)


def spare() -> None:
    """What is printed is in files, too: its loss is no failure."""
    for descriptor in _descriptors.values():
        descriptor.is_needed = False


def lost() -> tuple[str, bool] | None:
    """Why stdout could not be written, and whether what is lost is nowhere else; None if nobody wants it."""
    sys.stdout.flush()
    stdout = _descriptors["stdout"]
    if stdout.error is None or stdout.error.errno == errno.EPIPE:
        return None
    return str(stdout.error.strerror), stdout.is_needed
