"""Rounds of a Flower app: its ServerApp decides who is sent what, and each message is a visit on the clock.

A node answers one message after another. Its app runs first, in a worker, so that bytes and FLOPs are known when the
visit begins; the clock then says when the reply is there. The ServerApp waits in virtual time: until the replies are
there, a timeout, or the next reply.

A round is what lies between two steps of the app's model: it ends with the first message to train that is pushed after
a reply to such a message was received. A reply is recorded by its content. A resumed run plays the ServerApp again, and
gives it the recorded replies; a replay does so on another fleet. Both are refused if the app sends another message.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import structs

from coordinator.aggregation.server import Download
from coordinator.records.bottleneck import bottleneck
from coordinator.records.round_record import NOT_EVALUATED, EvalResult, RoundRecord, logged_means
from coordinator.records.schema import EVALUATE, FAILED, NOT_SCORED, TRAIN, EvaluationRow, RoundRow
from coordinator.rounds.budget import SECONDS, Budget
from coordinator.rounds.run import RoundFinished, RunFailed, RunTotals
from coordinator.rounds.visit import PlannedVisit, VisitPrice
from coordinator.rounds.visits_in_flight import VisitsInFlight, uncontended_cost
from coordinator.workers.task import PoolTask, Workers
from costmodel.visits.work import Work
from edge.protocol import messages
from edge.protocol.app_records import AppMessage, AppReply, message_file, read_reply, reply_file
from edge.protocol.config import TrainingPlan
from edge.protocol.messages import ACCURACY
from edge.protocol.options.flower_app import FlowerAppOptions

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Clock, VisitEnded

APP = "app"
"""The rule that ends most runs of an app: it has come to its end"""
MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE = 3, 5
"""Flower's codes of errors"""
EXPIRED = "the message has expired, or its reply before it was pulled"
MOST_IDLE_WAITS, MOST_WAITS_FOR_NODES = 1_000, 100_000
"""Times that an app may let time pass with no message open, before it is said to wait in vain: where all clients are
always there, and where they come and go. Of questions for nodes at one instant the higher number is allowed anywhere,
since an app may ask for each of its messages"""
MOST_FAILURES = 100
"""Errors of an app that are told, each once"""
POLL_SECONDS = 1.0
"""Virtual seconds that a poll lets pass at most, if the one before it at the same instant has found nothing, either"""
SLOT = "records"
"""The slot of a message's bytes in the ledger: an app's model has no blocks"""


class ServerApp(Protocol):
    """The process of a ServerApp."""

    def question(self) -> dict[str, Any]:
        """Its next question. RunFailed if the process has ended without one."""
        ...

    def answer(self, answer: dict[str, Any]) -> None:
        """The answer to the last question."""
        ...


@dataclass(frozen=True)
class EndedAppRound:
    """A round that has ended, for the ledger."""

    record: RoundRecord
    row: RoundRow
    stopped_by: str | None


class AppRecorder(Protocol):
    """Where rounds go."""

    def commit(self, ended: EndedAppRound) -> None:
        """Commit a round; RunFailed if the run has committed another one in its place."""
        ...


class _Stop(Exception):  # noqa: N818 - no error
    """A rule ends the run."""


@dataclass
class _Exchange:
    """One message and its fate."""

    number: int
    message: AppMessage
    pushed_at: float
    round: int
    reply: AppReply | None = None
    """The app's answer, whether or not the reply arrives, without message and context"""
    visit: PlannedVisit | None = None
    ready_at: float = math.inf
    """Virtual seconds at which the server has the reply, or an error in its place"""
    error: tuple[int, str] | None = None
    """(Flower's code, reason) in place of a reply"""
    ended_in: int | None = None
    """The round in whose row the visit is"""
    is_abandoned: bool = False
    """Whether the app has stopped to wait for it"""

    @property
    def trains(self) -> bool:
        return self.message.kind.partition(".")[0] == TRAIN

    @property
    def has_failed(self) -> bool:
        """Whether the app has answered with an error."""
        return self.reply is not None and bool(self.reply.error)

    @property
    def expires_at(self) -> float:
        return self.pushed_at + self.message.ttl


