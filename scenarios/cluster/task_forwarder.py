"""The tasks of a run on the machine of a node agent: they come down to its pool, and their replies go up.

To the run's coordinator the agent is one remote worker, and the pool sees ordinary tasks. All visits of a round whose
updates are added up are one group of the pool, so that one partial sum of the machine goes up. A client's state goes up
ahead of each update, and comes down only if the client's last visit was elsewhere.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from msgspec import structs

from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolError, PoolTask, Reply
from coordinator.workers.task_group import PoolTaskGroup
from edge.protocol import client_state, messages
from edge.protocol.messages import MAX_ERROR_TEXT, ClientState, Evaluate, Message, Train
from edge.protocol.payload import Payload
from edge.protocol.serialization import Envelope
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.inbox import MAX_PREFETCHED, TaskInbox
from edge.runtime.reply_batch import ReplyBatch

Task = Train | Evaluate | messages.Describe
TURN_SECONDS = 0.1
"""Longest wait for messages."""
WAITING_SECONDS = 0.005
"""The same while replies wait for others."""
STATE_SUFFIX = ".safetensors"
SWEEP_FILES = 1000
"""New files between two looks for files that nobody needs, at least."""
STATE_NBYTES = 4 << 30
"""Client states that are kept for later visits, at most; and a quarter of the free disk"""


@dataclass(frozen=True)
class ForwardedTask(PoolTask):
    sequence: int = 0
    state_name: str = ""
    """The name in the run of the client state that it leaves."""


@dataclass(eq=False)
class _Round:
    """The visits of a round whose updates are added up."""

    number: int
    group: PoolTaskGroup | None = None
    added: list[ForwardedTask] = field(default_factory=list)
    """Those that have been answered: their files stay until the sum has gone up, since they may be done again."""
    is_wanted: bool = False
    """Whether the coordinator has requested the sum."""


class TaskForwarder:
    """Between the connection to a run's coordinator and a pool that does the run's tasks."""

    def __init__(
        self, connection: CoordinatorConnection, pool: Pool, states: StateFiles, telemetry: list[str], workers: int
    ) -> None:
        """``telemetry``: lines for the record of the run, which go up with the next replies; ``workers``: as the
        coordinator was told at the hello, which may be more than the pool still has."""
        self._connection, self._pool, self._states, self._telemetry = connection, pool, states, telemetry
        self._replies = ReplyBatch(connection, 2 * WAITING_SECONDS)  # they have waited in workers
        self._workers = workers  # as the coordinator knows it
        self._inbox = TaskInbox(connection, self._replies, lambda: MAX_PREFETCHED * pool.size, self._withdraw)
        self._single: PoolTaskGroup | None = None  # of all tasks whose replies go up whole
        self._round = _Round(-1)
        self._pending: tuple[int, ClientState] | None = None  # the last message, for the task that comes next
        self._last_payload: tuple[Payload, Payload] = {}, {}  # of a task, and with the vectors of the cache
        pool.watch(connection.socket, self.receive)

    def turn(self) -> None:
        """Wait for messages, and handle them. `PoolError`, `Stopped`, and `StateError` if the disk fails."""
        self._pool.turn(WAITING_SECONDS if self._replies.is_waiting else TURN_SECONDS)
        for group in (self._single, self._round.group):
            if group is not None and group.error is not None:
                raise group.error
        if self._round.is_wanted and self._round.group is not None:
            sums = self._round.group.try_collect()
            if sums is not None:  # the machine's workers have sent theirs
                self._send_sum(structs.replace(sums, round=self._round.number))
                self._round.is_wanted = False
                self._end_round()
        if self._pool.size < self._workers:  # some have retired: there was too little memory for so many
            self._workers = self._pool.size
            self._connection.send(messages.Capacity(self._workers))
        if len(self._inbox.tasks) < self._pool.size or self._replies.is_due():
            self._replies.send()

    def receive(self) -> None:
        """Handle the messages of the coordinator that have come."""
        tasks: list[ForwardedTask] = []
        for envelope, message in self._connection.received():
            pending, self._pending = self._pending, None
            if isinstance(message, ClientState):
                self._pending = envelope.sequence, message
                continue
            if not isinstance(message, Task | messages.Visits):  # of the tasks that came before it, too
                self._submit(tasks)
                tasks = []
            if isinstance(message, messages.FetchPartial):
                if message.round == self._round.number:
                    self._round.is_wanted = True
                else:
                    self._send_sum(messages.PartialSum(message.round, 0, {}))
            elif not isinstance(message, messages.Shutdown):  # which the connection keeps
                tasks += self._tasks(envelope, message, pending)
        self._submit(tasks)

    # --- tasks down -----------------------------------------------------------------------------------------------

    def _tasks(
        self, envelope: Envelope, message: Message, pending: tuple[int, ClientState] | None
    ) -> list[ForwardedTask]:
        """The tasks for the pool; those that cannot be done are answered here."""
        tasks: list[ForwardedTask] = []
        for number, of_task, task_message in self._inbox.new_tasks(envelope, message):
            assert isinstance(task_message, Task), task_message
            if pending is not None:
                state_of, state = pending
                client = None if isinstance(task_message, messages.Describe) else task_message.client
                if of_task.state_in is None or (state_of, state.client) != (of_task.sequence, client):
                    why = f"the state of client {state.client} came ahead of another task"
                    self._connection.refuse(number, why)
                    continue
            if (task := self._task(of_task, task_message, pending)) is not None:
                self._inbox.tasks[number] = task
                tasks.append(task)
        return tasks

    def _task(self, envelope: Envelope, message: Task, pending: tuple[int, ClientState] | None) -> ForwardedTask | None:
        """A task with files of this machine; None if its client's state is not here, and is now requested."""
        state_in = state_out = None
        if envelope.state_in is not None and not isinstance(message, messages.Describe):
            if pending is not None:
                state_in = self._states.new()
                client_state.write(state_in, pending[1].payload)
            else:
                state_in = self._states.held(message.client, envelope.state_in)
            if state_in is None:
                error = messages.Error(client_state.MISSING, f"the state of client {message.client} is not here")
                self._connection.send(error, envelope.sequence)
                return None
        if envelope.state_out is not None and isinstance(message, Train):
            state_out = self._states.new()
        if not isinstance(message, messages.Describe):
            # with the vectors of the cache, by which the pool tells that tasks need the same
            if message.payload is not self._last_payload[0]:
                payload: Payload = {
                    slot: {key: self._connection.cached(vector) for key, vector in named.items()}
                    for slot, named in message.payload.items()
                }
                self._last_payload = message.payload, payload
            message = structs.replace(message, payload=self._last_payload[1])
        return ForwardedTask(
            message,
            state_in,
            state_out,
            flops=1.0 if isinstance(message, Train) else 0.0,  # equal, so that short ones are prefetched
            weight=envelope.weight,
            on_failure=self._on_failure,
            sequence=envelope.sequence,
            state_name=envelope.state_out or "",
        )

    def _submit(self, tasks: Sequence[ForwardedTask]) -> None:
        single = [task for task in tasks if not task.weight]
        if single:
            self._single = self._pool.submit(single, self._on_reply, self._single)
        summed = [(task, task.message.round) for task in tasks if task.weight and isinstance(task.message, Train)]
        for number, group in groupby(summed, lambda each: each[1]):
            if number != self._round.number:
                self._end_round()
                self._round = _Round(number)
            of_round = [task for task, _ in group]
            self._round.group = self._pool.submit(of_round, self._on_reply, self._round.group)

    def _withdraw(self, task: ForwardedTask) -> None:
        self._pool.withdraw(task)
        self._states.release(task.state_in, task.state_out)

    # --- replies up -----------------------------------------------------------------------------------------------

    def _on_reply(self, pool_task: PoolTask, reply: Reply) -> None:
        task = self._closed(pool_task)
        group = self._round.group if task.weight else self._single
        seconds = group.seconds if group is not None else 0.0
        message = task.message
        state = None
        if task.state_out is not None and isinstance(message, Train):
            state = ClientState(message.client, client_state.read(task.state_out))
            self._states.keep(message.client, task.state_name, task.state_out)
        telemetry = self._telemetry.pop(0) if self._telemetry else ""
        if state is not None or telemetry or not self._replies.add(task.sequence, seconds, reply):
            self._replies.send()
            if state is not None:
                self._connection.send(state, task.sequence)
            self._connection.send(reply, task.sequence, seconds, telemetry)
        if task.is_in_partial_sum(reply):
            self._round.added.append(task)
        else:
            self._states.release(task.state_in, task.state_out)

    def _on_failure(self, pool_task: PoolTask, reason: str) -> None:
        """PoolError for a visit whose update has gone up already: its sum was lost here, and the run must know."""
        assert isinstance(pool_task, ForwardedTask), pool_task
        if pool_task.sequence not in self._inbox.tasks:
            raise PoolError(f"a partial sum was lost, and a visit in it cannot be done again: {reason}")
        task = self._closed(pool_task)
        self._states.release(task.state_in, task.state_out)
        self._replies.send()
        self._connection.send(messages.Error(PoolError.__name__, reason[:MAX_ERROR_TEXT]), task.sequence)

    def _closed(self, task: PoolTask) -> ForwardedTask:
        assert isinstance(task, ForwardedTask), task
        return self._inbox.tasks.pop(task.sequence)

    # --- partial sums ---------------------------------------------------------------------------------------------

    def _send_sum(self, sums: messages.PartialSum) -> None:
        self._replies.send()  # it has the updates of these replies in it
        self._connection.send(sums)

    def _end_round(self) -> None:
        """Forget a round: its sum has gone up, or nobody wants it any more."""
        ended, self._round = self._round, _Round(-1)
        if ended.is_wanted:
            self._send_sum(messages.PartialSum(ended.number, 0, {}))
        if ended.group is not None:
            ended.group.cancel()
        for task in ended.added:
            self._states.release(task.state_in, task.state_out)


