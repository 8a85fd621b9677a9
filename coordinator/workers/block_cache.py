"""The vectors that open tasks need, those that each worker has in its cache, and those in files that all local workers
map. Never a socket.

Most tasks of a round need the same vectors, so these are counted, looked up and described in headers once per *cached
payload*: the vectors of one payload. Each version of a block is sent to a worker once, however many cached payloads it
is part of.

A version is needed while it is part of an open task, or while it is the newest of its slot and key: the next round may
use it again. All others are evicted, so memory does not grow with rounds or clients.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge.protocol import serialization
from edge.protocol.payload import Payload, Vector, vectors
from edge.protocol.scratch import scratch

MEMORY = Path("/dev/shm")
SHARED_NBYTES = 1 << 16
"""Shorter vectors are sent: a file costs more than a few copies."""


@dataclass(eq=False)
class CachedPayload:
    """The vectors of a payload that one or more open tasks need."""

    key: tuple[object, ...]
    versions: dict[tuple[str, str], bytes]
    """(slot, key) -> version"""
    by_version: dict[bytes, Vector]
    entries: serialization.TensorSpecs
    """Their entries in headers."""
    tasks: int = 0
    """Number of open tasks that need it."""
    holders: set[int] = field(default_factory=set)
    """Workers that have all of it."""


class CachedPayloads:
    """The cached payloads of open tasks, and the versions that each worker has."""

    def __init__(
        self, obsolete: Callable[[bytes], object], unheld: Callable[[bytes], object] = lambda version: None
    ) -> None:
        """``obsolete`` is called with each version that is not needed any more; ``unheld`` when no worker has it, too.

        A worker has a version until it is told to evict it.
        """
        self._open: dict[tuple[object, ...], CachedPayload] = {}
        self._uses: Counter[bytes] = Counter()  # version -> cached payloads with it, and keys whose newest it is
        self._newest: dict[tuple[str, str], bytes] = {}
        self._versions: dict[int, set[bytes]] = {}  # worker -> those that it has
        self._holders: Counter[bytes] = Counter()  # version -> workers that have it
        self._obsolete, self._unheld = obsolete, unheld

    def take(self, payload: Payload) -> CachedPayload:
        """The cached payload of one more task."""
        # compares vectors by identity, without a look at their numbers
        key = tuple([(slot, *named, *named.values()) for slot, named in payload.items()])
        cached_payload = self._open.get(key)
        if cached_payload is None:
            versions = {(slot, name): vector.version for slot, name, vector in vectors(payload)}
            by_version = {vector.version: vector for _, _, vector in vectors(payload)}
            entries = serialization.pack_tensor_specs(payload)
            cached_payload = self._open[key] = CachedPayload(key, versions, by_version, entries)
            newer = {place: version for place, version in versions.items() if self._newest.get(place) != version}
            older = [self._newest[place] for place in newer if place in self._newest]
            self._newest.update(newer)
            self._uses.update([*versions.values(), *newer.values()])
            self._unuse(older)
        cached_payload.tasks += 1
        return cached_payload

    def release(self, cached_payload: CachedPayload) -> None:
        """A task that needed a cached payload is over."""
        cached_payload.tasks -= 1
        if not cached_payload.tasks:
            del self._open[cached_payload.key]
            self._unuse(cached_payload.versions.values())

    def delivery(self, worker: int, cached_payload: CachedPayload) -> tuple[list[Vector], list[bytes]]:
        """(vectors to send, versions to evict) before this worker can do a task; recorded as done."""
        if worker in cached_payload.holders:
            return [], []
        cached_payload.holders.add(worker)
        versions = self._versions.setdefault(worker, set())
        missing = [version for version in cached_payload.by_version if version not in versions]
        evict = sorted(version for version in versions if version not in self._uses)
        versions.difference_update(evict)
        versions.update(missing)
        self._holders.update(missing)
        self._lose(evict)
        return [cached_payload.by_version[version] for version in missing], evict

    def remove_worker(self, worker: int) -> None:
        """A worker has ended; its number is never used again."""
        for cached_payload in self._open.values():
            cached_payload.holders.discard(worker)
        self._lose(self._versions.pop(worker, ()))

    def _unuse(self, versions: Iterable[bytes]) -> None:
        """Versions are part of one cached payload less, or no longer the newest."""
        for version in versions:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                self._obsolete(version)
                if version not in self._holders:
                    self._unheld(version)

    def _lose(self, versions: Iterable[bytes]) -> None:
        """A worker has these versions no longer."""
        for version in versions:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]
                if version not in self._uses:
                    self._unheld(version)


class SharedBlocks:
    """Block versions in files in memory, which all workers of this machine map: each is there once.

    A file lives from the first worker that needs its version until nobody needs it, and no worker has it. It is in a
    folder that is removed with the pool, or by the fork server if the coordinator is killed.
    """

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