@dataclass
class AppRounds:
    """One run of an app."""

    options: FlowerAppOptions
    clients: int
    clock: Clock
    server: ServerApp
    workers: Workers | None
    """None for a replay, which computes nothing"""
    folder: Path
    """The folder of the recorded replies"""
    recorder: AppRecorder
    budget: Budget
    on_round: Callable[[RoundFinished], None]
    check_stop: Callable[[], None]
    """Raises if the user has asked to stop"""
    committed: RunTotals = field(default_factory=RunTotals)
    on_failure: Callable[[str], None] = lambda text: None
    """Told of an error of the app's in place of a reply: of each text once"""
    calibrated: int = 0
    """Replies whose computing is CPU seconds of this host, since torch has counted nothing"""

    def __post_init__(self) -> None:
        self.exchanges: list[_Exchange] = []
        self.queued: dict[int, deque[_Exchange]] = defaultdict(deque)
        """client -> its messages that have not begun"""
        self.scheduled: set[int] = set()
        """Clients whose next message begins at a time that the clock has"""
        self.in_flight: dict[int, _Exchange] = {}
        """client -> the message under way"""
        self.live = VisitsInFlight(self.clock, self.budget)
        """The same on the clock"""
        self._open_exchanges: dict[int, _Exchange] = {}
        """By number, those whose fate is open"""
        self._settled: list[int] = []
        """Numbers of those whose fate was settled since the app has last looked"""
        self._expiries: list[tuple[float, int]] = []
        """Heap of (virtual seconds, number) at which messages expire, those of others among them"""
        self._known_at = -math.inf
        """Virtual seconds at which the last error is known"""
        self._empty_poll_at = -math.inf
        """Virtual seconds of the last poll that has found nothing"""
        self.contexts: dict[int, Path] = {}
        """client -> the reply that its context is in"""
        self.rounds, self.idle_waits = 0, 0
        self._asked_at, self._questions = -math.inf, 0
        """Virtual seconds of the last question for nodes, and how many came before it at that instant"""
        self.stopped_by: str | None = None
        self.failures: dict[str, str] = {}
        """Error that ClientApps have raised -> the first message in whose answer, of so many texts"""
        self.failed = 0
        """Messages that were answered with an error"""
        self.refused_by: str | None = None
        """The rule whose budget has refused a visit; visits under way come to their end"""
        self._open()

    def _open(self) -> None:
        self.record = RoundRecord(self.rounds, self.clock.now)
        self.trained: list[_Exchange] = []
        """Messages to train of this round whose replies the app has"""
        self.evaluated: list[_Exchange] = []
        self.found: dict[str, float] = {}
        """Metrics that the ServerApp has measured itself"""
        self.contents = hashlib.sha256(self.committed.model_sha256.encode())

    def run(self) -> str:
        """Answer the ServerApp until it ends, or a rule ends the run; returns the rule."""
        answers = {"nodes": self._nodes, "push": self._push, "wait": self._wait, "sleep": self._sleep}
        try:
            while True:
                question = self.server.question()
                self.check_stop()
                kind = question["do"]
                if kind == "end":
                    return self._finish(APP)
                if kind == "error":
                    self._forget(question.get("odd", ()))
                    raise RunFailed(f"round {self.rounds + 1}: the ServerApp has raised {question['text']}")
                if kind == "metrics":
                    if question["round"]:  # those before the first round are of the initial model
                        self.found |= question["values"]
                    answer: dict[str, Any] = {}
                else:
                    answer = answers[kind](question)
                self.server.answer(answer | {"now": self.clock.now})
        except _Stop as stop:
            return self._finish(str(stop))

    # --- questions ------------------------------------------------------------------------------------------------

    def _nodes(self, question: dict[str, Any]) -> dict[str, Any]:
        self._idle(is_question=True)
        is_there, clock = self.clock.is_there, self.clock
        online = [k for k in range(self.clients) if clock.has_power(k) and (is_there is None or is_there(k))]
        return {"clients": online}

    def _push(self, question: dict[str, Any]) -> dict[str, Any]:
        self.idle_waits = self._questions = 0
        pushed = [AppMessage(**fields) for fields in question["messages"]]
        for message in pushed:
            if not 0 <= message.client < self.clients:
                raise RunFailed(f"round {self.rounds + 1}: the app has sent a message to a node that the fleet has not")
        if self.trained and any(message.kind.partition(".")[0] == TRAIN for message in pushed):
            self._close_round()
        for message in pushed:
            exchange = _Exchange(len(self.exchanges), message, self.clock.now, self.rounds)
            self.exchanges.append(exchange)
            self._open_exchanges[exchange.number] = exchange
            heappush(self._expiries, (exchange.expires_at, exchange.number))
            self.queued[message.client].append(exchange)
        self._begin_next(sorted({message.client for message in pushed}))
        return {}

    def _wait(self, question: dict[str, Any]) -> dict[str, Any]:
        """The replies that are there. With ``all``, let time pass until all are, or the ``timeout`` is.

        Without, the app polls: no time passes, unless it has polled in vain at this instant before.
        """
        clock, waits_for_all = self.clock, question["all"]
        waiting = set(question["numbers"])
        known = [(self.exchanges[number].ready_at, number) for number in waiting.difference(self._open_exchanges)]
        heapify(known)
        self._settled.clear()
        until = clock.now + (math.inf if question["timeout"] is None else question["timeout"])
        if not waits_for_all:
            until = clock.now + POLL_SECONDS if self._empty_poll_at == clock.now else clock.now
        ready: list[_Exchange] = []
        while waiting:
            self._pass(0.0)
            for number in waiting.intersection(self._settled):
                heappush(known, (self.exchanges[number].ready_at, number))
            self._settled.clear()
            while known and known[0][0] <= clock.now:
                number = heappop(known)[1]
                waiting.remove(number)
                ready.append(self.exchanges[number])
            if not waiting or clock.now >= until or (ready and not waits_for_all):
                break
            self._go_on(min(until, known[0][0]) if known else until)
        if not ready:
            self._idle()
        self._empty_poll_at = clock.now if not (ready or waits_for_all) else -math.inf
        ready.sort(key=lambda exchange: exchange.number)
        for exchange in ready:
            if exchange.error is None and exchange.expires_at < clock.now:  # Flower has dropped the reply unread
                exchange.error = MESSAGE_UNAVAILABLE, EXPIRED
        if waits_for_all:
            for number in waiting:
                self.exchanges[number].is_abandoned = True
        self._received(ready)
        replies = [
            {
                "number": exchange.number,
                **({} if exchange.error is None else {"code": exchange.error[0], "reason": exchange.error[1]}),
            }
            for exchange in ready
        ]
        return {"replies": replies}

    def _sleep(self, question: dict[str, Any]) -> dict[str, Any]:
        self._idle()
        self._pass(max(question["seconds"], 0.0))
        return {}

    def _idle(self, is_question: bool = False) -> None:
        """The app waits, or has a question. RunFailed if it does so for ever with no message whose fate is open."""
        if self._open_exchanges or self.clock.now < self._known_at:
            return
        if is_question and self._asked_at == self.clock.now:
            self._questions += 1
        else:
            self._asked_at, self._questions = self.clock.now, 0
            self.idle_waits += 1
        most = MOST_IDLE_WAITS if self.clock.is_there is None else MOST_WAITS_FOR_NODES
        if self.idle_waits > most or self._questions > MOST_WAITS_FOR_NODES:
            raise RunFailed(
                f"round {self.rounds + 1}: the ServerApp waits in vain, at {self.clock.now:.0f} s of virtual time "
                f"with no message under way; the fleet has {self.clients} clients (data.clients), and a strategy waits "
                "for its min_available_nodes"
            )

    # --- visits ---------------------------------------------------------------------------------------------------

    def _begin_next(self, clients: Sequence[int]) -> None:
        """Begin the next messages of these clients, if they are idle, after the overhead of a visit; those that are
        away begin when they return."""
        busy = self.in_flight.keys() | self.scheduled
        idle = [client for client in clients if client not in busy and self.queued[client]]
        if self.refused_by is not None:
            return
        self._answer([self.queued[client][0] for client in idle])
        for client in idle:
            if self.refused_by is not None:
                return
            begins = self.clock.first_available([client], self.clock.now + self.options.overhead)
            if begins <= self.clock.now:
                self._begin(self.queued[client].popleft())
            elif begins < math.inf:
                self.scheduled.add(client)
                self.clock.at(begins, client, client)

    def _begin(self, exchange: _Exchange) -> None:
        clock, message, reply = self.clock, exchange.message, exchange.reply
        client = message.client
        if exchange.expires_at <= clock.now:
            if exchange.number in self._open_exchanges:
                self._fail(exchange, clock.now, MESSAGE_UNAVAILABLE, EXPIRED)
            self._begin_next([client])
            return
        assert reply is not None, exchange
        work = Work(message.nbytes, reply.nbytes, reply.flops or reply.cpu_flops, reply.steps)
        down, up = ({SLOT: {name: nbytes}} for name, nbytes in (("down", message.nbytes), ("up", reply.nbytes)))
        price = VisitPrice(work, TrainingPlan(0, reply.examples, 0), 0.0, 0.0, down=down, up=up)
        kind = TRAIN if exchange.trains else EVALUATE
        visit = PlannedVisit(exchange.number, exchange.number, self.rounds, 0.0, Download(client, {}), kind, price, {})
        cost = uncontended_cost(clock, visit, self.rounds, exchange.number)
        if not clock.has_power(client) or not self.budget.admits(client, cost):
            self._fail(exchange, clock.now, NODE_UNAVAILABLE, "the node cannot pay for it")
            self._begin_next([client])
            return
        self.refused_by = self.live.reserve(client, cost)
        if self.refused_by is not None:
            self._stop_if_refused()
            return
        exchange.visit, self.in_flight[client] = visit, exchange
        self.live.begin([visit], self.rounds)

    def _answer(self, exchanges: Sequence[_Exchange]) -> None:
        """Have the app answer these messages in workers, all together, or take the recorded replies.

        RunFailed for a reply that a SuperLink refuses, and for a recorded one to another message.
        """
        tasks = []
        for exchange in exchanges:
            if exchange.reply is not None:
                continue
            file, number, client = reply_file(self.folder, exchange.number), exchange.number, exchange.message.client
            if file.exists():
                continue
            if self.workers is None:
                raise RunFailed(f"{self._named(exchange)}: there is no recorded reply to it")
            context = self.contexts.get(client)
            message = messages.Train(client, number, 0.0, {}, {})
            tasks.append(PoolTask(message, None if context is None else str(context), str(file), "message"))
        if tasks:
            assert self.workers is not None
            self.workers.submit(tasks, lambda task, reply: None).wait()
        asked = {task.message.round for task in tasks if isinstance(task.message, messages.Train)}
        for exchange in exchanges:
            if exchange.reply is None:
                exchange.reply = self._recorded(exchange)
                self._note_failure(exchange, is_new=exchange.number in asked)

    def _recorded(self, exchange: _Exchange) -> AppReply:
        try:
            reply = read_reply(reply_file(self.folder, exchange.number))
        except ValueError as error:
            self._forget([exchange.number])
            raise RunFailed(f"{self._named(exchange)}: {error}") from None
        if reply.refused:
            self._forget([exchange.number])
            raise RunFailed(f"{self._named(exchange)}: the ClientApp {reply.refused}")
        if reply.request != exchange.message.sha256:
            raise RunFailed(
                f"{self._named(exchange)}: the app has sent another message than the recorded reply answers; an app "
                "that draws from elsewhere than Python's, NumPy's and torch's generators cannot be played again, nor "
                "one that has changed in this"
            )
        if self.workers is not None:
            message_file(self.folder, exchange.number).unlink(missing_ok=True)
        self.calibrated += reply.flops == 0.0 < reply.cpu_flops
        return structs.replace(reply, message=b"", context=b"")  # they lie in the file, and may be large

    def _note_failure(self, exchange: _Exchange, is_new: bool) -> None:
        """Count an error of the app's in place of a reply; one that no earlier part of the run has seen is told."""
        if not exchange.has_failed:
            return
        assert exchange.reply is not None, exchange
        self.failed += 1
        error = exchange.reply.error
        if error not in self.failures and len(self.failures) < MOST_FAILURES:
            self.failures[error] = self._named(exchange)
            if is_new:
                self.on_failure(f"{self._named(exchange)}: the ClientApp has raised {error}")

    def _forget(self, numbers: Sequence[int]) -> None:
        """Remove recorded replies that the run could not go on with, so that a resumed run asks the app again."""
        for number in numbers if self.workers is not None else ():
            if self.exchanges[number].ended_in not in (None, self.rounds):
                continue  # it belongs to a round that is committed
            reply_file(self.folder, number).unlink(missing_ok=True)

    def _named(self, exchange: _Exchange) -> str:
        message = exchange.message
        return f"round {self.rounds + 1}, client {message.client}, {message.kind}, message {exchange.number}"

    # --- time -----------------------------------------------------------------------------------------------------

    def _go_on(self, until: float) -> bool:
        """Handle the next event; or let time pass ``until`` then if there is none before, and return False."""
        limit = self.budget.ends_at
        while self._expiries and self._expiries[0][1] not in self._open_exchanges:
            heappop(self._expiries)
        due = min([until, limit, *(time for time, _ in self._expiries[:1])])
        self.check_stop()
        try:
            item = self.clock.next(due)
        except LookupError:
            item = None
        if item is None:
            self.clock.advance(due)  # finite, since every message expires
            if due == limit:
                raise _Stop(SECONDS)
            while self._expiries and self._expiries[0][0] <= self.clock.now:
                exchange = self._open_exchanges.get(heappop(self._expiries)[1])
                if exchange is not None:
                    self._fail(exchange, self.clock.now, MESSAGE_UNAVAILABLE, EXPIRED)
                    exchange.is_abandoned = True
            return False
        if isinstance(item, int):
            self.scheduled.remove(item)
            if self.refused_by is None:
                self._begin(self.queued[item].popleft())
        else:
            self._end(item)
        return True

    def _pass(self, seconds: float) -> None:
        """Let time pass, and handle all events until then, those at that very instant among them."""
        until = self.clock.now + seconds
        while self._go_on(until) or self.clock.now < until:
            pass

    def _fail(self, exchange: _Exchange, ready_at: float, code: int, reason: str) -> None:
        """From ``ready_at`` on, or when the message expires, the app finds an error in place of the reply."""
        if exchange.expires_at < ready_at:
            ready_at, code, reason = exchange.expires_at, MESSAGE_UNAVAILABLE, EXPIRED
        exchange.ready_at, exchange.error = ready_at, (code, reason)
        self._known_at = max(self._known_at, ready_at)
        self._settled.append(exchange.number)
        del self._open_exchanges[exchange.number]

    def _end(self, ended: VisitEnded) -> None:
        exchange = self.in_flight.pop(ended.order)
        assert exchange.visit is not None, exchange
        client, now = ended.order, self.clock.now
        self.live.ended(client)
        arrived = math.isfinite(ended.timeline.up_end[0])
        kind = exchange.visit.kind if arrived else ("lost" if exchange.trains else "unscored")
        if exchange.has_failed and arrived:
            kind = FAILED if exchange.trains else NOT_SCORED
        if arrived and exchange.is_abandoned:
            kind = "late" if exchange.trains else "unscored"
        if arrived:  # the node's context is what it is, whether or not anybody still waits for the reply
            self.contexts[client] = reply_file(self.folder, exchange.number)
        if exchange.is_abandoned:
            self._open_exchanges.pop(exchange.number, None)
        elif arrived:
            exchange.ready_at = now
            self._settled.append(exchange.number)
            del self._open_exchanges[exchange.number]
            access = self.clock.fleet.links.access
            self.record.set_critical([exchange.visit], ended.timeline.end, partial(bottleneck, ended.timeline, access))
        else:
            reason = f"the node was lost, and known to be after {self.options.heartbeat:g} s"
            self._fail(exchange, now + self.options.heartbeat, NODE_UNAVAILABLE, reason)
        loss = self._metric(exchange, "loss") if kind == TRAIN else None
        self._account(exchange, ended, kind, loss)
        self._stop_if_refused()
        self._begin_next([client])

    def _stop_if_refused(self) -> None:
        if self.refused_by is not None and not self.in_flight:
            raise _Stop(self.refused_by)

    def _account(self, exchange: _Exchange, ended: VisitEnded, kind: str, loss: float | None = None) -> None:
        assert exchange.visit is not None, exchange
        exchange.ended_in = self.rounds
        self.live.account(self.record, exchange.visit, ended, kind, self.rounds - exchange.round, loss)

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _received(self, ready: Sequence[_Exchange]) -> None:
        """The app has these replies: in the order of their messages, whatever the order of arrival."""
        arrived = [exchange for exchange in ready if exchange.error is None]
        trained = [exchange for exchange in arrived if exchange.trains]
        for exchange in arrived:
            if exchange.reply is None:
                continue
            if exchange.has_failed:
                self.contents.update(f"{exchange.number} error\n".encode())
                continue
            self.contents.update(f"{exchange.number} {exchange.reply.sha256}\n".encode())
            (self.trained if exchange.trains else self.evaluated).append(exchange)
            self.record.log(exchange.message.client, {self._logged(exchange, k): v for k, v in _finite(exchange)})
        nbytes = sum(exchange.reply.nbytes for exchange in trained if exchange.reply is not None)
        self._pass(self.clock.fleet.links.handling_seconds(nbytes, len(trained)))

    def _logged(self, exchange: _Exchange, name: str) -> str:
        return name if exchange.trains or name.startswith("eval") else f"eval_{name}"

    def _metric(self, exchange: _Exchange, word: str) -> float | None:
        assert exchange.reply is not None, exchange
        return _first(exchange.reply.metrics, word)

    def _evaluation(self) -> EvalResult:
        """The accuracy of the round: the ServerApp's own, or the mean over clients' examples."""
        word = self.options.metric or "acc"
        if (app_accuracy := _first(self.found, word)) is not None:
            return EvalResult(app_accuracy, _first(self.found, "loss"))
        scored = [
            (exchange, value) for exchange in self.evaluated if (value := self._metric(exchange, word)) is not None
        ]
        if not scored:
            return NOT_EVALUATED
        examples = [max(1, exchange.reply.examples) for exchange, _ in scored if exchange.reply is not None]
        accuracy = float(np.average([value for _, value in scored], weights=examples))
        losses = [self._metric(exchange, "loss") for exchange, _ in scored]
        known = [(loss, n) for loss, n in zip(losses, examples, strict=True) if loss is not None]
        loss = float(np.average([loss for loss, _ in known], weights=[n for _, n in known])) if known else None
        values = [
            EvaluationRow(self.record.round, exchange.message.client, ACCURACY, value, n)
            for (exchange, value), n in zip(scored, examples, strict=True)
        ]
        return EvalResult(accuracy, loss, values)

    def _close_round(self, stopped_by: str | None = None) -> None:
        """Commit the round. `_Stop` if its evaluation ends the run."""
        self.rounds += 1
        result = self._evaluation()
        record, now = self.record, self.clock.now
        record.log(None, {name: value for name, value in self.found.items() if math.isfinite(value)})
        record.evaluations = list(result.values)
        row = record.round_row(now, result, self.contents.hexdigest())
        stopped_by = stopped_by or self.budget.reached(self.rounds, result.accuracy)
        self.recorder.commit(EndedAppRound(record, row, stopped_by))
        down, up = self.committed.bytes_down + row.bytes_down, self.committed.bytes_up + row.bytes_up
        self.committed = RunTotals(self.rounds, now, down, up, row.model_sha256)
        self.on_round(RoundFinished(row, self.rounds, down, up, Counter(), logged_means(record.logged)))
        self._open()
        if stopped_by is not None:
            self.stopped_by = stopped_by
            raise _Stop(stopped_by)

    def _finish(self, rule: str) -> str:
        """Cut what is under way, and commit the last round."""
        if self.stopped_by is not None:
            return self.stopped_by
        for client in sorted(self.in_flight):
            exchange = self.in_flight.pop(client)
            kind = "cut" if exchange.trains else "unscored"
            self._account(exchange, self.live.cut(client), kind)
        if self.trained or len(self.record.visits) or not self.rounds:
            if not self.trained:
                self.rounds -= 1  # no step of the app's model: the row is of what came after the last round
            with suppress(_Stop):
                self._close_round(rule)
        return rule


def _first(metrics: dict[str, float], word: str) -> float | None:
    """The first metric with a word in its name, in the order in which the app has given them."""
    return next((value for name, value in metrics.items() if word in name and math.isfinite(value)), None)


def _finite(exchange: _Exchange) -> Iterator[tuple[str, float]]:
    assert exchange.reply is not None, exchange
    yield from ((name, value) for name, value in exchange.reply.metrics.items() if math.isfinite(value))
