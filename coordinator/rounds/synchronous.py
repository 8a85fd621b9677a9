"""Synchronous round policies: a cohort is drawn, its visits are timed as one batch, and those that count are trained.

``sync`` waits for every visit; ``over_select`` begins more visits than it needs and takes the first; ``deadline``
takes what is there in time. A visit that does not count is charged up to its cut and never really trained.

Clients learn that a round is over from the next model: while the server adds the updates up, those that are late go on
as they were, and pay for it. One that is done before the server is remains late.

The host does not wait where the simulated server would: while workers score a model, the next round is drawn and timed,
its visits go in behind the scoring, and the round before is committed. If the score ends the run, what was begun early
is discarded, and nobody is charged for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import VisitFeedback
from coordinator.records.round_record import RoundRecord, outcome
from coordinator.records.schema import TRAINED
from coordinator.rounds import selection
from coordinator.rounds.asynchronous import run_asynchronous
from coordinator.rounds.budget import CLIENTS, SECONDS, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.ports import PendingCommit
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import PoolError
from edge.protocol.messages import Update

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions
    from costmodel.visits.timeline import Timeline

Mask = NDArray[np.bool_]


def run_synchronous(run: FederatedRun) -> str:
    """Synchronous rounds until a rule stops the run; returns the rule."""
    ended: PendingCommit | None = None
    while True:
        following = _SynchronousRound(run, run.rounds)
        try:
            stopped_by = _finished_behind(run, following, ended)
            if stopped_by is not None:
                following.discard()
                return stopped_by
            if ended is not None:
                run.check_stop()  # whoever was told of the round may have asked for an end
            ended = following.end()
        except BaseException:
            following.discard()
            raise
        if following.stopped_by is not None:
            by_score = None if ended is None else run.commit_when_evaluated(ended)
            return by_score if by_score is not None and following.takes_place else following.stopped_by


def _finished_behind(run: FederatedRun, following: _SynchronousRound, ended: PendingCommit | None) -> str | None:
    """Open the next round, then finish the one before it; the rule that its score met."""
    try:
        following.open()
    except Exception as error:
        # What has ended is kept if it can be scored; workers that have given up are not waited for.
        if ended is not None and not isinstance(error, PoolError):
            run.commit_when_evaluated(ended)
        raise
    return None if ended is None else run.commit_when_evaluated(ended)


def run_rounds(run: FederatedRun) -> str:
    """Run rounds of the run's policy until a rule stops them, and name it."""
    return run_asynchronous(run) if run.rules.is_asynchronous else run_synchronous(run)


def accepted(
    rules: RoundPolicy, visits: Sequence[PlannedVisit], timeline: Timeline, begun: float
) -> tuple[Mask, float]:
    """(which visits count, when the round is over); a visit that ends at that very moment counts.

    Clients that only listen are not waited for where training visits need not be.
    """
    arrived = np.isfinite(timeline.up_end)
    trains = np.array([visit.kind == "train" for visit in visits])
    if rules.policy == "over_select" and (arrived & trains).sum() >= rules.participants:
        first = sorted(
            (float(timeline.up_end[i]), visits[i].client, i) for i in np.flatnonzero(arrived & trains).tolist()
        )
        chosen = [i for _, _, i in first[: rules.participants]]
        counts = np.zeros(len(visits), bool)
        counts[chosen] = True
        end = float(timeline.up_end[chosen].max())
        return counts | (~trains & (timeline.up_end <= end)), end
    end = float(timeline.end.max())
    if rules.policy != "deadline":
        return arrived, end
    end = min(end, begun + rules.deadline)
    counts = timeline.up_end <= end
    # A quotient, since 0.55 * 100 is more than 55.
    if trains.any() and (counts & trains).sum() / trains.sum() < rules.min_fraction:
        counts &= ~trains
    return counts, end


