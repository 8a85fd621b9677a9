"""A file for what a process prints, which a user's code may do without end."""

from __future__ import annotations

import os
from contextlib import suppress

MAX_LOG_NBYTES = 8_000_000
"""Of a log; what is printed beyond that is dropped, but for its end"""
TAIL_NBYTES = 64_000
"""Of the end, where the reason is that a process has ended"""
CHUNK_NBYTES = 1 << 16
CHUNKS_AT_THE_END = 256
"""More than a pipe holds"""


class BoundedLog:
    """Copies the output of processes from a pipe into a file.

    Errors of a full disk are ignored: they are no reason to end what is printed about.
    """

    def __init__(self, output: int, log: int, most_nbytes: int = MAX_LOG_NBYTES) -> None:
        """``output``: the pipe's end to read; ``log``: the file, to which is appended. Both are closed in the end."""
        os.set_blocking(output, False)
        self.output, self._log = output, log
        self._room = max(0, most_nbytes - os.fstat(log).st_size)
        self._dropped, self._tail = 0, b""

    def copy(self) -> bool:
        """Copy what is there now, but no more than a chunk; whether there may be more."""
        try:
            text = os.read(self.output, CHUNK_NBYTES)
        except BlockingIOError:
            return False
        self._write(text[: self._room])
        rest = text[self._room :]
        self._room -= len(text) - len(rest)
        self._dropped += len(rest)
        self._tail = (self._tail + rest)[-TAIL_NBYTES:]
        return bool(text)

    def close(self) -> None:
        """Copy the rest, of which nothing is waited for, and the end of what was dropped."""
        for _ in range(CHUNKS_AT_THE_END):
            if not self.copy():
                break
        os.close(self.output)
        if self._dropped:
            left_out = self._dropped - len(self._tail)
            self._write(b"\n[%d bytes are left out: a log has at most %d]\n" % (left_out, MAX_LOG_NBYTES) + self._tail)
        os.close(self._log)

    def _write(self, text: bytes) -> None:
        with suppress(OSError):
            while text:
                text = text[os.write(self._log, text) :]
