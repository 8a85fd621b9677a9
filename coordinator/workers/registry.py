"""The workers of a pool, living and dead, and the nursery that starts and ends them. Never a socket.

Guests are workers on other machines, known by their key: nothing here starts them, or can end them.
"""

from __future__ import annotations

import secrets
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from coordinator.workers.launcher import END_SECONDS, Nursery, how_ended
from coordinator.workers.task import PoolError
from edge.protocol.messages import Kept

BYE_SECONDS = 0.5
"""How long idle workers may take to leave on their own."""
LOG_NBYTES = 4096


@dataclass(eq=False)
class Worker:
    """One worker process, ours or a guest; a replacement is another worker."""

    number: int
    seat: int
    """Its place among those that work at a time, 0, 1 ..; the one that replaces it takes it over
    (`edge.runtime.gpu_share`)."""
    identity: str
    log: Path | None
    """None of a guest, whose log is on its own machine."""
    key: str = ""
    """The public key of a guest; empty for a worker of ours."""
    pid: int | None = None
    """None of a guest, and before it has started."""
    greeted: bool = False
    dead: bool = False
    retired: bool = False
    """Whether its seat stays empty once it has ended."""
    refused: bool = False
    """Whether a message of it was refused: nothing that it sends counts any more."""
    noted: bool = False
    """Whether it has told what it measured of itself."""
    sent_at: dict[int, float] = field(default_factory=dict)
    """Of a guest: when it was sent each task that it has not answered; monotonic seconds."""
    ahead: tuple[int, Kept] | None = None
    """What a client keeps, which came last: for the update of this task, which comes next."""
    last_words: str = ""
    """The error that its start ended in, or why it was ended."""

    def tail(self) -> bytes:
        """The end of its log."""
        if self.log is None:
            return b""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LOG_NBYTES))
                return file.read()
        except FileNotFoundError:
            return b""


class News(NamedTuple):
    """What has become of a worker."""

    worker: Worker
    detail: str
    """Its process id, or how it ended."""
    has_ended: bool
    is_blameless: bool = False
    """Whether it ended with the process that had started it."""


class Crew:
    """Workers by number and by identity."""

    def __init__(self, nursery: Nursery, logs: Path, argv: Callable[[str], Sequence[str]]) -> None:
        """``logs``: folder for worker-N.log; ``argv``: identity -> what a worker is started with."""
        self._nursery, self._logs, self._argv = nursery, logs, argv
        self._by_number: dict[int, Worker] = {}
        self._by_identity: dict[str, Worker] = {}
        self._gone: list[News] = []  # guests that have been given up since the last news
        self.left: tuple[int, ...] = ()
        """Seats of those that have retired, and ended."""
        self.has_had_guests = False
        """Whether one has ever been ready to work."""
        self.offences = Counter[str]()
        """key -> how often a guest of this key was ended for what it sent, or did not"""
        self.last_refusal = ""
        """Why the guest that came last is gone, for who waits in vain for another."""
        self.is_loading = False
        """Whether the nursery has started none of the first workers yet: it may have much to load."""

    def __getitem__(self, number: int) -> Worker:
        return self._by_number[number]

    def named(self, identity: str, key: str = "") -> Worker | None:
        """The worker of this identity and key: the same identity with another key is not that worker."""
        worker = self.bearing(identity)
        return worker if worker is not None and worker.key == key else None

    def bearing(self, identity: str) -> Worker | None:
        """The worker of this identity, whatever its key."""
        return self._by_identity.get(identity)

    @property
    def alive(self) -> list[Worker]:
        """All that have not ended, as far as is known."""
        return [worker for worker in self._by_number.values() if not worker.dead]

    @property
    def newest(self) -> Worker:
        """The one that came last."""
        return self._by_number[max(self._by_number)]

    @property
    def has_lost_guests(self) -> bool:
        """Whether guests have been given up since the last `news`."""
        return bool(self._gone)

    def start(self, number: int, seat: int) -> None:
        """Have a worker started, on the seat of the one that it replaces."""
        identity = f"worker-{number}-{secrets.token_hex(4)}"
        log = self._logs / f"worker-{number}.log"
        worker = Worker(number, seat, identity, log)
        if not self._by_number:
            self.is_loading = True
        self._by_number[number] = self._by_identity[identity] = worker
        self._nursery.spawn(identity, list(self._argv(identity)), log)

    def admit(self, number: int, identity: str, key: str) -> Worker:
        """A guest has come. Its machine is its own, and so is its seat there."""
        guest = Worker(number, 0, identity, None, key)
        self._by_number[number] = self._by_identity[identity] = guest
        return guest

    def end(self, worker: Worker, why: str) -> None:
        """Have a worker ended, or give a guest up; its death brings its tasks back."""
        if not worker.key:
            worker.last_words = why
            self._nursery.end([worker.identity])
        elif not worker.dead:
            worker.dead, worker.ahead = True, None
            del self._by_identity[worker.identity]  # whatever it still sends comes from nobody
            self.last_refusal = f"; the last guest went: {why}"
            self._gone.append(News(worker, f"worker {worker.number}, a guest, is gone: {why}", True))

    def news(self) -> list[News]:
        """Who has started or ended since the last call; PoolError when the nursery has ended.

        Workers of an earlier pool are passed over.
        """
        news, self._gone = self._gone, []
        for answer in self._nursery.answers():
            worker = self.named(answer.get("spawned") or answer.get("exited") or answer["failed"])
            if worker is None:
                continue
            self.is_loading = False
            if "spawned" in answer:
                worker.pid = answer["pid"]
                news.append(News(worker, f"pid {answer['pid']}", False))
                continue
            worker.dead = True
            if worker.retired:
                self.left += (worker.seat,)
            news.append(self._ended(worker, answer))
        return news

    def _ended(self, worker: Worker, answer: dict[str, Any]) -> News:
        if "failed" in answer:
            return News(worker, f"worker {worker.number} did not start: {answer['reason']}", True)
        if "lost" in answer:
            self.is_loading = True  # what starts workers is started again
            return News(worker, f"worker {worker.number} ended: {answer['lost']}", True, is_blameless=True)
        words = f": {worker.last_words}" if worker.last_words else ""
        return News(worker, f"worker {worker.number} {how_ended(answer['status'])}{words}", True)

    def end_all(self, say_bye: Callable[[Worker], None]) -> None:
        """The idle leave by themselves, the others are ended; of a nursery that is gone, all have ended."""
        with suppress(PoolError):
            for worker in self.alive:
                if worker.greeted:
                    say_bye(worker)
            for guest in [worker for worker in self.alive if worker.key]:
                self.end(guest, "the run is over")
            self._await_ends(BYE_SECONDS)
            self._nursery.end([worker.identity for worker in self.alive])
            self._await_ends(END_SECONDS)

    def _await_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            select.select([self._nursery.fileno()], [], [], 0.01)
            self.news()
