"""Several runs of a run set at the same time, made by run processes that take the next when free.

The worker processes of all of them together are those of one run otherwise. No result depends on who made a run. This
process makes no run itself: it hands out, listens, and passes progress on.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher, environment, how_ended
from scenarios.experiment.run_set import PlannedRun, RunSet, collected, ended_before, locked, refuse_nothing, run_all
from scenarios.experiment.slots import RunCluster, RunSlot, told_of
from scenarios.run.host import Host
from scenarios.run.observer import Observers

RUN_PROCESS = "scenarios.experiment.run_process"
TURN_SECONDS = 0.2
"""The longest time until the user's wish to stop is seen."""
END_SECONDS = 10.0
"""Limit for the end of a process that has no run."""


class About(Protocol):
    """Is told of a run by its name."""

    def __call__(self, name: str, has_ended: bool = False) -> None:
        """The next calls are about this run; ``has_ended``: it has just ended or failed."""


def _about_none(name: str, has_ended: bool = False) -> None: ...


def make_runs(
    run_set: RunSet,
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    parallel: int = 1,
    about: About = _about_none,
    cluster: RunCluster | None = None,
) -> dict[str, Any]:
    """`run_all` with ``parallel`` runs at the same time, at most one per worker of ``host``; the same result.

    With a ``cluster``, its machines make the runs, and ``parallel`` is the most that it makes at the same time.

    ``about`` is told the name of the run which the next ``on_start`` or ``on_round`` is about, and of each run that has
    ended or failed. A run whose process is killed counts as failed. Errors as of `run_all`.
    """
    if parallel <= 1 and cluster is None:
        return run_all(run_set, host, launcher, stopped)
    with locked(run_set, host) as held:
        folder = held.path
        ended, missing = ended_before(run_set, folder, host)
        if cluster is not None:
            start, shares = cluster.start, cluster.shares(len(missing), parallel)
        else:
            start, shares = RunProcess, worker_shares(host, parallel, len(missing))
        with ParallelRuns(missing, folder, host, about, start) as runs:
            runs.make(shares, held.watched(stopped))
        if not (ended or runs.ended):
            refuse_nothing(runs.failed, runs.users_errors, folder, run_set.mark)
        return collected(run_set, folder, ended | runs.ended, runs.failed)


def worker_shares(host: Host, parallel: int, missing: int) -> list[int]:
    """The workers of each run process of this machine: those of ``host``, shared out."""
    if missing and parallel > host.workers:
        Observers(host.observers).on_note(f"{host.workers} workers: at most as many runs at a time, not {parallel}")
    count = min(parallel, host.workers, missing)
    return [host.workers // count + (number < host.workers % count) for number in range(count)]


class ParallelRuns:
    """The slots for runs as a context: when it is left, however that is, all of them have ended."""

    def __init__(
        self,
        missing: Sequence[PlannedRun],
        folder: Path,
        host: Host,
        about: About,
        start: Callable[[Host, int], RunSlot],
    ) -> None:
        self._queue, self._folder, self._host, self._about = deque(missing), folder, host, about
        self._start_slot, self._watch = start, Observers(host.observers)
        self._selector = selectors.DefaultSelector()
        self._processes: list[RunSlot] = []
        self.ended: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.users_errors: dict[str, str] = {}
        """Those of ``failed`` that the user's input caused."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.dismiss()
        for process in self._processes:
            process.join(END_SECONDS if kind is None else 0.0)
        self._selector.close()

    def make(self, shares: Sequence[int], stopped: Callable[[], bool]) -> None:
        """Make all runs in slots with so many workers; the runs that began end with their round once ``stopped``."""
        for workers in shares:
            self._start(workers)
        while any(process.run for process in self._processes):
            if stopped():
                self._queue.clear()
                for process in self._processes:
                    process.stop(self._host.stopped_by())
            for key, _ in self._selector.select(TURN_SECONDS):
                self._listen(key.data)

    def _start(self, workers: int) -> None:
        if self._queue:
            process = self._start_slot(self._host, workers)
            self._processes.append(process)
            self._selector.register(process.answers, selectors.EVENT_READ, process)
            self._hand_out(process)

    def _hand_out(self, process: RunSlot) -> None:
        process.run = self._queue.popleft() if self._queue else None
        if process.run is not None:
            process.begin(process.run, self._folder / process.run.name)

    def _listen(self, process: RunSlot) -> None:
        lines = process.lines()
        for line in lines or ():
            self._heed(process, json.loads(line))
        if lines is None:
            self._lose(process)

    def _lose(self, process: RunSlot) -> None:
        """A process has ended by itself: its run failed, and a new process takes the next one."""
        self._selector.unregister(process.answers)
        self._processes.remove(process)
        status = process.join(END_SECONDS)
        if process.run is not None:
            self.failed[process.run.name] = f"its process {how_ended(status)}"
            self._about(process.run.name, has_ended=True)
        self._start(process.workers)

    def _heed(self, process: RunSlot, said: dict[str, Any]) -> None:
        assert process.run is not None
        name = process.run.name
        if "note" in said:
            self._watch.on_note(said["note"])
        elif "began" in said:
            self._about(name)
            self._watch.on_start(Path(said["began"]), process.run.loaded)
        elif "round" in said:
            self._about(name)
            self._watch.on_round(unpacked(said["round"]))
        else:
            self._end(name, said)
            self._hand_out(process)

    def _end(self, name: str, said: dict[str, Any]) -> None:
        if "ended" in said:
            self.ended[name] = said["ended"]
        elif "failed" in said:
            self.failed[name] = said["failed"]
            if said["is_users"]:
                self.users_errors[name] = said["failed"]
        self._about(name, has_ended=True)


class RunProcess:
    """This side of a run process (`run_process`), and what has been read from it."""

    def __init__(self, host: Host, workers: int) -> None:
        self.workers = workers
        self.run: PlannedRun | None = None
        """The run that it makes now"""
        self._is_stopped = False
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", RUN_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # a terminal's Ctrl-C goes to the asking process alone
        )
        self._send({"host": {"out": str(host.out), "device": host.device, "workers": workers}})

    @property
    def answers(self) -> IO[bytes]:
        """Readable when there are answers."""
        assert self._process.stdout is not None
        return self._process.stdout

    def begin(self, run: PlannedRun, path: Path) -> None:
        """Tell it to make a run."""
        self._send({"run": told_of(run, path)})

    def stop(self, reason: str) -> None:
        """Tell it, once, that its run is to end with its round; ``reason``: `Host.stopped_by`."""
        if not self._is_stopped:
            self._send({"stop": reason})
        self._is_stopped = True

    def lines(self) -> list[bytes] | None:
        """The whole lines that it has written since; None if it has ended."""
        received = os.read(self.answers.fileno(), 1 << 16)
        *lines, self._pending = (self._pending + received).split(b"\n")
        return lines if received else None

    def dismiss(self) -> None:
        """Let it end: at once if it makes a run."""
        if self.run is None:
            self._send({"end": True})
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self, seconds: float) -> int:
        """Its exit status; it is killed if it has not ended so soon."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.dismiss()
        self.answers.close()
        return status

    def _send(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # its end is found by `lines`
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()


def unpacked(packed: dict[str, Any]) -> RoundFinished:
    """The progress that `run_process.packed` wrote."""
    return RoundFinished(
        RoundRow._make(packed["row"]),
        packed["rounds"],
        packed["bytes_down"],
        packed["bytes_up"],
        dict(packed["chosen"]),
    )
