"""Which vectors open tasks need, and which of them each worker holds. Never a socket.

Most tasks of a round need the same vectors, so these are counted, looked up and described in headers once per *cached
payload*: the vectors of one payload. Each version of a block is sent to a worker once, however many cached payloads it
is part of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edge.protocol import codec
from edge.protocol.payload import Payload, Vector, vectors


@dataclass(eq=False)
class CachedPayload:
    """Vectors that some open tasks have in common."""

    key: tuple[object, ...]
    versions: dict[tuple[str, str], bytes]
    """By slot and key."""
    by_version: dict[bytes, Vector]
    entries: codec.TensorSpecs
    """What headers say of them."""
    tasks: int = 0
    """Open tasks that need it."""
    holders: set[int] = field(default_factory=set)
    """Workers that hold all of it."""


class CachedPayloads:
    """The cached payloads of open tasks, and what workers hold of them."""

    def __init__(self, obsolete: Callable[[bytes], object]) -> None:
        """``obsolete`` is told of each version that is not kept any more."""
        self._open: dict[tuple[object, ...], CachedPayload] = {}
        self._shelves = BlockCache()
        self._obsolete = obsolete

    def take(self, payload: Payload) -> CachedPayload:
        """What one more task needs."""
        # the very same vectors, not equal ones: nothing of them need be looked at
        key = tuple([(slot, *named, *named.values()) for slot, named in payload.items()])
        cached_payload = self._open.get(key)
        if cached_payload is None:
            versions = {(slot, name): vector.version for slot, name, vector in vectors(payload)}
            by_version = {vector.version: vector for _, _, vector in vectors(payload)}
            cached_payload = self._open[key] = CachedPayload(
                key, versions, by_version, codec.pack_tensor_specs(payload)
            )
            self._tell(self._shelves.submitted(versions))
        cached_payload.tasks += 1
        return cached_payload

    def release(self, cached_payload: CachedPayload) -> None:
        """A task that needed it is over."""
        cached_payload.tasks -= 1
        if not cached_payload.tasks:
            del self._open[cached_payload.key]
            self._tell(self._shelves.over(cached_payload.versions.values()))

    def delivery(self, worker: int, cached_payload: CachedPayload) -> tuple[list[Vector], list[bytes]]:
        """(vectors to send, versions to forget) before this worker can do a task that needs it; booked as done."""
        if worker in cached_payload.holders:
            return [], []
        cached_payload.holders.add(worker)
        missing, forget = self._shelves.delivery(worker, cached_payload.by_version)
        return [cached_payload.by_version[version] for version in missing], forget

    def remove_worker(self, worker: int) -> None:
        """A worker has ended; its number never comes again."""
        self._shelves.remove_worker(worker)

    def _tell(self, versions: Iterable[bytes]) -> None:
        for version in versions:
            self._obsolete(version)


class _WorkerCache:
    """The versions that one worker holds, and those among them that may not be kept any more."""

    def __init__(self) -> None:
        self.held: set[bytes] = set()
        self.obsolete: set[bytes] = set()


class BlockCache:
    """Which block versions each worker holds.

    A version is kept while an open task needs it, or while it is the newest of its place (slot and key): the
    next round may ask for it again. All others are forgotten, so memory does not grow with rounds or clients.
    """

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()  # cached payloads that have a version, and places whose newest it is
        self._newest: dict[tuple[str, str], bytes] = {}
        self._shelves: dict[int, _WorkerCache] = {}

    def submitted(self, versions: Mapping[tuple[str, str], bytes]) -> list[bytes]:
        """A cached payload has these versions, by slot and key. Returns those that are not kept any more, as `over`
        does."""
        uses, newest = self._uses, self._newest
        obsolete: list[bytes] = []
        for place, version in versions.items():
            uses[version] += 1
            if newest.get(place) != version:
                obsolete += self.over([newest[place]] if place in newest else [])
                newest[place] = version
                uses[version] += 1
        return obsolete

    def over(self, versions: Iterable[bytes]) -> list[bytes]:
        """A cached payload that had these versions is over. Returns those that are not kept any more."""
        obsolete: list[bytes] = []
        for version in versions:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                obsolete.append(version)
        for shelf in self._shelves.values() if obsolete else ():
            shelf.obsolete.update(version for version in obsolete if version in shelf.held)
        return obsolete

    def delivery(self, worker: int, versions: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """(what to send, what to forget) before this worker can do a task that needs ``versions``; booked as done."""
        shelf = self._shelves.setdefault(worker, _WorkerCache())
        missing = [version for version in dict.fromkeys(versions) if version not in shelf.held]
        forget = sorted(version for version in shelf.obsolete if version not in self._uses)  # or it is used again
        shelf.obsolete.clear()
        shelf.held.difference_update(forget)
        shelf.held.update(missing)
        return missing, forget

    def remove_worker(self, worker: int) -> None:
        """A worker has ended, and its shelf with it."""
        self._shelves.pop(worker, None)

    def kept(self) -> set[bytes]:
        """All versions that some worker may still be asked to use."""
        return set(self._uses)
