"""Synchronous round policies: a cohort is sampled, its visits are timed as one batch, and those that count are trained.

``sync`` waits for every visit; ``over_select`` starts more visits than it needs and uses those that end first;
``deadline`` uses those that end in time. A visit that does not count is charged until it is interrupted, and never
trained.

A budget that cannot pay for the whole cohort ends the run before the round, and one of virtual seconds interrupts it;
with ``rounds.min_fraction`` the rest of the cohort may still make a step, in a round that is marked as cut.

Clients learn from the next model that a round is over: late clients continue, and are charged, while the server
aggregates. A visit that ends before the aggregation does is still late.

With ``rounds.on_late = "finish"`` a message of a late visit goes on after that, beside the next rounds' messages in its
direction, until it ends or its client is selected again. With ``"complete"`` the whole visit goes on: its client is not
told, and may be selected again when it has ended. The late visit is charged until the round's end, and its rest in each
round in which it goes on, as a row of kind ``leftover``. What it may still cost stays reserved in the budgets; a rest
that they cannot pay for stops at once. Nothing of it is used. A round for which no client is there begins when one is:
when it becomes available, or when its late visit has ended.

Where evaluations are charged (``eval.charged``), an evaluation on clients costs what it takes on their devices: a
second batch of visits begins when the server has made its step, and ends the round. Each sends the client its model and
the values back, and computes the forward passes and the adaptation. Visited are the clients with examples that are
available, have power, and whose visits the budgets can pay for. The evaluation covers those whose visits end: not those
whose clients are lost, or that are cut where the run's virtual seconds end.

Where the length of an upload depends on its numbers (an entropy coder among the stages of ``codec.up``), all visits are
trained before they are timed, those that will not count as well; the clock gets the real lengths, and budgets are
reserved by bounds on them. So it is on real devices, whose times are measured.

The host does not wait where the simulated server would: while workers evaluate a model, the next round is sampled and
timed, its visits are submitted behind the evaluation, and the round before is committed. If the evaluation ends the
run, the next round is discarded and nothing of it is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.records.bottleneck import bottleneck
from coordinator.records.round_record import RoundRecord, outcomes
from coordinator.records.schema import EVALUATE, LEFTOVER, NOT_SCORED, TRAINED
from coordinator.rounds.asynchronous import run_asynchronous
from coordinator.rounds.budget import CLIENTS, SECONDS, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.policy import Mask
from coordinator.rounds.ports import PendingCommit
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.run import FederatedRun, accepted, end_of_round, solve_if_faster
from coordinator.rounds.tiered_round import TieredRound
from coordinator.rounds.visit import PlannedVisit, begins, upper_bounds
from coordinator.workers.task import PoolError
from edge.protocol.messages import Update

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions
    from costmodel.visits.leftovers import Solution
    from costmodel.visits.timeline import Timeline


def run_synchronous(run: FederatedRun) -> str:
    """Run synchronous rounds until a stop rule ends the run; returns the rule."""
    pending: PendingCommit | None = None
    while True:
        following = _SynchronousRound(run, run.rounds) if run.tiers is None else TieredRound(run, run.tiers, run.rounds)
        try:
            stopped_by = _open_and_commit(run, following, pending)
            if stopped_by is not None:
                following.discard()
                return stopped_by
            if pending is not None:
                run.check_stop()  # the user may stop the run when the round is reported
            pending = following.end()
        except BaseException:
            following.discard()
            raise
        if following.stopped_by is not None:
            by_evaluation = None if pending is None else run.commit_when_evaluated(pending)
            return by_evaluation if by_evaluation is not None and following.training else following.stopped_by


def _open_and_commit(
    run: FederatedRun, following: _SynchronousRound | TieredRound, pending: PendingCommit | None
) -> str | None:
    """Open the next round, then commit the one before it; returns the rule that ends the run, or None."""
    try:
        following.open()
    except Exception as error:
        # The round that has ended is still committed, unless the workers that evaluate it have failed, or the user has
        # stopped the run, who waits for no evaluation.
        if pending is not None and not isinstance(error, PoolError):
            run.commit_when_evaluated(pending)
        raise
    return None if pending is None else run.commit_when_evaluated(pending)


def run_rounds(run: FederatedRun) -> str:
    """Run rounds of the run's policy until a stop rule ends the run; returns the rule."""
    run.server.take_logged()  # what it has logged before the first round belongs to none
    return run_asynchronous(run) if run.rules.is_asynchronous else run_synchronous(run)