class _SynchronousRound:
    """One synchronous round: opened while the one before it may still be scored, and ended after that."""

    def __init__(self, run: FederatedRun, number: int) -> None:
        self.run = run
        self.number = number
        self.record = RoundRecord(number, run.clock.now)
        self.visits: list[PlannedVisit] = []
        self.counts: Mask = np.zeros(0, bool)
        """Which of the visits count"""
        self.awaited: Mask = np.zeros(0, bool)
        """Which of them counted before anybody had looked at their updates"""
        self.closes_at = math.inf
        """Virtual seconds at which the round is over"""
        self.training: CohortTraining | None = None
        """None where nothing is trained: the round does not take place, or the clock's budget ends in it"""
        self.stopped_by: str | None = None
        """The rule that ends the run with this round, as far as it is known before the score"""
        self.solved: dict[tuple[tuple[int, ...], float], tuple[Conditions, Timeline]] = {}
        """Of these clients and until then: what is asked for a price is asked again when it is paid"""

    def open(self) -> None:
        """Draw who takes part, see when the visits end, and have those that count trained."""
        run, limit = self.run, self.run.budget.ends_at
        run.check_stop()
        able = run.eligible(run.candidates, self.number)
        begun = run.clock.first_available(able)
        if self.record.start >= limit or limit <= begun < math.inf:
            self.stopped_by = SECONDS
        elif begun == math.inf:
            self.stopped_by = CLIENTS
        else:
            run.clock.advance(begun)
            self.visits, self.stopped_by = self._admitted(able)
            if self.visits:
                self._begin()
            else:
                self.stopped_by = self.stopped_by or CLIENTS

    def _begin(self) -> None:
        run = self.run
        _, timeline = self._timed(self.visits)
        self.counts, end = accepted(run.rules, self.visits, timeline, run.clock.now)
        self.awaited = self.counts
        self.closes_at = end + self._adding_up(self.visits, self.counts)
        if self.closes_at <= run.budget.ends_at:
            run.server.started(self.number, [visit.dispatch for visit in self.visits])
            trained = [visit for visit in self._counted if visit.kind == "train"]
            self.training = CohortTraining(run.trainer, run.server, trained)
        else:
            self.stopped_by = SECONDS

    @property
    def takes_place(self) -> bool:
        """Whether the server makes a step in it."""
        return self.training is not None

    @property
    def _counted(self) -> list[PlannedVisit]:
        return list(compress(self.visits, self.counts))

    def discard(self) -> None:
        """The run has ended before this round: what was begun of it was for nothing."""
        if self.training is not None:
            self.training.cancel()

    def end(self) -> PendingCommit | None:
        """Wait for what is trained, and make the next model; None if nothing is left to be committed."""
        if self.training is not None:
            replies = self.training.wait()
            in_vain = {client for client, kind in self.training.faulty.items() if kind not in TRAINED}
            self.counts = self.counts & np.array([visit.client not in in_vain for visit in self.visits])
            return self._stepped(replies)
        return self._cut() if self.visits else self._closed()

    # --- who takes part -------------------------------------------------------------------------------------------

    def _admitted(self, able: Sequence[int]) -> tuple[list[PlannedVisit], str | None]:
        """Visits that the budget lets start, in client order, and the rule that refused the first other one.

        What a visit spends depends on who else uses the server's link, so whoever is left is timed again.
        """
        run = self.run
        chosen = selection.sample_cohort(run.job.seed, self.number, able, run.rules.cohort, run.clock.is_there)
        visits = [run.prepare(client, self.number) for client in chosen]
        listeners = set(run.server.download_only_clients(self.number, chosen)) & set(able)
        visits += [
            run.prepare_download_only(k, self.number)
            for k in listeners
            if run.clock.is_there is None or run.clock.is_there(k)
        ]
        visits.sort(key=lambda visit: visit.client)
        refused_by: str | None = None
        while visits:
            costs = self._costs(visits)
            own = [run.budget.admits(visit.client, each) for visit, each in zip(visits, costs, strict=True)]
            if not all(own):
                # Each could pay for its visit alone, so where none can pay for one beside the others, one is left.
                visits = list(compress(visits, own)) or (visits[:1] if len(visits) > 1 else [])
                continue
            fits, rule = run.budget.reserve(costs)
            refused_by = refused_by or rule
            run.budget.release(list(compress(costs, fits)))
            if all(fits):
                break
            visits = list(compress(visits, fits))
        first, run.visits = run.visits, run.visits + len(visits)
        return [visit.numbered(first + i) for i, visit in enumerate(visits)], refused_by

    def _costs(self, visits: Sequence[PlannedVisit]) -> list[Cost]:
        conditions, timeline = self._timed(visits)
        counts, end = accepted(self.run.rules, visits, timeline, self.run.clock.now)
        end += self._adding_up(visits, counts)
        if self.run.rules.policy == "deadline":
            conditions, timeline = self._timed(visits, end)
        joules = timeline.joules_spent + self._waiting(timeline, conditions, end)
        return [
            visit.cost(float(spent), float(seconds))
            for visit, spent, seconds in zip(visits, joules, timeline.seconds(end), strict=True)
        ]

    def _timed(self, visits: Sequence[PlannedVisit], until: float = math.inf) -> tuple[Conditions, Timeline]:
        clock, clients = self.run.clock, tuple(visit.client for visit in visits)
        if (clients, until) not in self.solved:
            conditions, works = clock.conditions(clients, self.number), [visit.work for visit in visits]
            timeline = clock.solve(np.full(len(visits), clock.now), works, conditions, until)
            self.solved[clients, until] = conditions, timeline
        return self.solved[clients, until]

    def _broken_off(self, conditions: Conditions, whole: Timeline, until: float) -> tuple[Conditions, Timeline]:
        """How far visits of this timeline got by ``until``; a client that was lost at that very moment is lost."""
        if not (whole.end > until).any():
            return conditions, whole
        conditions, timeline = self._timed(self.visits, until)
        return conditions, replace(timeline, lost=np.where(whole.lost <= until, whole.lost, math.inf))

    def _adding_up(self, visits: Sequence[PlannedVisit], counts: Mask) -> float:
        """Seconds that the server needs to add the updates up."""
        nbytes = sum(visit.work.bytes_up for visit, does in zip(visits, counts, strict=True) if does)
        return nbytes / self.run.clock.fleet.links.aggregate_bytes_per_second

    @staticmethod
    def _waiting(timeline: Timeline, conditions: Conditions, end: float) -> NDArray[np.float64]:
        return timeline.waiting_joules(end, conditions) if math.isfinite(end) else np.zeros(len(timeline))

    # --- how it ends ----------------------------------------------------------------------------------------------

    def _stepped(self, replies: Sequence[Update]) -> PendingCommit:
        run, counted = self.run, self._counted
        conditions, timeline = self._broken_off(*self._timed(self.visits), self.closes_at)
        run.clock.advance(self.closes_at)
        if run.states is not None:
            stored = run.states.store_broadcast([visit for visit in counted if visit.kind == "listen"])
            stored |= {visit.client: visit.state_name for visit in counted if visit.kind == "train"}
            self.record.states = run.states.uncommitted = stored
        run.server.received(self.number, [visit.dispatch for visit in counted])
        if replies:
            run.step()
            self.record.method_rows += run.server.feedback(self.number, _outcomes(self.visits, replies, timeline))
        run.rounds += 1
        self.stopped_by = self.stopped_by or run.budget.reached(run.rounds, None)
        changed = bool(replies) or (self.stopped_by is not None and not run.evaluated)
        evaluation = run.evaluate_if_due(self.stopped_by is not None) if changed else None
        self._settle(replies, conditions, timeline)
        return run.close_round(self.record, evaluation, self.stopped_by)

    def _cut(self) -> PendingCommit:
        """The clock's budget ends in mid-round: charge what was spent by then; nothing counts, nothing is trained."""
        limit = self.run.budget.ends_at
        conditions, timeline = self._broken_off(*self._timed(self.visits), limit)
        self.run.clock.advance(limit)
        self.counts = np.zeros(len(self.visits), bool)
        self._settle([], conditions, timeline, broken_off="cut")
        return self.run.close_round(self.record, self.run.late_evaluation(), self.stopped_by)

    def _closed(self) -> PendingCommit | None:
        """No further round starts: the last model is scored if it was not, in a row without visits."""
        return (
            None
            if self.run.evaluated
            else self.run.close_round(self.record, self.run.late_evaluation(), self.stopped_by)
        )

    def _settle(
        self, replies: Sequence[Update], conditions: Conditions, timeline: Timeline, broken_off: str = "late"
    ) -> None:
        run, now, visits = self.run, self.run.clock.now, self.visits
        waiting = self._waiting(timeline, conditions, now)
        losses = {reply.client: reply.numbers["loss"] for reply in replies}
        faulty = {} if self.training is None else self.training.faulty
        for i, visit in enumerate(visits):
            unfinished = "lost" if math.isfinite(timeline.lost[i]) else broken_off
            kind = faulty.get(visit.client) or (visit.kind if self.counts[i] else unfinished)
            loss = losses.get(visit.client) if kind in TRAINED else None
            spent = self.record.add(
                visit, run.clock.fleet, timeline, i, kind, now, float(waiting[i]), loss=loss, up=run.up_shapes
            )
            run.budget.settle(visit.client, spent)
        run.clock.passed(conditions, timeline, waiting)
        # Where the first ones are enough, nobody waits for the others.
        trains = sum(visit.kind == "train" for visit in compress(self.visits, self.awaited))
        enough = run.rules.policy == "over_select" and trains == run.rules.participants
        awaited = self.awaited if enough and replies else None
        self.record.set_critical_path(
            visits, timeline, now, awaited, waited=float(timeline.start.min()) - self.record.start
        )


def _outcomes(visits: Sequence[PlannedVisit], replies: Sequence[Update], timeline: Timeline) -> list[VisitFeedback]:
    by_client = {reply.client: reply for reply in replies}
    return [
        outcome(visit, by_client[visit.client], timeline, i)
        for i, visit in enumerate(visits)
        if visit.client in by_client
    ]
