"""Real devices behind a Grid of Flower: which client each node is, and the visits that nodes train.

To a run these are its workers (`coordinator.workers.task.Workers`): visits go to the nodes, and everything else to a
pool of this machine. Nothing here aggregates, and nothing trusts what a node sends: replies are read by
`edge.flower.device_records`, and checked by the validators of their tasks, as those of all workers are.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.pool_trainer import VisitValidator
from coordinator.workers.task import PoolError, PoolTask, ReplyHandler, Stopped, TaskGroup, Workers
from costmodel.fleet.fleet import Fleet
from edge.flower.device_records import (
    JOIN,
    TRAIN,
    Frames,
    Joined,
    join_records,
    nbytes,
    read_joined,
    read_update,
    train_records,
)
from edge.protocol import client_state
from edge.protocol.config import Job, to_json
from edge.protocol.messages import Totals, Train, Update, WireError, printable
from edge.protocol.payload import Payload
from scenarios.flower.replies import Replies
from scenarios.flower.wall_clock import MeasuredTimes, WallClock

UNAVAILABLE = (3, 4, 5)
"""Codes of `flwr.common.constant.ErrorCode` of a message or reply that is gone, or of a node that is."""
NOTE_SECONDS = 30.0
"""Wait for devices after which it is said once more who is missing."""
MOST_TEXT = 1000
"""Characters of a node's error that are shown."""
_log = logging.getLogger("fedbr.flower")


@dataclass(frozen=True)
class DeviceSettings:
    """Keys of the app's configuration (``tool.flwr.app.config``), there with ``-`` for ``_``."""

    min_nodes: int = 0
    """Nodes that the run waits for before its first round; 0: one for each client with examples"""
    poll_seconds: float = 0.1
    """Seconds between two questions for replies, which a round lasts longer at most"""
    visit_seconds: float = 3600.0
    """Seconds after which a visit is given up, and its client counts as lost in the round"""


def tell(text: str) -> None:
    """Say what happens to devices, in the log of the run and to whoever follows the app."""
    _log.info("%s", text)
    print(f"fedbr: {text}", file=sys.stderr, flush=True)


