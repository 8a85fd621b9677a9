"""Rounds of a run with tiers: each aggregator has rounds of its own, and meets what is above it in intervals.

A round is one step of every aggregator that takes part: its visits begin when it is ready, go over its own network
(`fleet.tiers`), and its step waits for its own clients alone, as the round policy says. In the ledger the k-th rounds
of all aggregators are one round, which ends when the last of them does; so it may begin, with its first visit, before
the round before it has ended. After ``tiers.interval`` rounds the aggregators send their models up (HierFAVG's kappa_2;
with a tier above them, this meets the server after as many meetings as the second number says). The server makes its
step when the last model has come, which ends the round. Its model goes down when the next round begins, to the
aggregators that take part until they meet again; so the initial model does before the first.

A round that would end after the budget of virtual seconds is charged until then, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.tiers import TieredServer, by_aggregator
from coordinator.records.bottleneck import bottleneck
from coordinator.records.round_record import RoundRecord, outcomes
from coordinator.records.schema import LAN, SERVER_LINK, TRAINED, WAN
from coordinator.rounds.budget import CLIENTS, SECONDS, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.policy import Mask
from coordinator.rounds.ports import PendingCommit
from coordinator.rounds.run import FederatedRun, accepted, end_of_round, solve_if_faster
from coordinator.rounds.tiers import TIERS, UP_SIDE, RoundEnd, Tiers
from coordinator.rounds.visit import PlannedVisit, upper_bounds
from costmodel.fleet.availability import first_available
from edge.protocol.messages import Update

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions
    from costmodel.visits.timeline import Timeline


@dataclass
class _Group:
    """The visits of one aggregator in a round."""

    visits: list[PlannedVisit]
    conditions: Conditions
    timeline: Timeline
    counts: Mask
    """Those that count"""
    start: float
    end: float
    """When the aggregator has made its step, or its visits were cut"""
    bottleneck: Callable[[Mapping[str, float]], str]
    """Its bottleneck, beside the seconds that each cause would save in messages above it (`bottleneck`)"""
    interrupted: str = "late"
    """Kind of visits that do not count: ``late`` or ``cut``"""

    def among(self, replies: Sequence[Update]) -> list[Update]:
        """Those of the replies that are of these visits."""
        clients = {visit.client for visit in self.visits}
        return [reply for reply in replies if reply.client in clients]


class TieredRound:
    """One round of a run with tiers; as `coordinator.rounds.synchronous.run_synchronous` drives rounds."""

    def __init__(self, run: FederatedRun, tiers: Tiers, number: int) -> None:
        self.run, self.tiers, self.number = run, tiers, number
        self.record = RoundRecord(number, run.clock.now)
        self.groups: dict[int, _Group] = {}
        """By aggregator"""
        self.after = RoundEnd(math.inf)
        """What follows the steps of the aggregators"""
        self.is_played = False
        """Whether it makes steps: the run does not end before it, nor within it"""
        self.stopped_by: str | None = None
        self.training: list[CohortTraining] = []
        """Those that have begun: one for all visits, or of partial sums one for each aggregator"""
        self._untrained: list[list[PlannedVisit]] = []
        self._solved: dict[tuple[int, float, tuple[int, ...]], _Group] = {}
        """(aggregator, its beginning, clients) -> their visits on the clock, which budgets and the round look at"""

    # --- before training ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Send models down, sample the cohort, time all visits and messages, and submit what counts for training."""
        run, tiers = self.run, self.tiers
        run.check_stop()
        if run.clock.now >= run.budget.ends_at:
            self.stopped_by = SECONDS
            return
        self.stopped_by = tiers.open(self.record, run.clock.now)
        if self.stopped_by is not None:
            return
        visits = self._admitted()
        if not visits and self.stopped_by is not None:
            return
        self.groups = self._groups(visits)
        self.record.start = min([self.record.start, *(group.start for group in self.groups.values())])
        limit, ends = run.budget.ends_at, {index: group.end for index, group in self.groups.items()}
        if tiers.schedule.is_asynchronous:  # the others go on until the run's end
            for index, group in self.groups.items():
                if group.end > limit:
                    self._cut(group, limit)
                    ends[index], self.record.cut_by = math.inf, SECONDS
        tiers.note_updates(index for index, group in self.groups.items() if group.counts.any())
        self.after = tiers.make_steps(self.record, ends, self._beginning)
        if self.after.time > limit:
            self.stopped_by = self.record.cut_by = SECONDS
            return
        self.is_played = True
        run.server.started(self.number, [visit.dispatch for visit in visits])
        trained = [
            [visit for visit in compress(group.visits, group.counts) if visit.kind == "train"]
            for group in self.groups.values()
        ]
        # A worker has one sum at a time.
        is_partial = run.server.setup.sum == "fixed_point" and trained
        self._untrained = trained if is_partial else [list(chain.from_iterable(trained))]
        self._train_next()

    def _train_next(self) -> CohortTraining:
        self.training.append(CohortTraining(self.run.trainer, self.run.server, self._untrained.pop(0)))
        return self.training[-1]

    def _admitted(self) -> list[PlannedVisit]:
        """The visits within the budgets, in client order; none if nobody can take part, which may end the run."""
        run, number, tiers = self.run, self.number, self.tiers
        while True:
            tiers.locate()
            if isinstance(run.server, TieredServer):  # a replay has no vectors
                run.server.aggregator_of = np.where(tiers.aggregator_of < 0, tiers.home, tiers.aggregator_of)
            eligible = [client for client in run.eligible(run.candidates, number) if self._start(client) < math.inf]
            is_there = self._is_there
            if not eligible:
                if tiers.give_up():
                    continue
                self.stopped_by = None if tiers.is_awaited else tiers.ended_by()
                return []
            if is_there is None or any(map(is_there, eligible)):
                break
            self._wait(eligible)
        cohort = run.select(eligible, is_there)
        visits = [run.prepare(client, number) for client in cohort]
        download_only = set(run.server.download_only_clients(number, cohort)) & set(eligible)
        visits += [
            run.prepare_download_only(client, number)
            for client in sorted(download_only)
            if is_there is None or is_there(client)
        ]
        planned = sorted(visits, key=lambda visit: visit.client)
        affordable, refused_by = run.within_budgets(planned, self._costs)
        kept_out = 0
        if run.budget.limits_clients:
            kept_out = run.kept_out(cohort, [each for each in run.candidates if self._start(each) < math.inf])
        self.stopped_by = refused_by
        foreseen, counted = len(cohort) + kept_out, sum(visit.kind == "train" for visit in affordable)
        if counted < foreseen:
            if run.rules.is_cut_short(counted, foreseen):
                self.stopped_by = refused_by or CLIENTS
                return []
            self.record.cut_by = refused_by or CLIENTS
        return run.numbered(affordable)

    def _start(self, client: int) -> float:
        """When a visit of the client would begin; inf where its aggregator takes no part."""
        index = self.tiers.aggregator_of[client]
        return float(self.tiers.ready[index]) if index >= 0 and self.tiers.begins[index] else math.inf

    @property
    def _is_there(self) -> Callable[[int], bool] | None:
        """A test whether a client is there when its visit would begin; None where all always are."""
        clock = self.run.clock
        if clock.is_there is None:
            return None
        availability = clock.fleet.behaviour.availability
        return lambda client: availability.interval(client, self._start(client))[0]

    def _beginning(self, aggregator: int, time: float) -> float:
        """When a round of an aggregator begins that is ready at ``time``: when one of its clients is there."""
        clock, own = self.run.clock, self.tiers.clients.get(aggregator, [])
        if clock.is_there is None or time == math.inf:
            return time
        return first_available(clock.fleet.behaviour.availability, own, time)

    def _wait(self, eligible: Sequence[int]) -> None:
        """Let aggregators without a client wait until one of theirs is there."""
        availability = self.run.clock.fleet.behaviour.availability
        for index, own in by_aggregator(self.tiers.aggregator_of, eligible).items():
            self.tiers.ready[index] = first_available(availability, own, float(self.tiers.ready[index]))

    def _groups(self, visits: Sequence[PlannedVisit]) -> dict[int, _Group]:
        by_client = {visit.client: visit for visit in visits}
        groups = by_aggregator(self.tiers.aggregator_of, list(by_client))
        return {index: self._group(index, [by_client[client] for client in own]) for index, own in groups.items()}

    def _group(self, index: int, visits: list[PlannedVisit]) -> _Group:
        """The visits of one aggregator on the clock; no others share its network."""
        start = float(self.tiers.ready[index])
        key = index, start, tuple(visit.client for visit in visits)
        if key not in self._solved:
            self._solved[key] = self._timed(index, start, visits)
        return replace(self._solved[key], visits=visits)

    def _timed(self, index: int, start: float, visits: list[PlannedVisit]) -> _Group:
        run = self.run
        conditions = run.clock.conditions([visit.client for visit in visits], self.number)
        conditions = replace(conditions, access_link=np.full(len(visits), index))
        starts, works = np.full(len(visits), start), [visit.work for visit in visits]
        timeline = run.clock.solve(starts, works, conditions)
        # Of what the policy wants of a cohort, the share of these visits.
        share = len(visits) * run.rules.participants / run.rules.cohort
        rules = replace(run.rules, participants=max(1, math.floor(share + 1e-9)))
        counts, end = accepted(rules, self.run.selection.history, visits, timeline, start)
        links, nbytes = run.clock.fleet.links, sum(visit.work.bytes_up for visit in compress(visits, counts))
        handling = nbytes / links.aggregate_bytes_per_second + links.seconds_per_visit * int(counts.sum())
        end += handling
        whole, end_of = timeline, end_of_round(rules, self.run.selection.history, visits, timeline, start)
        if (timeline.end > end).any():  # late visits are told that the round is over
            timeline = run.clock.solve(starts, works, conditions, end)

        def slowest(above: Mapping[str, float]) -> str:
            solve = solve_if_faster(run.clock, start, visits, conditions)
            return bottleneck(whole, links.access, end_of, solve, handling=handling, above=above)

        return _Group(visits, conditions, timeline, counts, start, end, slowest)

    def _cut(self, group: _Group, at: float) -> None:
        """Cut the visits of an aggregator when the run ends, before its step."""
        group.end, group.counts = max(min(group.end, at), group.start), np.zeros(len(group.visits), bool)
        starts, works = np.full(len(group.visits), group.start), [visit.work for visit in group.visits]
        group.timeline = self.run.clock.solve(starts, works, group.conditions, group.end)
        group.interrupted = "cut"

    def _costs(self, visits: Sequence[PlannedVisit]) -> list[Cost]:
        costs: dict[int, Cost] = {}
        for group in self._groups(visits).values():
            timeline = group.timeline
            joules = timeline.joules_spent + timeline.waiting_joules(group.end, group.conditions)
            bounds = upper_bounds(group.visits, joules, timeline.seconds(group.end))
            costs |= {visit.client: cost for visit, cost in zip(group.visits, bounds, strict=True)}
        return [costs[visit.client] for visit in visits]

    def discard(self) -> None:
        """Cancel the training of a round that is not needed, since the run has ended."""
        for training in self.training:
            training.cancel()

    # --- the end of the round -----------------------------------------------------------------------------------------

    def end(self) -> PendingCommit | None:
        """Wait for the training and make the next models; None if there is nothing to commit."""
        run = self.run
        if not self.is_played:
            if self.groups:
                run.clock.advance(run.budget.ends_at)
                for group in self.groups.values():
                    self._cut(group, run.budget.ends_at)
                self._account([])
            elif run.evaluated:
                return None
            return run.close_round(self.record, run.late_evaluation(), self.stopped_by, self._state())
        replies = self.training[0].wait()
        while self._untrained:
            replies += self._train_next().wait()
        replies.sort(key=lambda reply: reply.client)
        rejected = {client for client, kind in self._faulty.items() if kind not in TRAINED}
        for group in self.groups.values():
            group.counts = group.counts & np.array([visit.client not in rejected for visit in group.visits])
        run.clock.advance(max(self.after.time, run.clock.now))
        self._keep_states()
        counted = [visit for group in self.groups.values() for visit in compress(group.visits, group.counts)]
        run.received(self.number, sorted(counted, key=lambda visit: visit.client))
        self.record.log_visits(replies)
        if replies or self.after.meetings:
            run.step(self._meet)
        self.record.meets = bool(self.after.meetings)
        if replies:
            learned = [
                each
                for group in self.groups.values()
                for each in outcomes(group.visits, group.among(replies), group.timeline)
            ]
            self.record.method_rows += run.server.feedback(self.number, learned)
        run.rounds += 1
        self.stopped_by = self.stopped_by or run.budget.reached(run.rounds, None)
        self._account(replies)
        # The server's model may become new in rounds in which no evaluation is due.
        is_new = self.after.is_new or (self.tiers.schedule.is_asynchronous and not run.evaluated)
        is_due = is_new or self.tiers.evaluates_between or self.stopped_by is not None
        evaluation = run.evaluate_if_due(self.stopped_by is not None) if is_due else None
        return run.close_round(self.record, evaluation, self.stopped_by, self._state())

    def _meet(self) -> None:
        if isinstance(self.run.server, TieredServer):  # a replay has no vectors
            for meeting in self.after.meetings:
                meeting(self.run.server)

    def _state(self) -> dict[str, NDArray[np.generic]]:
        return {f"{TIERS}{name}": np.array(array) for name, array in self.tiers.state().items()}

    def _keep_states(self) -> None:
        run = self.run
        if run.states is None:
            return
        counted = [visit for group in self.groups.values() for visit in compress(group.visits, group.counts)]
        states = run.states.store_broadcast([visit for visit in counted if visit.kind == "listen"])
        states |= {visit.client: visit.state_name for visit in counted if visit.kind == "train"}
        self.record.states = run.states.uncommitted = dict(sorted(states.items()))

    def _last(self) -> int | None:
        """The aggregator that the round waited for last; None without any."""
        ends = {index: group.end for index, group in self.groups.items()}
        for row in self.record.aggregators:
            if row.tier == 0 and row.direction == UP_SIDE and row.aggregator in ends:
                ends[row.aggregator] = row.end_s or ends[row.aggregator]
        return max(ends, key=lambda index: ends[index], default=None)

    @property
    def _faulty(self) -> dict[int, str]:
        """client -> kind of its visit, if its update failed a check"""
        return {client: kind for training in self.training for client, kind in training.faulty.items()}

    def _account(self, replies: Sequence[Update]) -> None:
        """Record and charge all visits."""
        run, faulty, last = self.run, self._faulty, self._last()
        losses = {reply.client: reply.loss for reply in replies}
        for index, group in self.groups.items():
            timeline, end = group.timeline, group.end
            waiting = timeline.waiting_joules(end, group.conditions)
            kinds = [
                faulty.get(visit.client) or (visit.kind if counts else "lost" if is_lost else group.interrupted)
                for visit, counts, is_lost in zip(group.visits, group.counts, np.isfinite(timeline.lost), strict=True)
            ]
            reported = [losses.get(visit.client) for visit in group.visits]
            added = self.record.add(
                *(group.visits, run.clock.fleet, timeline, kinds, end, waiting),
                losses=reported,
                conditions=group.conditions,
            )
            run.charge(added)
            run.clock.passed(group.conditions, timeline, waiting)
            if index == last:
                # Of the last aggregator's visits alone: others may have to be faster as well, if they end soon before.
                name = group.bottleneck(self._saved_above(index))
                self.record.set_critical(group.visits, timeline.end, partial(str, name))

    def _saved_above(self, index: int) -> dict[str, float]:
        """Bottleneck -> seconds that the messages above an aggregator would save if it were twice as fast."""
        saved = dict.fromkeys((WAN, SERVER_LINK, LAN), 0.0)
        for row in self.record.aggregators:
            if row.end_s and self.tiers.is_on_way(index, row):
                saved[WAN] += (row.end_s - row.start_s - row.held_s) / 2
                above = SERVER_LINK if row.tier == self.tiers.clock.levels - 1 else LAN
                saved[above] += min(row.held_s / 2, row.shared_s)
        return saved
