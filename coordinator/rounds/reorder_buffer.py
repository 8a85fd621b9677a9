"""Replies that wait for their turn: a few in memory, the others in a file without a name.

Workers are given the longest visits first, and updates are added up in client order; so a reply may have to wait for
many others, and a cohort's updates must not pile up in memory meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edge.protocol.messages import Update
from edge.protocol.payload import ITEM_NBYTES, Floats, Payload, Shapes, Vector, nbytes, shapes, vectors


class ReorderBuffer:
    """Replies by client, one each. At most ``most`` of them are in memory; the file lies in ``folder``."""

    def __init__(self, most: int, folder: Path) -> None:
        self._most, self._folder = most, folder
        self._here: dict[int, Update] = {}
        self._there: dict[
            int, tuple[Update, Shapes, int, int]
        ] = {}  # without its vectors, their shapes, offset, nbytes
        self._free: dict[int, list[int]] = {}  # nbytes -> offsets of places that are free again
        self._file: int | None = None
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self._here.clear()
        self._there.clear()
        self._free.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __contains__(self, client: int) -> bool:
        return client in self._here or client in self._there

    @property
    def in_memory(self) -> int:
        """How many replies are held in memory."""
        return len(self._here)

    def add(self, reply: Update) -> None:
        """Hold a reply. Raises OSError if it has to go to the file and the disk refuses."""
        assert reply.client not in self, reply.client
        if len(self._here) < self._most:
            self._here[reply.client] = reply
            return
        size = nbytes(reply.payload)
        offset = self._place(size)
        if size:
            try:
                _write(self._opened(), [vector.data for _, _, vector in vectors(reply.payload)], offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._folder / "replies")) from error
        self._there[reply.client] = replace(reply, payload={}), shapes(reply.payload), offset, size

    def take(self, client: int) -> Update:
        """Give a reply back, and hold it no more."""
        if client in self._here:
            return self._here.pop(client)
        reply, sizes, offset, size = self._there.pop(client)
        raw = np.empty(size // ITEM_NBYTES, dtype=np.float32)
        if size:
            _read(self._opened(), raw, offset)
        self._free.setdefault(size, []).append(offset)
        return replace(reply, payload=_cut(raw, sizes))

    def _place(self, size: int) -> int:
        """A free place of this size: one that was used before, or the end of the file."""
        if self._free.get(size):
            return self._free[size].pop()
        self._end += size
        return self._end - size

    def _opened(self) -> int:
        if self._file is None:
            self._file, name = tempfile.mkstemp(prefix="replies-", suffix=".part", dir=self._folder)
            Path(name).unlink()
        return self._file


def _write(file: int, arrays: list[Floats], offset: int) -> None:
    for array in arrays:
        view = array.data.cast("B")
        while view:  # a system may write less than it is asked to
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written


def _read(file: int, numbers: Floats, offset: int) -> None:
    view = numbers.data.cast("B")
    while view:
        read = os.preadv(file, [view], offset)
        assert read, "the file of held replies is too short"
        view, offset = view[read:], offset + read


def _cut(raw: Floats, sizes: Shapes) -> Payload:
    payload: Payload = {}
    offset = 0
    for slot, named in sizes.items():
        payload[slot] = {}
        for key, size in named.items():
            payload[slot][key] = Vector(raw[offset : offset + size])
            offset += size
    return payload
