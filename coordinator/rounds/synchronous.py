"""Synchronous round policies: a cohort is sampled, its visits are timed, and those that count are trained.

A round is one group of visits at each station that takes part (`coordinator.rounds.group`): at the server, or at the
aggregators (`coordinator.rounds.tiers`), where its own visits are timed as one batch. What follows is true of each.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, compress

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.tiers import TieredServer
from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import LEFTOVER, TRAINED
from coordinator.rounds.asynchronous import run_asynchronous
from coordinator.rounds.budget import CLIENTS, EPSILON, SECONDS, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.group import EvaluationGroup, Group
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.ports import PendingCommit
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.secure_group import SecureGroup
from coordinator.rounds.stations import RoundEnd
from coordinator.rounds.tiers import TIERS, UP_SIDE
from coordinator.rounds.visit import PlannedVisit, begins
from coordinator.workers.task import PoolError
from edge.protocol.messages import Update

Split = dict[int, tuple[list[PlannedVisit], list[PlannedVisit]]]
"""Station -> (visits that begin, late visits that go on)"""
GroupVisits = tuple[Group, list[PlannedVisit], list[PlannedVisit]]
"""(group, visits that begin in it, late visits that go on)"""


def run_synchronous(run: FederatedRun) -> str:
    """Run synchronous rounds until a stop rule ends the run; returns the rule."""
    pending: PendingCommit | None = None
    while True:
        following = Round(run, run.rounds)
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


def _open_and_commit(run: FederatedRun, following: Round, pending: PendingCommit | None) -> str | None:
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


class Round:
    """One synchronous round: opened while the one before it may still be evaluated, and ended after that."""

    def __init__(self, run: FederatedRun, number: int) -> None:
        self.run, self.stations, self.number = run, run.stations, number
        self.record = RoundRecord(number, run.clock.now)
        self.groups: dict[int, Group] = {}
        """Station -> its visits"""
        self.after = RoundEnd(math.inf)
        """What follows the steps of the stations"""
        self.is_played = False
        """Whether it makes steps: the run does not end before it, nor within it"""
        self.stopped_by: str | None = None
        """The rule that ends the run with this round, as far as it is known before the evaluation"""
        self.training: list[CohortTraining] = []
        """Those that have begun: one for all visits, or of partial sums one for each station"""
        self._untrained: list[list[PlannedVisit]] = []
        self._tried: dict[tuple[int, float], Group] = {}
        """(station, start) -> its group, as far as it is known"""
        self._waits_since: dict[int, float] = {}
        """Station that waits for clients -> absolute seconds at which it was ready"""
        self._station_of_rest: dict[int, int] = {}
        """Client -> the station to which its late visit goes on"""

    # --- before training ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Sample the cohort, time its visits and the messages of stations, and submit what counts for training."""
        run, stations, limit = self.run, self.stations, self.run.budget.ends_at
        run.check_stop()
        if run.clock.now >= limit:
            self.stopped_by = SECONDS
            return
        self.stopped_by = stations.open(self.record, run.clock.now)
        if self.stopped_by is not None:
            return
        planned = self._admitted()
        if not planned and self.stopped_by is not None:
            return
        received = None
        if run.trains_first:
            received, planned = self._train_first(planned)
        for group, visits, going_on in self._groups_of(planned):
            group.begin(visits, going_on)
            self.groups[group.station] = group
        self.record.start = min([self.record.start, *(group.start for group in self.groups.values())])
        ends = {station: group.end for station, group in self.groups.items()}
        if stations.is_asynchronous:  # the others go on until the run's end
            for station, group in self.groups.items():
                if group.end > limit:
                    group.cut(limit)
                    ends[station], self.record.cut_by = math.inf, SECONDS
        stations.note_updates(station for station, group in self.groups.items() if group.counts.any())
        self.after = stations.make_steps(self.record, ends)
        self.is_played = self.after.time <= limit or self._is_cut_in_time(limit)
        if self.is_played:
            self._submit(received)
        elif received is not None:
            self._drop_states(begins(planned))
            received.close()

    def _admitted(self) -> list[PlannedVisit]:
        """The visits within the budgets, in client order, behind those that go on.

        None if nobody can take part or is drawn, or if budgets leave too few of those that would have counted
        (``rounds.min_fraction``); if that ends the run, ``stopped_by`` says so.
        """
        run, stations, number = self.run, self.stations, self.number
        while True:
            stations.locate(run.server)
            self._let_rests_go_on()
            eligible = stations.taking_part(run.eligible(run.candidates, number))
            free = self._free(eligible)
            if not eligible:
                if stations.give_up():
                    continue
                self.stopped_by = None if stations.is_awaited else stations.ended_by()
                return []
            is_there = stations.is_there
            if free and (is_there is None or any(map(is_there, free))):
                break
            self._wait(eligible, free)
        cohort = run.select(free, is_there)
        if not run.allows_privacy(cohort):
            self.stopped_by = EPSILON
            return []
        if not cohort:
            return []
        visits = [run.prepare(client, number) for client in cohort]
        visits += [
            run.prepare_download_only(client, number)
            for client in set(run.server.download_only_clients(number, cohort)).intersection(free)
            if is_there is None or is_there(client)
        ]
        planned = self._rests_beside(visits) + sorted(visits, key=lambda visit: visit.client)
        affordable, refused_by = run.within_budgets(planned, self._costs)
        self.stopped_by = refused_by
        kept_out = run.kept_out(cohort, stations.taking_part(run.candidates)) if run.budget.limits_clients else 0
        if kept_out or len(begins(affordable)) < len(begins(planned)):
            foreseen, counted = self._trained_of(planned) + kept_out, self._trained_of(affordable)
            if counted < foreseen:
                if run.rules.is_cut_short(counted, foreseen):
                    affordable = []
                else:
                    self.record.cut_by = refused_by or CLIENTS
        admitted = {station for station, (visits, _) in self._split(affordable).items() if visits}
        if not admitted:
            self.stopped_by = refused_by or CLIENTS
        return run.numbered([visit for visit in affordable if self._station(visit) in admitted])

    def _free(self, eligible: list[int]) -> list[int]:
        """Those without a late visit that goes on to its end."""
        leftovers = self.run.clock.leftovers
        if self.run.rules.on_late != "complete" or not leftovers:
            return eligible
        busy = set(chain.from_iterable(rests.clients for rests in leftovers.values()))
        return [client for client in eligible if client not in busy]

    def _wait(self, eligible: Sequence[int], free: Sequence[int]) -> None:
        """Let stations wait until one of their clients is there, and late visits to them go on meanwhile."""
        stations, those_free = self.stations, self.stations.by_station(free)
        for station, clients in stations.by_station(eligible).items():
            since, now_free = stations.start(station), those_free.get(station, [])
            until = stations.first_there(now_free, since) if now_free else math.inf
            if until > since and len(now_free) < len(clients):
                until = min(until, self._first_free(set(clients).difference(now_free)))
            self._waits_since.setdefault(station, since)
            if until < self.run.budget.ends_at:
                self._go_on(station, until)
            stations.wait(station, until)

    def _let_rests_go_on(self) -> None:
        """Late visits to stations that begin now have gone on since the stations' last steps."""
        for station, rests in list(self.run.clock.leftovers.items()):
            start = self.stations.start(station)
            if rests.since < start < self.run.budget.ends_at:
                self._go_on(station, start)

    def _first_free(self, busy: set[int]) -> float:
        """When the first of these clients, whose late visits go on, is there after that."""
        clock = self.run.clock
        first = math.inf
        for rests in clock.leftovers.values():
            after = clock.solve_beside(rests, [], [], clock.conditions([], self.number)).leftovers
            assert after is not None
            ends = dict(zip(rests.clients, after.end.tolist(), strict=True))
            first = min([first, *(self.stations.first_there([k], ends[k]) for k in busy.intersection(ends))])
        return first

    def _go_on(self, station: int, until: float) -> None:
        """Let late visits to a station go on while it waits, and account for them."""
        run = self.run
        rests = run.clock.leftovers.get(station)
        if rests is None:
            return
        waiting = Group(run, self.number, station, self.stations.start(station), run.rules)
        waiting.end = until
        planned = [run.prepare_leftover(client, station) for client in rests.clients]

        def costs(going_on: Sequence[PlannedVisit]) -> list[Cost]:
            return waiting.rests(going_on, waiting.solved([], going_on, until).solution, until)

        affordable, _ = run.within_budgets(planned, costs, needed=list)
        waiting.going_on = run.numbered(affordable)
        waiting.account_rests(self.record, waiting.final.solution)

    def _rests_beside(self, visits: Sequence[PlannedVisit]) -> list[PlannedVisit]:
        """Late visits that go on at the stations of these; a selected client is told that its message is of no use any
        more."""
        run, selected = self.run, {visit.client for visit in visits}
        if not run.clock.leftovers:
            return []
        stations = {self.stations.of(client) for client in selected}
        self._station_of_rest = {
            client: station
            for station, rests in run.clock.leftovers.items()
            for client in rests.clients
            if station in stations and client not in selected
        }
        return [run.prepare_leftover(client, station) for client, station in self._station_of_rest.items()]

    # --- stations and their groups ------------------------------------------------------------------------------------

    def _station(self, visit: PlannedVisit) -> int:
        return self._station_of_rest[visit.client] if visit.kind == LEFTOVER else self.stations.of(visit.client)

    def _split(self, planned: Sequence[PlannedVisit]) -> Split:
        """The visits by station."""
        groups: Split = {}
        for visit in planned:
            groups.setdefault(self._station(visit), ([], []))[visit.kind == LEFTOVER].append(visit)
        return dict(sorted(groups.items()))

    def _groups_of(self, planned: Sequence[PlannedVisit]) -> Iterator[GroupVisits]:
        """The groups of stations at which some of these visits begin."""
        everyone = _trained(planned)
        for station, (visits, going_on) in self._split(planned).items():
            if visits:
                yield self._group(station, _trained(visits), everyone), visits, going_on

    def _group(self, station: int, trained: int, everyone: int) -> Group:
        """The group of a station in which ``trained`` of the training visits of ``everyone`` take part."""
        start = self.stations.start(station)
        if (station, start) not in self._tried:
            waited = start - self._waits_since.get(station, start)
            kind = Group if self.run.secure is None else SecureGroup
            self._tried[station, start] = kind(self.run, self.number, station, start, self.run.rules, waited)
        group, rules = self._tried[station, start], self.run.rules
        if trained < everyone:  # of what the policy wants of a cohort, the share of these visits
            share = rules.participants * trained / everyone
            rules = replace(rules, participants=max(1, math.floor(share + 1e-9)))
        group.rules = rules
        return group

    def _costs(self, planned: Sequence[PlannedVisit]) -> list[Cost]:
        return _costs_in(self._groups_of(planned), planned)

    def _trained_of(self, planned: Sequence[PlannedVisit]) -> int:
        """Training visits that would count if these visits began."""
        return sum(
            _trained(compress(visits, group.outcome(visits, going_on)[1]))
            for group, visits, going_on in self._groups_of(planned)
        )

    # --- training -----------------------------------------------------------------------------------------------------

    def _is_cut_in_time(self, limit: float) -> bool:
        """The run's seconds end in the round: whether those in time make the step (``rounds.min_fraction``)."""
        run, groups = self.run, self.groups.values()
        self.stopped_by = self.record.cut_by = SECONDS
        run.budget.lacks(SECONDS, sum(len(group.visits) for group in groups), self.after.time)
        if not self.stations.steps_in_part:
            return False
        in_time = [group.in_time(limit) for group in groups]
        counted = sum(_trained(compress(group.visits, counts)) for group, counts in zip(groups, in_time, strict=True))
        if run.rules.is_cut_short(counted, sum(len(group.counted("train")) for group in groups)):
            return False
        for group, counts in zip(groups, in_time, strict=True):
            group.step_at(limit, counts)
        self.after = self.after._replace(time=limit)
        return True

    def _submit(self, received: ReorderBuffer | None) -> None:
        run, groups = self.run, self.groups.values()
        begun = self._by_client(group.visits for group in groups)
        run.server.started(self.number, [visit.dispatch for visit in begun])
        trained = [group.counted("train") for group in groups]
        if received is not None:
            self._drop_states(chain.from_iterable(compress(group.visits, ~group.counts) for group in groups))
        # A worker has one sum at a time.
        is_partial = run.server.setup.sum == "fixed_point" and trained and received is None
        self._untrained = trained if is_partial else [list(chain.from_iterable(trained))]
        self._train_next(received)

    def _train_next(self, received: ReorderBuffer | None = None) -> CohortTraining:
        run = self.run
        order: list[int] = []
        if run.split is not None and run.split.config.is_shared:
            (group,) = self.groups.values()  # there are no aggregators
            order = group.order_of_steps()
        self.training.append(CohortTraining(run.trainer, run.server, self._untrained.pop(0), received, order))
        return self.training[-1]

    def _train_first(self, planned: Sequence[PlannedVisit]) -> tuple[ReorderBuffer | None, list[PlannedVisit]]:
        """Train all visits before they are timed (`FederatedRun.trains_first`).

        Returns the updates, if there are any, and the visits with the real lengths of their uploads. Budgets have
        reserved the bounds of these lengths.
        """
        run = self.run
        received = run.trainer.train_first([visit for visit in planned if visit.kind == "train"])
        self._tried.clear()  # with bounds in place of lengths
        return received, [
            visit if visit.kind != "train" else run.pricing.sent(visit, run.trainer.encoded(visit)) for visit in planned
        ]

    def _drop_states(self, visits: Iterable[PlannedVisit]) -> None:
        """Drop the client states of visits that were trained and do not count."""
        if self.run.states is not None:
            for visit in visits:
                self.run.states.drop(visit.state_name)

    def discard(self) -> None:
        """Cancel the training of a round that is not needed, since the run has ended."""
        for training in self.training:
            training.cancel()

    # --- the end of the round -----------------------------------------------------------------------------------------

    def end(self) -> PendingCommit | None:
        """Wait for the training and make the next models; None if there is nothing to commit."""
        run, groups = self.run, self.groups.values()
        if not self.is_played:
            if groups:  # the run's seconds end: visits are charged until then, and do not count
                run.clock.advance(run.budget.ends_at)
                for group in groups:
                    group.cut(run.budget.ends_at)
                self._account([])
            elif run.evaluated:
                return None
            # The last model is evaluated if it was not, perhaps in a row without visits.
            evaluation = run.late_evaluation(self._visit_for_evaluation)
            return run.close_round(self.record, evaluation, self.stopped_by, self._state())
        replies = self._replies()
        run.clock.advance(max(self.after.time, run.clock.now))
        counted = self._by_client(group.counted() for group in groups)
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
        if self._steps(replies) or self.after.meetings:
            run.step(self._meet)
        self.record.meets = bool(self.after.meetings)
        if replies:
            by_client = {reply.client: reply for reply in replies}
            learned = list(chain.from_iterable(group.feedback(by_client) for group in groups))
            self.record.method_rows += run.server.feedback(self.number, learned)
        run.rounds += 1
        self.stopped_by = self.stopped_by or run.budget.reached(run.rounds, None)
        self._account(replies)
        evaluation, is_last = None, self.stopped_by is not None
        if self._has_new_models(replies) or (is_last and not (self.stations.together and run.evaluated)):
            evaluation = run.evaluate_if_due(is_last, self._visit_for_evaluation)
        return run.close_round(self.record, evaluation, self.stopped_by, self._state())

    def _replies(self) -> list[Update]:
        """The updates that count, in client order."""
        replies = self.training[0].wait()
        while self._untrained:
            replies += self._train_next().wait()
        rejected = {client for client, kind in self._faulty.items() if kind not in TRAINED}
        if rejected:
            for group in self.groups.values():
                group.reject(rejected)
        return sorted(replies, key=lambda reply: reply.client)

    @property
    def _faulty(self) -> dict[int, str]:
        """client -> kind of its visit, if its update failed a check"""
        return {client: kind for training in self.training for client, kind in training.faulty.items()}

    def _meet(self) -> None:
        if isinstance(self.run.server, TieredServer):  # a replay has no vectors
            for meeting in self.after.meetings:
                meeting(self.run.server)

    def _steps(self, replies: Sequence[Update]) -> bool:
        """Whether the server makes a step: if an update counts, and where a step of noise must hide that none does."""
        return bool(replies) or self.run.hides_cohorts

    def _has_new_models(self, replies: Sequence[Update]) -> bool:
        """Whether there is something to evaluate."""
        if self.after.is_new is None:
            return self._steps(replies)
        # Of stations one by one, the server's model may become new in rounds in which no evaluation is due.
        is_new = self.after.is_new or (self.stations.is_asynchronous and not self.run.evaluated)
        # Those of stations are new after each of their steps, and where they have met what is above them.
        has_met = not self.stations.together or any(row.direction == UP_SIDE for row in self.record.aggregators)
        return is_new or (self.stations.evaluates_between and has_met)

    def _state(self) -> dict[str, NDArray[np.generic]]:
        return {f"{TIERS}{name}": np.array(array) for name, array in self.stations.state().items()}

    def _account(self, replies: Sequence[Update]) -> None:
        """Record and charge all visits, and what held the round up: that of the station that it waited for last."""
        record, stations, faulty = self.record, self.stations, self._faulty
        losses = {reply.client: reply.loss for reply in replies}
        last = stations.last(record, {station: group.end for station, group in self.groups.items()})
        for station, group in self.groups.items():
            group.account(record, losses, faulty)
            if station == last and group.visits:
                # Of its visits alone: those of others may have to be faster as well, if they end soon before.
                name = group.bottleneck(stations.saved_above(record, station))
                record.set_critical(group.visits, group.awaited_ends(is_step=bool(replies)), partial(str, name))

    # --- evaluations on clients ---------------------------------------------------------------------------------------

    def _visit_for_evaluation(self) -> list[int] | None:
        """Visit clients for an evaluation that begins now, and advance the clock to its end.

        Returns the clients that are evaluated, in ascending order; None: all, since evaluations are not charged.
        """
        run, stations, clock = self.run, self.stations, self.run.clock
        if run.charged_examples is None:
            return None
        starts = stations.begin_evaluation(self.record, clock.now)
        groups = {
            station: EvaluationGroup(run, self.number, station, start, RoundPolicy())
            for station, start in starts.items()
            if start < run.budget.ends_at
        }
        planned = [
            run.prepare_evaluation(client)
            for client in np.flatnonzero(run.charged_examples).tolist()
            if (of_client := groups.get(stations.of(client))) is not None
            and clock.has_power(client)
            and stations.is_there_at(client, of_client.start)
        ]

        def groups_of(planned: Sequence[PlannedVisit]) -> Iterator[GroupVisits]:
            return ((groups[station], *visits) for station, visits in self._split(planned).items())

        affordable, _ = run.within_budgets(planned, lambda planned: _costs_in(groups_of(planned), planned))
        begun: list[Group] = []
        for group, visits, going_on in groups_of(run.numbered(affordable)):
            group.begin(visits, going_on)
            begun.append(group)
        clock.advance(max([clock.now, *(group.end for group in begun)]))
        for group in begun:
            group.account(self.record)
            stations.end_evaluation(group.station, group.end)
        return [visit.client for visit in self._by_client(group.counted() for group in begun)]

    @staticmethod
    def _by_client(visits: Iterable[Sequence[PlannedVisit]]) -> list[PlannedVisit]:
        """All of these visits, in client order."""
        return sorted(chain.from_iterable(visits), key=lambda visit: visit.client)


def _costs_in(groups: Iterable[GroupVisits], planned: Sequence[PlannedVisit]) -> list[Cost]:
    """Bounds of the costs of planned visits in these groups; of late visits beside none, which go on later, nothing."""
    costs: dict[int, Cost] = {}
    for group, visits, going_on in groups:
        clients = [visit.client for visit in (*going_on, *visits)]
        costs |= zip(clients, group.costs(visits, going_on), strict=True)
    return [costs.get(visit.client, Cost()) for visit in planned]


def _trained(visits: Iterable[PlannedVisit]) -> int:
    """Training visits among these."""
    return sum(visit.kind == "train" for visit in visits)