@dataclass(frozen=True)
class _Kept:
    name: str
    path: Path
    nbytes: int


class StateFiles:
    """Client states on the machine of a node agent, in one folder: for its tasks, and for later visits of
    their clients. The names of the run are never used as paths.

    The run's own files have the states before an update counts; these spare the way back. So any may be dropped.
    """

    def __init__(self, folder: Path, most_nbytes: int = STATE_NBYTES) -> None:
        """``most_nbytes``: of the states that are kept for later visits; the oldest are dropped first."""
        folder.mkdir(exist_ok=True)
        self._folder, self._most_nbytes = folder, min(most_nbytes, shutil.disk_usage(folder).free // 4)
        self._made = 0
        self._kept: dict[int, _Kept] = {}  # client -> its state after its last visit here, the oldest first
        self._users: Counter[Path] = Counter()  # open tasks, and one more for a state that is kept
        self._nbytes = 0
        self._sweeps_at = SWEEP_FILES

    def new(self) -> str:
        """The path of a new file, for one task."""
        self._made += 1
        if self._made >= self._sweeps_at:
            self._sweep()
        path = self._folder / f"{self._made}{STATE_SUFFIX}"
        self._users[path] += 1
        return str(path)

    def held(self, client: int, name: str) -> str | None:
        """The file of a client's state of this name, for one more task; None if it is not here."""
        kept = self._kept.get(client)
        if kept is None or kept.name != name:
            return None
        self._users[kept.path] += 1
        return str(kept.path)

    def keep(self, client: int, name: str, path: str) -> None:
        """Keep a task's file after the task, as the client's newest state."""
        self._drop(client)
        kept = self._kept[client] = _Kept(name, Path(path), Path(path).stat().st_size)
        self._users[kept.path] += 1
        self._nbytes += kept.nbytes
        while self._nbytes > self._most_nbytes:
            self._drop(next(iter(self._kept)))

    def release(self, *paths: str | None) -> None:
        """A task is over, and needs these files no more."""
        for path in (Path(each) for each in paths if each is not None):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the files that workers wrote after their tasks had been cancelled."""
        self._sweeps_at = self._made + max(SWEEP_FILES, len(self._users))
        for path in self._folder.iterdir():
            if path.suffix == STATE_SUFFIX and path not in self._users:  # one that is being written has another name
                path.unlink(missing_ok=True)

    def _drop(self, client: int) -> None:
        kept = self._kept.pop(client, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
            self.release(str(kept.path))
