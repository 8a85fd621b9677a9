"""Round policies without a barrier: visits begin and end one by one, and SimPy says in which order.

``fedasync``: C. Xie, S. Koyejo, I. Gupta, Asynchronous Federated Optimization, 2019, https://arxiv.org/abs/1903.03934.
Each update is mixed into the global model as it arrives, the less the older the model that it was made from; a round of
the ledger is ``participants`` of them.

``fedbuff``: J. Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
https://arxiv.org/abs/2106.06639. Changes are gathered until there are ``buffer`` of them; then the server steps.

A late update is first moved to where a fresh one would be, and then the method's own server step takes it, so that
every method and server optimiser works in both. Visits are trained when the first of them is needed, all that are under
way at once, since nothing that happens after a visit's beginning changes what it computes.

An update is as old as the number of server steps between the beginning of its visit and its use: 0 if the model is
still the one that it was made from. (FedAsync's listing numbers the model after the step, and so counts one more.)
FedBuff adds up s(age) times each change and divides by their number; that is ``aggregate.weights = "uniform"``, while
methods that weigh by size divide by the sum of the weights. A buffer may hold several updates of one client. FedAsync
pulls clients' training towards the model they were sent: that is FedProx, to be joined to any method. The server's
adding up takes no virtual time here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.server import Model
from coordinator.records.checkpoints import clock_state, restore_server
from coordinator.records.history_replay import InFlight, ReplayedRun, ReplayFinished, pack_in_flight, unpack_in_flight
from coordinator.records.round_record import NOT_EVALUATED, RoundRecord, outcome
from coordinator.records.schema import TRAINED
from coordinator.rounds import selection
from coordinator.rounds.budget import CLIENTS, SECONDS, Cost
from coordinator.rounds.ports import PendingEvaluation
from coordinator.rounds.run import FederatedRun, History, RunFailed
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Vector

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import VisitEnded

RETRY = "retry"
LOST_ROUNDS = 10
"""A round of the ledger is given up when as many visits were lost as so many rounds need."""


@dataclass
class _VisitInFlight:
    """A visit that has begun."""

    visit: PlannedVisit
    cost: Cost
    model: Model
    """The global model at its beginning"""
    trained: bool = False
    """Whether it has really been trained, and its update waits in the reorder buffer"""


def run_asynchronous(run: FederatedRun) -> str:
    """Visits one by one until a rule stops the run; returns the rule."""
    stream = _AsynchronousRun(run) if run.history is None else _replayed(run, run.history)
    with stream.waiting:
        return stream.play()


def _replayed(run: FederatedRun, history: History) -> _AsynchronousRun:
    """The stream of a run that was interrupted, as it was when its last round was committed."""
    past = ReplayedRun(run, history)
    stream = _AsynchronousRun(past.run)
    with stream.waiting:
        try:
            rule: str | None = stream.play()
        except ReplayFinished:
            rule = None
    if rule is not None and not past.is_over:
        raise RunFailed(f"round {past.run.rounds}: played again, the run would have ended here: {rule}")
    stream.go_on(run, history, rule)
    return stream


class _AsynchronousRun:
    def __init__(self, run: FederatedRun) -> None:
        self.run, self.rules = run, run.rules
        self.under_way: dict[int, _VisitInFlight] = {}
        """By client"""
        self.waiting = run.trainer.reorder_buffer()
        """Updates of visits that are under way on the clock"""
        self.arrived = 0
        """Updates that were folded, but are not yet in the model"""
        self.version = 0
        """Server steps so far"""
        self.retry_at = math.inf
        """When the next client that could begin a visit is there; inf: nobody is waited for"""
        self.refused_by: str | None = None
        self.stopped_by: str | None = None
        """The rule by which it had ended before it was played again"""
        self.idle = selection.IdleClients(
            run.job.seed,
            run.candidates,
            is_able=lambda client: bool(self.run.eligible([client], self.version)),
            back=lambda client: self.run.clock.first_available([client]),
        )
        self._open()

    def _open(self) -> None:
        """A new round of the ledger begins."""
        self.record = RoundRecord(self.run.rounds, self.run.clock.now)
        if self.run.states is not None:
            self.run.states.uncommitted = self.record.states
        self.steps = 0
        """Server steps in this round"""
        self.lost = 0
        """Visits of this round that lost their clients"""

    def go_on(self, run: FederatedRun, history: History, stopped_by: str | None) -> None:
        """Go on with another run, which stands on the same clock where this one has come to, or has ended there."""
        self.stopped_by = stopped_by
        self.run, self.waiting = run, run.trainer.reorder_buffer()
        known, clock = unpack_in_flight(history.checkpoint), clock_state(history.checkpoint)
        if known.keys() != self.under_way.keys() or any(
            not np.array_equal(array, clock[name]) for name, array in run.clock.state().items()
        ):
            raise RunFailed(f"round {run.rounds - 1}: played again, its visits would not be under way as they were")
        restore_server(run.server, history.checkpoint)
        for client, one in self.under_way.items():
            dispatch = replace(one.visit.dispatch, payload=known[client].payload)
            one.visit, one.model = replace(one.visit, dispatch=dispatch), known[client].model
            one.trained = False
            run.server.restore_in_flight(client, one.model)
        self._open()

    def play(self) -> str:
        run, limit = self.run, self.run.budget.ends_at
        while self.stopped_by is None:
            run.check_stop()
            self._fill()
            if not self.under_way and self.retry_at == math.inf:
                return self._stop(SECONDS if run.clock.now >= limit else self.refused_by or CLIENTS)
            item = run.clock.next(until=limit)
            if item is None:
                run.clock.advance(limit)
                return self._stop(SECONDS)
            if item is RETRY:
                self.retry_at = math.inf
                continue
            self.stopped_by = self._ended(item)
        return self.stopped_by

    # --- how visits begin -----------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin visits until as many are under way as may be; where nobody is there, try again when somebody is."""
        run = self.run
        is_over = run.clock.now >= run.budget.ends_at
        while len(self.under_way) < self.rules.participants and self.refused_by is None and not is_over:
            client = self.idle.take(run.visits, run.clock.now)
            if client is None:
                self._try_again(self.idle.next_return)
                return
            self._begin(client)

    def _try_again(self, time: float) -> None:
        if time < self.retry_at:
            self.retry_at = time
            self.run.clock.at(time, 0, RETRY)

    def _begin(self, client: int) -> None:
        run = self.run
        visit = run.prepare(client, self.version, rng_round=run.visits)
        cost = run.uncontended_cost(visit)
        _, self.refused_by = run.budget.reserve([cost])
        if self.refused_by is not None:
            return
        run.visits += 1
        run.server.started(self.version, [visit.dispatch])
        self.under_way[client] = _VisitInFlight(visit, cost, dict(run.server.model))
        run.clock.begin(visit.work, run.clock.conditions([client], run.rounds, visit.number), client)

    # --- how they end ---------------------------------------------------------------------------------------------

    def _ended(self, ended: VisitEnded) -> str | None:
        """A visit has ended or lost its client; returns the rule that stops the run after it, or None."""
        run, client = self.run, ended.order
        one = self.under_way.pop(client)
        self.idle.put(client)
        run.budget.release([one.cost])
        if not math.isfinite(ended.timeline.up_end[0]):
            self._forget(one)
            return self._in_vain(one, ended, "lost")
        kind, reply = self._trained(one)
        if kind not in TRAINED:
            return self._in_vain(one, ended, kind)
        self._keep(one.visit)
        run.server.received(one.visit.round, [one.visit.dispatch])
        run.server.observe(reply)
        self._charge(one, ended, kind, reply.numbers["loss"])
        self.record.set_critical_path([one.visit], ended.timeline, run.clock.now)
        learned = run.server.feedback(one.visit.round, [outcome(one.visit, reply, ended.timeline, 0)])
        self.record.method_rows += [row._replace(round=self.record.round) for row in learned]
        run.server.accumulate(self._moved(one, reply, run.server.model))
        self.arrived += 1
        if self.arrived == self.rules.updates_per_step:
            self._step()
        return self._close() if self.steps == self.rules.steps_per_round else None

    def _in_vain(self, one: _VisitInFlight, ended: VisitEnded, kind: str) -> str | None:
        """A visit has ended for nothing; returns the rule that stops the run after it, or None."""
        self._charge(one, ended, kind)
        self.lost += 1
        return self._given_up() if self.lost == LOST_ROUNDS * self.rules.visits_per_round else None

    def _trained(self, one: _VisitInFlight) -> tuple[str, Update]:
        """The visit's reply, checked only now: it harms nobody if training goes wrong in a visit that is in vain."""
        if not one.trained:
            waiting = [each for each in (one, *self.under_way.values()) if not each.trained]
            self.run.trainer.submit([each.visit for each in waiting], self.waiting.add).wait()
            for each in waiting:
                each.trained = True
        kind, reply = self.run.trainer.validate(self.waiting.take(one.visit.client), one.visit, one.model)
        if kind not in TRAINED:
            self._drop_state(one)
        return kind, reply

    def _keep(self, visit: PlannedVisit) -> None:
        """The client's new state replaces the old one at once: the client may be visited again before the commit."""
        if self.run.states is None:
            return
        replaced = self.record.states.get(visit.client)
        if replaced is not None:
            self.run.states.drop(replaced)
        self.record.states[visit.client] = visit.state_name

    def _forget(self, one: _VisitInFlight) -> None:
        """A visit was in vain: what came of it, if it has been trained already, is dropped."""
        if not one.trained:
            return
        self.waiting.take(one.visit.client)
        self._drop_state(one)

    def _drop_state(self, one: _VisitInFlight) -> None:
        if self.run.states is not None:
            self.run.states.drop(one.visit.state_name)

    def _charge(self, one: _VisitInFlight, ended: VisitEnded, kind: str, loss: float | None = None) -> None:
        run = self.run
        spent = self.record.add(
            one.visit,
            run.clock.fleet,
            ended.timeline,
            0,
            kind,
            run.clock.now,
            staleness=self.version - one.visit.round,
            loss=loss,
            up=run.up_shapes,
        )
        run.budget.settle(one.visit.client, spent)
        run.clock.passed(ended.conditions, ended.timeline)

    def _step(self) -> None:
        """The server's step, with all that has arrived."""
        self.run.step()
        self.arrived = 0
        self.version += 1
        self.steps += 1

    def _moved(self, one: _VisitInFlight, reply: Update, current: Model) -> Update:
        """The reply as a fresh one: mixed with the current model, or its change carried over to it."""
        discount = self.rules.discount(self.version - one.visit.round)
        if self.rules.policy == "fedasync":
            share, base = self.rules.mixing * discount, current
        else:
            share, base = self.rules.server_lr * discount, one.model
        moved = {
            key: Vector(current[key].data + np.float32(share) * (vector.data - base[key].data))
            for key, vector in reply.payload.get(MODEL, {}).items()
        }
        return replace(reply, payload={**reply.payload, MODEL: moved})

    # --- rounds of the ledger -------------------------------------------------------------------------------------

    def _given_up(self) -> str | None:
        """So many visits were lost that the round ends with what has arrived; it counts, so a run always ends."""
        if self.arrived:
            self._step()
        return self._close()

    def _close(self, stopped_by: str | None = None) -> str | None:
        """A round is over: score, see whether it was the last, and commit."""
        run = self.run
        run.rounds += 1
        stopped_by = stopped_by or run.budget.reached(run.rounds, None)
        evaluation: PendingEvaluation | None = None
        if self.steps:
            evaluation = run.evaluate_if_due(is_last=stopped_by is not None)
        elif stopped_by is not None:
            evaluation = run.late_evaluation()
        result = NOT_EVALUATED if evaluation is None else evaluation.wait()
        stopped_by = run.budget.reached(run.rounds, result[0]) or stopped_by
        if stopped_by is not None:
            self._cut_all()
        flight = {client: InFlight(one.visit.dispatch.payload, one.model) for client, one in self.under_way.items()}
        run.commit_when_evaluated(run.close_round(self.record, evaluation, stopped_by, pack_in_flight(flight)))
        self._open()
        return stopped_by

    def _stop(self, stopped_by: str) -> str:
        """Nothing more will arrive: what has arrived counts, and what is under way was in vain."""
        if self.arrived:
            self._step()
        if self.steps:
            return self._close(stopped_by) or stopped_by
        self._cut_all()
        if self.record.visits or not self.run.evaluated:
            self.run.commit_when_evaluated(self.run.close_round(self.record, self.run.late_evaluation(), stopped_by))
        return stopped_by

    def _cut_all(self) -> None:
        for client in sorted(self.under_way):
            one = self.under_way.pop(client)
            self.run.budget.release([one.cost])
            self._charge(one, self.run.clock.cut(client), "cut")
            self._forget(one)
