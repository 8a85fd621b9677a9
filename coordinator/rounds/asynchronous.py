"""Asynchronous round policies: visits begin and end one by one, in the order of the virtual clock.

``fedasync``: C. Xie, S. Koyejo, I. Gupta, Asynchronous Federated Optimization, 2019, https://arxiv.org/abs/1903.03934.
Each update is mixed into the global model when it arrives, with a factor that falls with its staleness; a round of the
ledger is ``participants`` updates.

``fedbuff``: J. Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
https://arxiv.org/abs/2106.06639. The server steps whenever ``buffer`` updates have arrived.

An update is rebased to the current model before the method's own server step uses it, so that both policies work with
every method and server optimizer. Visits are trained when the update of the first of them is needed, all visits in
flight together, since no event after the start of a visit changes its training.

Staleness is the number of server steps between the start of a visit and the use of its update: 0 if the global model is
still the downloaded one. (FedAsync's listing numbers the model after the step, and so counts one more.) FedBuff divides
the sum of the discounted changes by their number; that is ``aggregate.weights = "uniform"``, while methods that weight
by size divide by the sum of the weights. A buffer may hold several updates of one client. FedAsync's proximal term is
FedProx, which joins any method. Aggregation takes no virtual time in these policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from coordinator.aggregation.update_checks import bases
from coordinator.records.bottleneck import bottleneck
from coordinator.records.checkpoints import arrays_under, clock_state, restore_server
from coordinator.records.history_replay import InFlight, ReplayedRun, ReplayFinished, pack_in_flight, unpack_in_flight
from coordinator.records.round_record import NOT_EVALUATED, RoundRecord, outcomes
from coordinator.records.schema import TRAINED
from coordinator.rounds import selection
from coordinator.rounds.budget import CLIENTS, EPSILON, SECONDS
from coordinator.rounds.ports import PendingEvaluation
from coordinator.rounds.run import HELD, FederatedRun, History, RunFailed
from coordinator.rounds.visit import PlannedVisit
from coordinator.rounds.visits_in_flight import VisitsInFlight
from edge.protocol.messages import Update
from edge.protocol.payload import Vector

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import VisitEnded

RETRY = "retry"
LOST_ROUNDS = 10
"""A round of the ledger ends early once as many visits were lost as this many rounds need."""


@dataclass
class _VisitInFlight:
    visit: PlannedVisit
    trained: bool = False
    """Whether a worker has trained it, so that its update is in the reorder buffer"""


def run_asynchronous(run: FederatedRun) -> str:
    """Run visits one by one until a stop rule ends the run; returns the rule."""
    if run.history is None:
        loop = _AsynchronousRun(run)
    else:  # the state of an interrupted run at its last commit, from a replay of its history
        replay = ReplayedRun(run, run.history)
        loop = _AsynchronousRun(replay.run)
        with loop.reorder_buffer:
            try:
                rule: str | None = loop.run_visits()
            except ReplayFinished:
                rule = None
        if rule is not None and not replay.is_over:
            raise RunFailed(f"round {replay.run.rounds + 1}: the replay of the run ends here: {rule}")
        loop.resume(run, run.history, rule)
    with loop.reorder_buffer:
        return loop.run_visits()


class _AsynchronousRun:
    def __init__(self, run: FederatedRun) -> None:
        self.run, self.rules = run, run.rules
        self.in_flight: dict[int, _VisitInFlight] = {}
        """By client"""
        self.live = VisitsInFlight(run.clock, run.budget)
        """The same on the clock"""
        self.reorder_buffer = run.trainer.reorder_buffer()
        """Updates of trained visits in flight"""
        self.arrived: list[int] = []
        """Visits whose updates were accumulated since the last server step"""
        self.version = 0
        """Server steps so far"""
        self.retry_at = math.inf
        """Virtual seconds at which the next client returns; inf: no retry is scheduled"""
        self.refused_by: str | None = None
        self.stopped_by: str | None = None
        """The rule that ends the run"""
        self.idle = selection.IdleClients(
            run.job.seed,
            run.candidates,
            is_eligible=lambda client: bool(self.run.eligible([client], self.version)),
            available_at=lambda client: self.run.clock.first_available([client]),
        )
        self._open()

    def _open(self) -> None:
        """Begin a new round of the ledger."""
        self.record = RoundRecord(self.run.rounds, self.run.clock.now)
        if self.run.states is not None:
            self.run.states.uncommitted = self.record.states
        self.steps = 0
        """Server steps in this round"""
        self.lost = 0
        """Visits of this round that did not count"""

    def resume(self, run: FederatedRun, history: History, stopped_by: str | None) -> None:
        """Replace the replayed run by the real one, with the vectors of its checkpoint. ``stopped_by``: if it ended."""
        self.stopped_by = stopped_by
        self.run, self.reorder_buffer = run, run.trainer.reorder_buffer()
        stored, clock = unpack_in_flight(history.checkpoint), clock_state(history.checkpoint)
        if stored.keys() != self.in_flight.keys() or any(
            not np.array_equal(array, clock[name]) for name, array in run.clock.state().items()
        ):
            raise RunFailed(f"round {run.rounds}: its visits in flight differ between replay and checkpoint")
        restore_server(run.server, history.checkpoint)
        run.downloads.held.restore(arrays_under(HELD, history.checkpoint))
        for client, flight in self.in_flight.items():
            start, payload = stored[client].start, stored[client].payload
            dispatch = replace(flight.visit.dispatch, payload=payload, later=None)
            flight.visit, flight.trained = replace(flight.visit, dispatch=dispatch, start=start), False
        run.server.take_logged()  # in rounds that are committed
        self._open()

    def run_visits(self) -> str:
        """Start and end visits until a stop rule ends the run; returns the rule."""
        run, limit = self.run, self.run.budget.ends_at
        while self.stopped_by is None:
            run.check_stop()
            self._start_visits()
            if not self.in_flight and self.retry_at == math.inf:
                return self._finish(SECONDS if run.clock.now >= limit else self.refused_by or CLIENTS)
            item = run.clock.next(until=limit)
            if item is None:
                run.clock.advance(limit)
                return self._finish(SECONDS)
            if item is RETRY:
                self.retry_at = math.inf
                continue
            self.stopped_by = self._end_visit(item)
        return self.stopped_by

    # --- starts of visits -----------------------------------------------------------------------------------------

    def _start_visits(self) -> None:
        """Start visits up to ``participants`` in flight; without an available client, retry when one returns."""
        run = self.run
        is_over, begun = run.clock.now >= run.budget.ends_at, list[_VisitInFlight]()
        while len(self.in_flight) < self.rules.participants and self.refused_by is None and not is_over:
            client = run.take(self.idle)
            if client is not None and not run.allows_privacy([client]):
                self.refused_by = EPSILON
                self.idle.put(client)
                break
            if client is None:
                if self.idle.next_return < self.retry_at:
                    self.retry_at = self.idle.next_return
                    run.clock.at(self.retry_at, 0, RETRY)
                break
            visit = run.prepare(client, self.version, rng_round=run.visits)
            self.refused_by = self.live.reserve(client, run.uncontended_cost(visit))
            if self.refused_by is None:
                run.visits += 1
                run.server.started(self.version, [visit.dispatch])
                self.in_flight[client] = _VisitInFlight(run.trainer.begun(visit))
                begun.append(self.in_flight[client])
        if begun and not run.pricing.is_fixed_length:
            self._train_first(begun)
        self.live.begin([flight.visit for flight in begun], run.rounds)

    def _train_first(self, begun: Sequence[_VisitInFlight]) -> None:
        """Train visits before they are timed, since the lengths of their uploads depend on numbers."""
        trained = self.run.trainer.train_first([flight.visit for flight in begun])
        for flight in begun:
            if trained is not None:
                self.reorder_buffer.add(trained.take(flight.visit.client))
                flight.trained = True
            flight.visit = self.run.pricing.sent(flight.visit, self.run.trainer.encoded(flight.visit))
        if trained is not None:
            trained.close()

    # --- ends of visits -------------------------------------------------------------------------------------------

    def _end_visit(self, ended: VisitEnded) -> str | None:
        """Use or discard a visit that ended or lost its client; returns the rule that ends the run, or None."""
        run, client = self.run, ended.order
        flight = self.in_flight.pop(client)
        visit = flight.visit
        self.idle.put(client)
        self.live.ended(client)
        if not math.isfinite(ended.timeline.up_end[0]):
            self._discard(flight)
            return self._account_wasted(flight, ended, "lost")
        kind, reply = self._update(flight)
        if kind not in TRAINED:
            return self._account_wasted(flight, ended, kind)
        if run.states is not None:  # at once: the client's next visit may begin before the commit
            if client in self.record.states:
                run.states.drop(self.record.states[client])
            self.record.states[client] = visit.state_name
        run.received(visit.round, [visit])
        run.server.observe(reply, lambda: visit.start or {})
        self.record.log_visits([reply])
        self._account(flight, ended, kind, reply.loss)
        access = run.clock.fleet.links.access
        self.record.set_critical([visit], ended.timeline.end, partial(bottleneck, ended.timeline, access))
        learned = run.server.feedback(visit.round, outcomes([visit], [reply], ended.timeline))
        self.record.method_rows += [row._replace(round=self.record.round) for row in learned]
        run.server.accumulate(self._rebase(visit, reply))
        self.arrived.append(visit.number)
        if len(self.arrived) == self.rules.updates_per_step:
            self._step()
        return self._close_round() if self.steps == self.rules.steps_per_round else None

    def _account_wasted(self, flight: _VisitInFlight, ended: VisitEnded, kind: str) -> str | None:
        """Account for a visit that does not count; returns the rule that ends the run, or None.

        A round with too many of them ends; its updates so far count, and so does the round: every run ends.
        """
        self._account(flight, ended, kind)
        self.lost += 1
        if self.lost != LOST_ROUNDS * self.rules.visits_per_round:
            return None
        if self.arrived:
            self._step()
        return self._close_round()

    def _update(self, flight: _VisitInFlight) -> tuple[str, Update]:
        """(kind, update) of a visit; validated only now, since updates of lost visits need not be valid."""
        if not flight.trained:
            untrained = [begun for begun in (flight, *self.in_flight.values()) if not begun.trained]
            self.run.trainer.submit([begun.visit for begun in untrained], self.reorder_buffer.add).wait()
            for begun in untrained:
                begun.trained = True
        kind, reply = self.run.trainer.validate(self.reorder_buffer.take(flight.visit.client), flight.visit)
        if kind not in TRAINED and self.run.states is not None:
            self.run.states.drop(flight.visit.state_name)
        return kind, reply

    def _discard(self, flight: _VisitInFlight) -> None:
        """Drop update and client state of a visit that does not count, if it was trained."""
        if flight.trained:
            self.reorder_buffer.take(flight.visit.client)
            if self.run.states is not None:
                self.run.states.drop(flight.visit.state_name)

    def _account(self, flight: _VisitInFlight, ended: VisitEnded, kind: str, loss: float | None = None) -> None:
        staleness = self.version - flight.visit.round
        added = self.live.account(self.record, flight.visit, ended, kind, staleness, loss)
        self.run.selection.history.record(added)

    def _step(self) -> None:
        """The server's step, with all updates since the last one."""
        self.run.step()
        self.arrived = []
        self.version += 1
        self.steps += 1

    def _rebase(self, visit: PlannedVisit, reply: Update) -> Update:
        """The update mixed with the current models, or its discounted change added to these (``adds_changes``).

        RunFailed names a policy that gives no factor.
        """
        if not reply.payload:  # in a replay
            return reply
        server, rules, staleness = self.run.server, self.rules, self.version - visit.round
        mixing = float(rules.asynchronous.mixing(rules, staleness))
        if not math.isfinite(mixing):
            raise RunFailed(f"rounds.policy = {rules.policy!r}: mixing is {mixing!r} at staleness {staleness}")
        variant = visit.dispatch.variant
        current = bases(server, reply, server.parts_of(server.start_model(visit.client), variant))
        before = current
        if rules.asynchronous.adds_changes:
            before = bases(server, reply, server.parts_of(visit.start or {}, variant))
        rebased = {
            slot: {
                key: Vector(now[key].data + np.float32(mixing) * (vector.data - before[slot][key].data))
                for key, vector in reply.payload.get(slot, {}).items()
            }
            for slot, now in current.items()
        }
        return structs.replace(reply, payload={**reply.payload, **rebased})

    # --- rounds of the ledger -------------------------------------------------------------------------------------

    def _close_round(self, stopped_by: str | None = None) -> str | None:
        """Evaluate and commit a round; returns the rule that ends the run with it, or None."""
        run = self.run
        run.rounds += 1
        stopped_by = stopped_by or run.budget.reached(run.rounds, None)
        evaluation: PendingEvaluation | None = None
        if self.steps:
            evaluation = run.evaluate_if_due(is_last=stopped_by is not None)
        elif stopped_by is not None:
            evaluation = run.late_evaluation()
        result = NOT_EVALUATED if evaluation is None else evaluation.wait()
        stopped_by = run.reached(run.rounds, result) or stopped_by
        if stopped_by is not None:
            self._interrupt_visits()
        visits = {
            client: InFlight(
                flight.visit.dispatch.built(),
                flight.visit.start or {},
                flight.visit.price.up if flight.visit.price.is_measured else {},
            )
            for client, flight in self.in_flight.items()
        }
        run.commit_when_evaluated(run.close_round(self.record, evaluation, stopped_by, pack_in_flight(visits)))
        self._open()
        return stopped_by

    def _finish(self, stopped_by: str) -> str:
        """End the run: visits in flight do not count, nor do updates that are too few for a step of the server."""
        if self.rules.is_cut_short(len(self.arrived), self.rules.updates_per_step):
            self.record.discard(self.arrived)
        else:
            self._step()
        if self.steps:
            self.record.cut_by = stopped_by
            return self._close_round(stopped_by) or stopped_by
        self._interrupt_visits()
        if self.record.visits or not self.run.evaluated:
            self.run.commit_when_evaluated(self.run.close_round(self.record, self.run.late_evaluation(), stopped_by))
        return stopped_by

    def _interrupt_visits(self) -> None:
        for client in sorted(self.in_flight):
            flight = self.in_flight.pop(client)
            self._account(flight, self.live.cut(client), "cut")
            self._discard(flight)