class _Solved(NamedTuple):
    """The solution of a batch under these conditions."""

    conditions: Conditions
    solution: Solution


class _SynchronousRound:
    """One synchronous round: opened while the one before it may still be evaluated, and ended after that."""

    def __init__(self, run: FederatedRun, number: int) -> None:
        self.run = run
        self.number = number
        self.record = RoundRecord(number, run.clock.now)
        self.visits: list[PlannedVisit] = []
        self.counts: Mask = np.zeros(0, bool)
        """Visits that count"""
        self.expected: Mask = np.zeros(0, bool)
        """Visits that counted before their updates were checked"""
        self.end_time = math.inf
        """Virtual seconds at which the round is over"""
        self.training: CohortTraining | None = None
        """None if nothing is trained: no visit starts, or the budget of virtual seconds ends in the round"""
        self.stopped_by: str | None = None
        """The rule that ends the run with this round, as far as it is known before the evaluation"""
        self.going_on: list[PlannedVisit] = []
        """Late visits that go on beside those of this round"""
        self.solved: dict[tuple[tuple[int, ...], tuple[int, ...], float], _Solved] = {}
        """(clients, those of visits that go on, until) -> solution of the clock, for prices and for the accounts"""

    def open(self) -> None:
        """Sample the cohort, time its visits, and submit those that count for training."""
        run, limit = self.run, self.run.budget.ends_at
        run.check_stop()
        while True:
            eligible, start = self._eligible()
            if run.clock.now >= limit or limit <= start < math.inf:
                self.stopped_by = SECONDS
                return
            if start == math.inf:
                self.stopped_by = CLIENTS
                return
            if start == run.clock.now:
                break
            self._wait(start)
        self.visits, self.stopped_by = self._admitted(eligible)
        if self.visits:
            self._submit()
        else:
            self.stopped_by = self.stopped_by or CLIENTS

    def _eligible(self) -> tuple[list[int], float]:
        """(clients that may be selected, the time at which one of them, or another by then, is there)."""
        run, clock = self.run, self.run.clock
        eligible = run.eligible(run.candidates, self.number)
        if run.rules.on_late != "complete" or clock.leftovers is None:
            return eligible, clock.first_available(eligible)
        busy = set(clock.leftovers.clients)
        free = [client for client in eligible if client not in busy]
        start = clock.first_available(free)
        if start > clock.now:
            rests = clock.solve_beside(clock.leftovers, [], [], clock.conditions([], self.number)).leftovers
            assert rests is not None
            ends = dict(zip(clock.leftovers.clients, rests.end.tolist(), strict=True))
            start = min([start, *(clock.first_available([client], ends[client]) for client in busy & set(eligible))])
        return free, start

    def _wait(self, until: float) -> None:
        """Let late visits go on until clients are there, and account for them."""
        run = self.run
        if run.clock.leftovers is not None:
            planned = [run.prepare_leftover(client) for client in run.clock.leftovers.clients]

            def costs(visits: Sequence[PlannedVisit]) -> list[Cost]:
                rests = self._solved([], visits, until).solution.leftovers
                return [] if rests is None else upper_bounds(visits, rests.joules_spent, rests.seconds(until))

            affordable, _ = run.within_budgets(planned, costs, needed=list)
            self.going_on = run.numbered(affordable)
            solved = self._interrupted(until)
            run.clock.advance(until)
            self._account_leftovers(solved)
            self.going_on = []
            self.solved.clear()
        else:
            run.clock.advance(until)

    def _submit(self) -> None:
        run = self.run
        received = self._train_first() if run.trains_first else None
        solved, self.counts, end = self._outcome(self.visits, self.going_on)
        timeline = solved.solution.timeline
        self.end_time = end + self._aggregation_seconds(self.visits, self.counts)
        if self.end_time > run.budget.ends_at:
            self.stopped_by = self.record.cut_by = SECONDS
            run.budget.lacks(SECONDS, len(self.visits), self.end_time)
            in_time = self.counts & (timeline.up_end + (self.end_time - end) <= run.budget.ends_at)
            if run.rules.is_cut_short(_trained(self.visits, in_time), _trained(self.visits, self.counts)):
                if received is not None:
                    self._discard_trained(self.visits, received)
                return
            self.counts, self.end_time = in_time, run.budget.ends_at
        self.expected = self.counts
        run.server.started(self.number, [visit.dispatch for visit in self.visits])
        trained = [visit for visit in compress(self.visits, self.counts) if visit.kind == "train"]
        if received is not None:
            self._discard_trained(compress(self.visits, ~self.counts))
        self.training = CohortTraining(run.trainer, run.server, trained, received)

    def _discard_trained(self, visits: Iterable[PlannedVisit], received: ReorderBuffer | None = None) -> None:
        """Drop the client states of visits that were trained and do not count, and ``received`` if none does."""
        if self.run.states is not None:
            for visit in visits:
                self.run.states.drop(visit.state_name)
        if received is not None:
            received.close()

    def _train_first(self) -> ReorderBuffer | None:
        """Train all visits before they are timed (`FederatedRun.trains_first`).

        Returns the updates, if there are any. Budgets have reserved the bounds of these lengths.
        """
        run = self.run
        received = run.trainer.train_first([visit for visit in self.visits if visit.kind == "train"])
        self.visits = [
            visit if visit.kind != "train" else run.pricing.sent(visit, run.trainer.encoded(visit))
            for visit in self.visits
        ]
        self.solved.clear()
        return received

    def discard(self) -> None:
        """Cancel the training of a round that is not needed, since the run has ended."""
        if self.training is not None:
            self.training.cancel()

    def end(self) -> PendingCommit | None:
        """Wait for the training and make the next model; None if there is nothing to commit."""
        run = self.run
        if self.training is not None:
            replies = self.training.wait()
            rejected = {client for client, kind in self.training.faulty.items() if kind not in TRAINED}
            self.counts = self.counts & np.array([visit.client not in rejected for visit in self.visits])
            return self._finish(replies)
        if self.visits:  # the budget of virtual seconds ends: visits are charged until then, and do not count
            solved = self._interrupted(run.budget.ends_at)
            run.clock.advance(run.budget.ends_at)
            self.counts = np.zeros(len(self.visits), bool)
            self._account([], solved, interrupted="cut")
        elif run.evaluated:
            return None
        # The last model is evaluated if it was not, perhaps in a row without visits.
        return run.close_round(self.record, run.late_evaluation(self._visit_for_evaluation), self.stopped_by)

    # --- cohort and costs -----------------------------------------------------------------------------------------

    def _admitted(self, eligible: Sequence[int]) -> tuple[list[PlannedVisit], str | None]:
        """Visits within the budgets, in client order, and the rule that refused the first of the others, if any.

        No visits if budgets leave too few of those that would have counted (``rounds.min_fraction``).
        """
        run = self.run
        cohort = run.select(eligible)
        visits = [run.prepare(client, self.number) for client in cohort]
        download_only = set(run.server.download_only_clients(self.number, cohort)) & set(eligible)
        visits += [
            run.prepare_download_only(client, self.number)
            for client in download_only
            if run.clock.is_there is None or run.clock.is_there(client)
        ]
        selected, going_on = {visit.client for visit in visits}, run.clock.leftovers
        leftovers = [  # a selected client is told that its message is of no use any more
            run.prepare_leftover(client)
            for client in (() if going_on is None else going_on.clients)
            if client not in selected
        ]
        planned = leftovers + sorted(visits, key=lambda visit: visit.client)
        affordable, refused_by = run.within_budgets(planned, self._costs)
        kept_out = run.kept_out(cohort)
        if kept_out or len(begins(affordable)) < len(begins(planned)):
            foreseen, counted = self._trained_of(planned) + kept_out, self._trained_of(affordable)
            if counted < foreseen:
                if run.rules.is_cut_short(counted, foreseen):
                    return [], refused_by
                self.record.cut_by = refused_by or CLIENTS
        affordable = run.numbered(affordable)
        self.going_on = _leftovers_of(affordable)
        return begins(affordable), refused_by

    def _trained_of(self, planned: Sequence[PlannedVisit]) -> int:
        """Training visits that would count if these visits began."""
        visits = begins(planned)
        return _trained(visits, self._outcome(visits, _leftovers_of(planned))[1]) if visits else 0

    def _outcome(self, visits: Sequence[PlannedVisit], going_on: Sequence[PlannedVisit]) -> tuple[_Solved, Mask, float]:
        """The solution of these visits if none is interrupted, which of them count, and when the round would end."""
        solved = self._solved(visits, going_on)
        run, timeline = self.run, solved.solution.timeline
        return solved, *accepted(run.rules, run.selection.history, visits, timeline, run.clock.now)

    def _costs(self, planned: Sequence[PlannedVisit]) -> list[Cost]:
        visits, going_on = begins(planned), _leftovers_of(planned)
        (conditions, solution), counts, end = self._outcome(visits, going_on)
        end += self._aggregation_seconds(visits, counts)
        if self.run.rules.synchronous.interrupts:
            conditions, solution = self._solved(visits, going_on, end)
        timeline, rests = solution.timeline, solution.leftovers
        joules = timeline.joules_spent + self._waiting_joules(timeline, conditions, end)
        costs = [] if rests is None else upper_bounds(going_on, rests.joules_spent, rests.seconds(end))
        return costs + upper_bounds(visits, joules, timeline.seconds(end))

    def _solved(
        self, visits: Sequence[PlannedVisit], going_on: Sequence[PlannedVisit], until: float = math.inf
    ) -> _Solved:
        clock, clients = self.run.clock, tuple(visit.client for visit in visits)
        key = clients, tuple(visit.client for visit in going_on), until
        if key not in self.solved:
            conditions, works = clock.conditions(clients, self.number), [visit.work for visit in visits]
            conditions = clock.fleet.of_parts(conditions, [visit.price.rates for visit in visits])
            leftovers = None if clock.leftovers is None or not going_on else clock.leftovers.of(key[1])
            goes_on = self.run.rules.on_late != "stop" and until < math.inf
            solution = clock.solve_beside(leftovers, np.full(len(visits), clock.now), works, conditions, until, goes_on)
            self.solved[key] = _Solved(conditions, solution)
        return self.solved[key]

    def _interrupted(self, until: float) -> _Solved:
        """The solution with visits interrupted at ``until``; a client that is lost exactly then is lost."""
        solved = self._solved(self.visits, self.going_on)
        whole = solved.solution
        if not (whole.timeline.end > until).any() and (
            whole.leftovers is None or not (whole.leftovers.end > until).any()
        ):
            return solved

        def with_losses(timeline: Timeline, of_whole: Timeline) -> Timeline:
            return replace(timeline, lost=np.where(of_whole.lost <= until, of_whole.lost, math.inf))

        solved = self._solved(self.visits, self.going_on, until)
        solution = replace(solved.solution, timeline=with_losses(solved.solution.timeline, whole.timeline))
        if whole.leftovers is not None and solution.leftovers is not None:
            solution = replace(solution, leftovers=with_losses(solution.leftovers, whole.leftovers))
        return solved._replace(solution=solution)

    def _aggregation_seconds(self, visits: Sequence[PlannedVisit], counts: Mask) -> float:
        """Virtual seconds that the server needs to handle the updates of ``visits`` that count."""
        links, nbytes = self.run.clock.fleet.links, sum(visit.work.bytes_up for visit in compress(visits, counts))
        return nbytes / links.aggregate_bytes_per_second + links.seconds_per_visit * int(counts.sum())

    @staticmethod
    def _waiting_joules(timeline: Timeline, conditions: Conditions, end: float) -> NDArray[np.float64]:
        return timeline.waiting_joules(end, conditions) if math.isfinite(end) else np.zeros(len(timeline))

    # --- the end of the round -------------------------------------------------------------------------------------

    def _finish(self, replies: Sequence[Update]) -> PendingCommit:
        """Step with the updates of the visits that count, and account for all visits."""
        run, counted = self.run, list(compress(self.visits, self.counts))
        solved = self._interrupted(self.end_time)
        run.clock.advance(self.end_time)
        if run.states is not None:
            states = run.states.store_broadcast([visit for visit in counted if visit.kind == "listen"])
            states |= {visit.client: visit.state_name for visit in counted if visit.kind == "train"}
            self.record.states = run.states.uncommitted = states
        run.received(self.number, counted)
        self.record.log_visits(replies)
        if run.levels is not None and replies:
            weights = run.server.aggregation_weights([reply.client for reply in replies])
            losses = {reply.client: loss for reply in replies if (loss := reply.loss) is not None}
            run.levels.learn(losses, weights)
        if replies:
            run.step()
            self.record.method_rows += run.server.feedback(
                self.number, outcomes(self.visits, replies, solved.solution.timeline)
            )
        run.rounds += 1
        self.stopped_by = self.stopped_by or run.budget.reached(run.rounds, None)
        changed = bool(replies) or (self.stopped_by is not None and not run.evaluated)
        self._account(replies, solved, interrupted="cut" if self.record.cut_by == SECONDS else "late")
        evaluation = run.evaluate_if_due(self.stopped_by is not None, self._visit_for_evaluation) if changed else None
        return run.close_round(self.record, evaluation, self.stopped_by)

    def _visit_for_evaluation(self) -> list[int] | None:
        return visit_for_evaluation(self.run, self.record)

    def _account(self, replies: Sequence[Update], solved: _Solved, interrupted: str = "late") -> None:
        """Record and charge all visits. ``interrupted``: kind of the visits that did not end in the round."""
        run, now, visits = self.run, self.run.clock.now, self.visits
        conditions, timeline = solved.conditions, solved.solution.timeline
        waiting = self._waiting_joules(timeline, conditions, now)
        losses = {reply.client: reply.loss for reply in replies}
        faulty = {} if self.training is None else self.training.faulty
        kinds = [
            faulty.get(visit.client) or (visit.kind if counts else "lost" if is_lost else interrupted)
            for visit, counts, is_lost in zip(visits, self.counts, np.isfinite(timeline.lost), strict=True)
        ]
        reported = [losses.get(visit.client) for visit in visits]
        known = None if run.clock.is_measured else conditions
        added = self.record.add(
            visits, run.clock.fleet, timeline, kinds, now, waiting, losses=reported, conditions=known
        )
        run.charge(added)
        run.clock.passed(conditions, timeline, waiting)
        if run.rules.on_late != "stop":
            self._account_leftovers(solved)
        waited_for_all = run.rules.synchronous.waits_for_all(run.rules, _trained(visits, self.expected))
        expected = self.expected if replies and not waited_for_all else None
        ends, name = np.minimum(timeline.end, now), self._bottleneck()
        ends = ends if expected is None else np.where(expected, ends, -math.inf)
        self.record.set_critical(visits, ends, partial(str, name))

    def _bottleneck(self) -> str:
        run, visits = self.run, self.visits
        conditions, solution = self._solved(visits, self.going_on)
        whole, start = solution.timeline, float(solution.timeline.start.min())
        end_of = end_of_round(run.rules, run.selection.history, visits, whole, start)
        handling, access = self._aggregation_seconds(visits, self.counts), run.clock.fleet.links.access
        alone = solution.leftovers is None
        solve = solve_if_faster(run.clock, start, visits, conditions) if alone else None
        return bottleneck(whole, access, end_of, solve, waited=start - self.record.start, handling=handling)

    def _account_leftovers(self, solved: _Solved) -> None:
        """Record and charge what late visits that went on did until now; those that have not ended go on."""
        run, now, timeline = self.run, self.run.clock.now, solved.solution.leftovers
        if timeline is not None:
            flowed = timeline.seconds(now) > 0
            visits = list(compress(self.going_on, flowed))
            kinds = [LEFTOVER] * len(visits)
            run.charge(self.record.add(visits, run.clock.fleet, timeline.only(flowed), kinds, now))
        run.clock.leave(solved.solution, messages_alone=run.rules.on_late == "finish")


