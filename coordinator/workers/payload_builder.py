"""Builds the payloads of tasks on a thread of its own, so that arithmetic never delays a heartbeat. Never a socket.

A payload is built when its task is sent, so at most those of the tasks that workers have or prefetch are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from edge.protocol.payload import Payload

CLOSE_SECONDS = 1.0
"""Longest wait, at the end of a run, for the payload that is being built: a user's code may take minutes."""


class PayloadBuilder:
    """One thread, which builds payloads in the order of the requests. ``wake`` is called on it after each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._requests: SimpleQueue[tuple[Future[Payload], Callable[[], Payload]] | None] = SimpleQueue()
        # A daemon, so that a process that has been asked to stop does not wait for it.
        self._thread = Thread(target=self._build_all, name="payloads", daemon=True)
        self._is_closed = False
        self._workers: dict[int, int | None] = {}
        """Task that is being built -> the worker that has it now; None if that has died"""
        self._built: deque[tuple[int, Future[Payload]]] = deque()

    def submit(self, make: Callable[[], Payload]) -> Future[Payload]:
        """Build a payload that no task waits for yet."""
        future: Future[Payload] = Future()
        self._requests.put((future, make))
        if not self._thread.is_alive():
            self._thread.start()
        return future

    def request(self, task: int, worker: int, make: Callable[[], Payload]) -> None:
        """Build the payload of a task for a worker; of a task that is being built, only the worker changes."""
        if task not in self._workers:
            self.submit(make).add_done_callback(lambda done: self._add(task, done))
        self._workers[task] = worker

    def remove_worker(self, worker: int) -> None:
        """A worker has died: its tasks are not sent to it."""
        self._workers = {task: None if of == worker else of for task, of in self._workers.items()}

    def take_built(self) -> Iterator[tuple[int, int | None, Payload]]:
        """(task, worker, payload) of those that are built. Raises what building one has raised."""
        while self._built:
            task, done = self._built.popleft()
            yield task, self._workers.pop(task), done.result()

    def close(self) -> None:
        """Drop all payloads; the one that is being built is waited for, but not for long."""
        self._is_closed = True
        with suppress(Empty):
            while True:
                self._requests.get_nowait()
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _build_all(self) -> None:
        while (request := self._requests.get()) is not None:
            future, make = request
            try:
                future.set_result(make())
            except BaseException as error:  # it belongs to the future's reader
                future.set_exception(error)

    def _add(self, task: int, done: Future[Payload]) -> None:
        if not self._is_closed:
            self._built.append((task, done))
            self._wake()
