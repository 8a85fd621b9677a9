"""Block versions in files in memory, which all workers of this machine map: each is there once. Never a socket.

A file lives from the first worker that needs its version until nobody needs it, and no worker has it. It is in a folder
that is removed with the pool, or by the fork server if the coordinator is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from edge.protocol.payload import Vector
from edge.protocol.scratch import scratch

MEMORY = Path("/dev/shm")
SHARED_NBYTES = 1 << 16
"""Shorter vectors are sent: a file costs more than a few copies."""


class SharedBlocks:
    """The files of one pool."""

    def __init__(self, exits: ExitStack, adopt: Callable[[Path], None]) -> None:
        """``adopt`` is called with the folder, so that somebody else removes it if this process is killed.

        Where there is no file system in memory, nothing is shared.
        """
        self._folder: Path | None = None
        self._versions: set[bytes] = set()
        with suppress(OSError):
            self._folder = exits.enter_context(scratch(MEMORY))
            adopt(self._folder)

    @property
    def folder(self) -> str:
        """The folder with a file per version, named in hexadecimal digits."""
        return str(self._folder)

    def share(self, vector: Vector) -> bool:
        """Whether a file has the vector's numbers, written now or before; False if it is short or memory is full."""
        if self._folder is None or vector.nbytes < SHARED_NBYTES:
            return False
        if vector.version not in self._versions:
            path = self._folder / vector.version.hex()
            try:
                with path.open("xb", buffering=0) as file:
                    _write_all(file.fileno(), vector.data.data.cast("B"))
            except OSError:
                path.unlink(missing_ok=True)
                return False
            self._versions.add(vector.version)
        return True

    def remove(self, version: bytes) -> None:
        """Remove a version's file, if there is one; workers that have mapped it keep its numbers."""
        if version in self._versions and self._folder is not None:
            self._versions.remove(version)
            (self._folder / version.hex()).unlink(missing_ok=True)


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