def _leftovers_of(planned: Sequence[PlannedVisit]) -> list[PlannedVisit]:
    """The late visits that go on among what is planned; the others of it begin (`begins`)."""
    return [visit for visit in planned if visit.kind == LEFTOVER]


def _trained(visits: Sequence[PlannedVisit], counts: Mask) -> int:
    """Training visits among those that count."""
    return sum(visit.kind == "train" for visit in compress(visits, counts))


def visit_for_evaluation(run: FederatedRun, record: RoundRecord) -> list[int] | None:
    """Visit clients for an evaluation that begins now, and advance the clock to its end.

    Returns the clients that are evaluated, in ascending order; None: all, since evaluations are not charged.
    """
    if run.charged_examples is None:
        return None
    clock, ends_at = run.clock, run.budget.ends_at

    def timed(visits: Sequence[PlannedVisit]) -> tuple[Conditions, Timeline, float]:
        """(conditions, timeline, end) of these visits, beside each other."""
        clients, works = [visit.client for visit in visits], [visit.work for visit in visits]
        conditions = clock.conditions(clients, record.round, is_second=True)
        conditions = clock.fleet.of_parts(conditions, [visit.price.rates for visit in visits])
        timeline = clock.solve(np.full(len(visits), clock.now), works, conditions, ends_at)
        return conditions, timeline, min(float(timeline.end.max()), ends_at)

    def costs(visits: Sequence[PlannedVisit]) -> list[Cost]:
        conditions, timeline, end = timed(visits)
        joules = timeline.joules_spent + timeline.waiting_joules(end, conditions)
        return upper_bounds(visits, joules, timeline.seconds(end))

    planned = [
        run.prepare_evaluation(client)
        for client in np.flatnonzero(run.charged_examples).tolist()
        if clock.now < ends_at and clock.has_power(client) and (clock.is_there is None or clock.is_there(client))
    ]
    affordable, _ = run.within_budgets(planned, costs)
    visits = run.numbered(affordable)
    if not visits:
        return []
    conditions, timeline, end = timed(visits)
    ended = np.isfinite(timeline.up_end)
    clock.advance(end)
    waiting = timeline.waiting_joules(clock.now, conditions)
    kinds = [EVALUATE if is_scored else NOT_SCORED for is_scored in ended.tolist()]
    known = None if clock.is_measured else conditions
    run.charge(record.add(visits, clock.fleet, timeline, kinds, clock.now, waiting, conditions=known))
    clock.passed(conditions, timeline, waiting)
    return [visit.client for visit in compress(visits, ended)]
