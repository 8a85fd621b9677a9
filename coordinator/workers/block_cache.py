"""The vectors that open tasks need, and those that each worker has in its cache. Never a socket.

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
    """The vectors of a payload that one or more open tasks need."""

    key: tuple[object, ...]
    versions: dict[tuple[str, str], bytes]
    """(slot, key) -> version"""
    by_version: dict[bytes, Vector]
    entries: codec.TensorSpecs
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
        self._cache = BlockCache()
        self._obsolete, self._unheld = obsolete, unheld

    def take(self, payload: Payload) -> CachedPayload:
        """The cached payload of one more task."""
        # compares vectors by identity, without a look at their numbers
        key = tuple([(slot, *named, *named.values()) for slot, named in payload.items()])
        cached_payload = self._open.get(key)
        if cached_payload is None:
            versions = {(slot, name): vector.version for slot, name, vector in vectors(payload)}
            by_version = {vector.version: vector for _, _, vector in vectors(payload)}
            cached_payload = self._open[key] = CachedPayload(
                key, versions, by_version, codec.pack_tensor_specs(payload)
            )
            self._forget(self._cache.submitted(versions))
        cached_payload.tasks += 1
        return cached_payload

    def release(self, cached_payload: CachedPayload) -> None:
        """A task that needed a cached payload is over."""
        cached_payload.tasks -= 1
        if not cached_payload.tasks:
            del self._open[cached_payload.key]
            self._forget(self._cache.over(cached_payload.versions.values()))

    def delivery(self, worker: int, cached_payload: CachedPayload) -> tuple[list[Vector], list[bytes]]:
        """(vectors to send, versions to evict) before this worker can do a task; recorded as done."""
        if worker in cached_payload.holders:
            return [], []
        cached_payload.holders.add(worker)
        missing, evict = self._cache.delivery(worker, cached_payload.by_version)
        self._release_unheld(evict)
        return [cached_payload.by_version[version] for version in missing], evict

    def remove_worker(self, worker: int) -> None:
        """A worker has ended; its number is never used again."""
        for cached_payload in self._open.values():
            cached_payload.holders.discard(worker)
        self._release_unheld(self._cache.remove_worker(worker))

    def _forget(self, versions: Iterable[bytes]) -> None:
        for version in versions:
            self._obsolete(version)
            self._release_unheld([version])

    def _release_unheld(self, versions: Iterable[bytes]) -> None:
        for version in versions:
            if self._cache.is_unheld(version):
                self._unheld(version)


class _WorkerCache:
    """The versions that one worker has, and those among them that it may evict unless they are needed again."""

    def __init__(self) -> None:
        self.versions: set[bytes] = set()
        self.obsolete: set[bytes] = set()


class BlockCache:
    """The block versions that each worker has.

    A version is needed while it is part of an open task, or while it is the newest of its slot and key: the next round
    may use it again. All others are evicted, so memory does not grow with rounds or clients.
    """

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()  # version -> cached payloads with it, and keys whose newest it is
        self._newest: dict[tuple[str, str], bytes] = {}
        self._workers: dict[int, _WorkerCache] = {}
        self._holders: Counter[bytes] = Counter()  # version -> workers that have it

    def submitted(self, versions: Mapping[tuple[str, str], bytes]) -> list[bytes]:
        """A new cached payload has these versions, by slot and key. Returns those that are not needed any more."""
        uses, newest = self._uses, self._newest
        obsolete: list[bytes] = []
        for key, version in versions.items():
            uses[version] += 1
            if newest.get(key) != version:
                obsolete += self.over([newest[key]] if key in newest else [])
                newest[key] = version
                uses[version] += 1
        return obsolete

    def over(self, versions: Iterable[bytes]) -> list[bytes]:
        """A cached payload with these versions is over. Returns those that are not needed any more."""
        obsolete: list[bytes] = []
        for version in versions:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                obsolete.append(version)
        for worker in self._workers.values() if obsolete else ():
            worker.obsolete.update(version for version in obsolete if version in worker.versions)
        return obsolete

    def delivery(self, worker: int, versions: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """(versions to send, to evict) before this worker can do a task that needs ``versions``; recorded as done."""
        cache = self._workers.setdefault(worker, _WorkerCache())
        missing = [version for version in dict.fromkeys(versions) if version not in cache.versions]
        evict = sorted(version for version in cache.obsolete if version not in self._uses)  # or it is used again
        cache.obsolete.clear()
        cache.versions.difference_update(evict)
        cache.versions.update(missing)
        self._holders.update(missing)
        self._drop_holder(evict)
        return missing, evict

    def remove_worker(self, worker: int) -> list[bytes]:
        """A worker has ended. Returns the versions that it had."""
        cache = self._workers.pop(worker, None)
        versions = list(cache.versions) if cache is not None else []
        self._drop_holder(versions)
        return versions

    def is_unheld(self, version: bytes) -> bool:
        """Whether a version is not needed, and no worker has it."""
        return version not in self._uses and version not in self._holders

    def _drop_holder(self, versions: Iterable[bytes]) -> None:
        for version in versions:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]
