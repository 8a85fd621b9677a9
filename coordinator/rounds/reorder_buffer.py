"""The reorder buffer: updates that arrived early, a few in memory, the others in an unlinked file.

Workers train the longest visits first, and updates are accumulated in client order; so an update may have to wait for
many others, and a cohort's updates must not fill the memory meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from msgspec.structs import replace

from edge.protocol.messages import Update
from edge.protocol.payload import ITEM_NBYTES, Payload, Shapes, Vector, nbytes, shapes, vectors


class ReorderBuffer:
    """Updates by client, one each. At most ``capacity`` of them are in memory; the file is in ``folder``."""

    def __init__(self, capacity: int, folder: Path) -> None:
        self._capacity, self._folder = capacity, folder
        self._in_memory: dict[int, Update] = {}
        self._in_file: dict[int, tuple[Update, Shapes, int, int]] = {}
        """client -> (update without vectors, their shapes, offset, nbytes)"""
        self._free: dict[int, list[int]] = {}
        """nbytes -> offsets of free regions of this size"""
        self._file: int | None = None
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop all updates and the file."""
        self._in_memory.clear()
        self._in_file.clear()
        self._free.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __contains__(self, client: int) -> bool:
        return client in self._in_memory or client in self._in_file

    def add(self, update: Update) -> None:
        """Store an update; OSError if it must be written to the file and the disk fails."""
        assert update.client not in self, update.client
        if len(self._in_memory) < self._capacity:
            self._in_memory[update.client] = update
            return
        size = nbytes(update.payload)
        if self._free.get(size):
            offset = self._free[size].pop()
        else:
            offset = self._end
            self._end += size
        place = offset
        try:
            for _, _, vector in vectors(update.payload):
                view = vector.data.data.cast("B")
                while view:  # a write may be partial
                    written = os.pwrite(self._opened(), view, place)
                    view, place = view[written:], place + written
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder / "replies")) from error
        self._in_file[update.client] = replace(update, payload={}), shapes(update.payload), offset, size

    def take(self, client: int) -> Update:
        """Remove and return an update."""
        if client in self._in_memory:
            return self._in_memory.pop(client)
        update, sizes, offset, size = self._in_file.pop(client)
        self._free.setdefault(size, []).append(offset)
        raw = np.empty(size // ITEM_NBYTES, dtype=np.float32)
        view = raw.data.cast("B")
        while view:
            read = os.preadv(self._opened(), [view], offset)
            assert read, "the file of buffered updates is too short"
            view, offset = view[read:], offset + read
        payload: Payload = {}
        for slot, named in sizes.items():
            payload[slot] = {}
            for key, count in named.items():
                payload[slot][key], raw = Vector(raw[:count]), raw[count:]
        return replace(update, payload=payload)

    def _opened(self) -> int:
        if self._file is None:
            self._file, name = tempfile.mkstemp(prefix="replies-", suffix=".part", dir=self._folder)
            Path(name).unlink()
        return self._file
