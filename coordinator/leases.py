"""Who works on what: a state machine, events in and instructions out. Never a socket, a process or a clock.

`Leases` follows tasks and workers. A worker holds one task at a time; tasks are handed out in the order in which they
were submitted; a task whose worker dies or fails goes back to the front. Each worker that is started has a new number,
so that whatever a dead one left behind can be told from its replacement's.

`Shelves` follows which block versions each worker holds, so that each version is sent to it once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TRIES = 3
"""Workers that may die or fail over one task, and workers in a row that may die before they are ready."""


@dataclass(frozen=True)
class Start:
    """Start a worker with this number."""

    worker: int


@dataclass(frozen=True)
class Send:
    """Send this task to this worker."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class Deliver:
    """This task's reply counts: pass it on."""

    sequence: int


@dataclass(frozen=True)
class Late:
    """This reply does not count: its task is over."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class Repeat:
    """Nothing to do but to record it: this task was taken from this worker and waits for another."""

    worker: int
    sequence: int
    reason: str


@dataclass(frozen=True)
class Cancel:
    """Tell this worker that its task is not wanted any more."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class GiveUp:
    """The run cannot go on; this worker's log is the place to look."""

    worker: int
    reason: str


Instruction = Start | Send | Deliver | Late | Repeat | Cancel | GiveUp


@dataclass
class _Task:
    name: str
    strikes: int = 0


class Leases:
    """Tasks and the workers that hold them. Every event returns instructions, to be obeyed in order."""

    def __init__(self, workers: int) -> None:
        self._tasks: dict[int, _Task] = {}
        self._queue: deque[int] = deque()
        self._starting: set[int] = set()
        self._hands: dict[int, int | None] = {}  # ready worker -> the task it holds
        self._holders: dict[int, set[int]] = {}  # task -> all workers it was ever sent to
        self._deaths_before_ready = 0
        self._started = 0
        self._workers = workers

    def begin(self) -> list[Instruction]:
        """The pool opens."""
        return [self._start() for _ in range(self._workers)]

    def submitted(self, sequence: int, name: str) -> list[Instruction]:
        """A new task; ``name`` is what an error calls it."""
        assert sequence not in self._tasks, sequence
        self._tasks[sequence] = _Task(name)
        self._holders[sequence] = set()
        self._queue.append(sequence)
        return self._hand_out()

    def ready(self, worker: int) -> list[Instruction]:
        """A worker that was starting waits for its first task; from any other this says nothing new."""
        if worker in self._starting:
            self._starting.remove(worker)
            self._deaths_before_ready = 0
            self._hands[worker] = None
        return self._hand_out()

    def dropped(self, worker: int, sequence: int) -> list[Instruction]:
        """A worker has nothing more to do with a cancelled task."""
        if self._hands.get(worker) == sequence:
            self._hands[worker] = None
        return self._hand_out()

    def answered(self, worker: int, sequence: int) -> list[Instruction]:
        """A worker's reply to a task has come."""
        counts = worker in self._holders.get(sequence, ())
        if counts:
            self._forget(sequence)
        if self._hands.get(worker) == sequence:
            self._hands[worker] = None
        return [Deliver(sequence) if counts else Late(worker, sequence), *self._hand_out()]

    def failed(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker could not do a task, but lives on."""
        if self._hands.get(worker) != sequence:
            return [Late(worker, sequence)]
        self._hands[worker] = None
        return [*self._strike(worker, sequence, reason), *self._hand_out()]

    def died(self, worker: int, reason: str) -> list[Instruction]:
        """A worker's process has ended."""
        if worker in self._starting:
            self._starting.remove(worker)
            self._deaths_before_ready += 1
            if self._deaths_before_ready >= TRIES:
                return [GiveUp(worker, f"{TRIES} workers in a row ended before they were ready; the last: {reason}")]
            return [self._start()]
        if worker not in self._hands:
            return []
        sequence = self._hands.pop(worker)
        strike = [] if sequence is None else self._strike(worker, sequence, reason)
        return [*strike, self._start(), *self._hand_out()]

    def cancelled(self) -> list[Instruction]:
        """None of the tasks is wanted any more."""
        self._tasks.clear()
        self._holders.clear()
        self._queue.clear()
        return [Cancel(worker, sequence) for worker, sequence in self._hands.items() if sequence is not None]

    def _start(self) -> Start:
        worker = self._started
        self._started += 1
        self._starting.add(worker)
        return Start(worker)

    def _hand_out(self) -> list[Instruction]:
        sent: list[Instruction] = []
        for worker, held in self._hands.items():
            if held is None and self._queue:
                sequence = self._queue.popleft()
                self._hands[worker] = sequence
                self._holders[sequence].add(worker)
                sent.append(Send(worker, sequence))
        return sent

    def _strike(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        task = self._tasks.get(sequence)
        if task is None:  # cancelled, or answered by a worker thought dead
            return []
        task.strikes += 1
        if task.strikes >= TRIES:
            return [GiveUp(worker, f"{task.name}: given up after {TRIES} workers; the last: {reason}")]
        self._queue.appendleft(sequence)
        return [Repeat(worker, sequence, reason)]

    def _forget(self, sequence: int) -> None:
        del self._tasks[sequence], self._holders[sequence]
        if sequence in self._queue:
            self._queue.remove(sequence)


class Shelves:
    """Which block versions each worker holds.

    A version is kept while a task that is not over needs it, or while it is the newest of its place (slot and key): the
    next round may ask for it again. All others are forgotten, so memory does not grow with rounds or clients.
    """

    def __init__(self) -> None:
        self._needed: Counter[bytes] = Counter()
        self._newest: dict[tuple[str, str], bytes] = {}
        self._held: dict[int, set[bytes]] = {}

    def submitted(self, versions: Mapping[tuple[str, str], bytes]) -> None:
        """A task needs these versions, by slot and key."""
        self._needed.update(versions.values())
        self._newest.update(versions)

    def over(self, versions: Iterable[bytes]) -> None:
        """A task that needed these versions is over."""
        for version in versions:
            self._needed[version] -= 1
            if not self._needed[version]:
                del self._needed[version]

    def delivery(self, worker: int, versions: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """(what to send, what to forget) before this worker can do a task that needs ``versions``; booked as done."""
        held, kept = self._held.setdefault(worker, set()), self.kept()
        missing = [version for version in dict.fromkeys(versions) if version not in held]
        forget = sorted(held - kept)
        held.difference_update(forget)
        held.update(missing)
        return missing, forget

    def gone(self, worker: int) -> None:
        """A worker has ended, and its shelf with it."""
        self._held.pop(worker, None)

    def kept(self) -> set[bytes]:
        """All versions that some worker may still be asked to use."""
        return self._needed.keys() | set(self._newest.values())