class Nodes:
    """The nodes of a Flower federation, and which client each is."""

    def __init__(
        self, grid: Grid, settings: DeviceSettings, job: Job, is_stopped: Callable[[], bool], classes: int = 0
    ) -> None:
        """``classes``: of data that lie on the nodes alone, whose numbers they must say."""
        self.grid, self.settings = grid, settings
        self._job, self._is_stopped, self._classes = to_json(job), is_stopped, classes
        self.node_of: dict[int, int] = {}
        """client -> its node, of those that are connected"""
        self.joined: dict[int, Joined] = {}
        """client -> what its node said that it holds"""
        self.is_closed = False
        """Whether no further client may join, nor one with other examples"""
        self._joins = Replies(grid)
        self._asked: dict[str, int] = {}
        """Message -> node that was asked which client it is"""
        self._known = set[int]()
        """Nodes that were asked, and are connected"""
        self._wanted = set[int]()

    def join(self, clients: Sequence[int]) -> None:
        """Wait until enough nodes of these clients have joined. Stopped."""
        self._wanted = set(clients)
        enough = min(self.settings.min_nodes or len(clients), len(clients))
        while len(self.node_of) < enough:
            self.wait()

    def wait(self) -> None:
        """Wait until one more node has joined, or one has gone. Stopped."""
        before, noted = dict(self.node_of), -math.inf
        while self.node_of == before:
            if time.monotonic() - noted >= NOTE_SECONDS:
                noted = time.monotonic()
                missing = sorted(self._wanted - set(before))
                tell(f"waiting for the nodes of clients {', '.join(map(str, missing))}")
            self.pause()
            self._refresh()

    def all_there(self) -> bool:
        """Whether all that are wanted are connected now."""
        self._refresh()
        return self._wanted <= set(self.node_of)

    def _refresh(self) -> None:
        """Ask new nodes which client they are, take the answers that have come, and forget nodes that have gone."""
        connected = set(self.grid.get_node_ids())
        gone = {client for client, node in self.node_of.items() if node not in connected}
        for client in gone:
            tell(f"client {client}: its node has gone")
            del self.node_of[client]
        self._known &= connected
        for node in sorted(connected - self._known):
            self._known.add(node)
            (message,) = self.grid.push_messages([Message(join_records(self._job), node, JOIN)])
            self._asked[message] = node
        for reply in self._joins.pull(list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                joined = read_joined(content_of(reply))
                self._check(joined)
            except (WireError, NoReply) as error:
                tell(f"node {node} takes no part: {printable(str(error), MOST_TEXT)}")
                continue
            self.node_of[joined.client], self.joined[joined.client] = node, joined
            tell(f"node {node} is client {joined.client}")

    def _check(self, joined: Joined) -> None:
        """WireError for a node that cannot be this client."""
        client = joined.client
        if client in self.node_of:
            raise WireError(f"client {client} is another node's already")
        if self._classes and len(joined.histogram) != self._classes:
            raise WireError(f"client {client} counts {len(joined.histogram)} classes, not {self._classes}")
        if self._classes and self.is_closed and joined != self.joined.get(client, joined._replace(validation=-1)):
            before = self.joined.get(client)
            had = "joined after the run had begun" if before is None else f"had {before.examples} when the run began"
            raise WireError(f"client {client} has {joined.examples} examples, and {had}: its weight would be wrong")

    def pause(self) -> None:
        """Wait until the next question. Stopped."""
        if self._is_stopped():
            raise Stopped
        time.sleep(self.settings.poll_seconds)


class GridWorkers:
    """The nodes of a Flower federation as workers. ``pool`` evaluates."""

    def __init__(self, nodes: Nodes, rules: RoundPolicy, fleet: Fleet, pool: Workers) -> None:
        self._nodes, self._rules, self._pool = nodes, rules, pool
        self.clock = WallClock(fleet, nodes.node_of.__contains__, nodes.all_there, nodes.wait)

    # --- workers ------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Of the pool."""
        return self._pool.size

    def build(self, make: Callable[[], Payload]) -> Future[Payload]:
        """In the pool."""
        return self._pool.build(make)

    def submit(self, tasks: Sequence[PoolTask], on_reply: ReplyHandler) -> TaskGroup:
        """Send visits to the nodes of their clients; other tasks go to the pool."""
        if not tasks or not isinstance(tasks[0].message, Train):
            return self._pool.submit(tasks, on_reply)
        rules, nodes = self._rules, self._nodes
        limit = rules.deadline if rules.policy == "deadline" else nodes.settings.visit_seconds
        enough = rules.participants if rules.policy == "over_select" else len(tasks)
        return _DeviceVisits(
            nodes.grid, self.clock, tasks, dict(nodes.node_of), on_reply, nodes.pause, (min(enough, len(tasks)), limit)
        )


class NoReply(Exception):  # noqa: N818 - named by what happened
    """A node that has not answered; the text has Flower's reason."""


def content_of(reply: Message) -> RecordDict:
    """The records of a reply. NoReply for one that is gone; WireError for an exception of the app."""
    if not reply.has_error():
        return reply.content
    text = printable(f"{reply.error.reason or f'error {reply.error.code}'}", MOST_TEXT)
    raise NoReply(text) if reply.error.code in UNAVAILABLE else WireError(text)


class _DeviceVisits:
    """The visits of one round, under way (`coordinator.workers.task.TaskGroup`).

    A visit that has no reply when the round is over is lost, or late where the policy does not wait for all.
    """

    def __init__(
        self,
        grid: Grid,
        clock: WallClock,
        tasks: Sequence[PoolTask],
        node_of: Mapping[int, int],
        on_reply: ReplyHandler,
        pause: Callable[[], None],
        ends: tuple[int, float],
    ) -> None:
        """``ends``: the round is over with so many updates, or after so many seconds."""
        self._grid, self._clock, self._on_reply, self._pause = grid, clock, on_reply, pause
        self._enough, self._limit = ends
        self._visits, self._begun, self._ended = len(tasks), time.monotonic(), 0
        self._replies = Replies(grid)
        self._open: dict[str, tuple[PoolTask, int]] = {}
        """Message -> (visit, bytes of the download)"""
        for task in tasks:
            assert isinstance(task.message, Train), task.name
            client = task.message.client
            if client in node_of:
                self._send(task, node_of[client])
            else:  # gone since the cohort was selected
                clock.measured[client] = MeasuredTimes(is_lost=True)

    def _send(self, task: PoolTask, node: int) -> None:
        frames: Frames = {}
        validator = task.validator
        assert isinstance(validator, VisitValidator), task.name
        if task.build is not None:
            task, later = task.with_payload(task.build()), validator.visit.dispatch.later
            frames = {} if later is None else later.frames()
        assert isinstance(task.message, Train) and not task.weight, task.name
        states = ("" if path is None else Path(path).name for path in (task.state_in, task.state_out))
        content = train_records(task.message, frames, *states)
        message = Message(content, node, TRAIN, ttl=self._limit, group_id=str(task.round))
        (sent,) = self._grid.push_messages([message])
        self._open[sent] = task, nbytes(message)

    def wait(self) -> None:
        """As of `coordinator.workers.task.TaskGroup.wait`; PoolError for a visit that fails, if that ends the run."""
        while self._open and self._ended < self._enough and self._seconds < self._limit:
            for reply in self._replies.pull(list(self._open)):
                if (place := reply.metadata.reply_to_message_id) in self._open:
                    self._take(*self._open.pop(place), reply)
            if self._open and self._ended < self._enough:
                self._pause()
        is_lost = self._enough == self._visits and self._seconds >= self._limit
        for task, bytes_down in self._open.values():
            seconds = self._seconds if is_lost else math.inf
            self._clock.measured[_client(task)] = MeasuredTimes(seconds, bytes_down=bytes_down, is_lost=is_lost)
        self._open.clear()

    @property
    def _seconds(self) -> float:
        """Since the round began."""
        return time.monotonic() - self._begun

    def _take(self, task: PoolTask, bytes_down: int, reply: Message) -> None:
        seconds, client, bytes_up, computed = self._seconds, _client(task), 0, 0.0
        try:
            content, bytes_up = content_of(reply), nbytes(reply)
            update, computed = read_update(content)
            checked, _ = task.validator.check(task, update, None, is_remote=False, is_doubted=False)
        except NoReply as error:
            tell(f"{task.name}: no reply: {error}")
            self._clock.measured[client] = MeasuredTimes(seconds, bytes_down=bytes_down, is_lost=True)
            return
        except WireError as error:
            if not task.may_fail:
                raise PoolError(f"{task.name}: {printable(str(error), MOST_TEXT)}") from error
            tell(f"{task.name}: {printable(str(error), MOST_TEXT)}")
            checked = Update(client, task.round, {}, {})
        self._clock.measured[client] = MeasuredTimes(seconds, min(computed, seconds), bytes_down, bytes_up)
        self._ended += 1
        if task.state_out is not None:  # stands for what the device keeps, so that the run knows it by its name
            client_state.write(task.state_out, {})
        self._on_reply(task, checked)

    def collect(self) -> Totals:
        """Devices send their updates: there are no partial sums."""
        raise AssertionError("devices add nothing up")

    def cancel(self) -> None:
        """Forget what is under way; devices train it in vain."""
        self._open.clear()


def _client(task: PoolTask) -> int:
    assert isinstance(task.message, Train), task.name
    return task.message.client
