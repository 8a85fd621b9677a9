"""Rounds of a run with tiers: each aggregator has rounds of its own, and meets what is above it in intervals.

A round is one step of every aggregator that takes part: its visits begin when it is ready, go over its own network
(`fleet.tiers`), and its step waits for its own clients alone, as the round policy says. In the ledger the k-th rounds
of all aggregators are one round, which ends when the last of them does; so visits of a round may begin before the round
before it has ended. After ``tiers.interval`` rounds the aggregators send their models up (HierFAVG's kappa_2; with a
tier above them, this meets the server after as many meetings as the second number says). The server makes its step
when the last model has come, which ends the round. Its model goes down when the next round begins, to the aggregators
that take part until they meet again; so the initial model does before the first.

A round that would end after the budget of virtual seconds is charged until then, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.tiers import TieredServer, by_aggregator
from coordinator.records.round_record import RoundRecord, outcomes
from coordinator.records.schema import TRAINED, AggregatorRow
from coordinator.rounds.budget import CLIENTS, SECONDS, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.policy import Mask
from coordinator.rounds.ports import Arrays, PendingCommit
from coordinator.rounds.synchronous import accepted
from coordinator.rounds.tier_schedule import TierSchedule
from coordinator.rounds.visit import PlannedVisit, upper_bounds
from costmodel.fleet.availability import first_available
from edge.protocol.messages import Update

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from coordinator.rounds.run import FederatedRun
    from costmodel.fleet.conditions import Conditions
    from costmodel.tiers import TierClock, TierMessages
    from costmodel.visits.timeline import Timeline

UP_SIDE, DOWN_SIDE = "up", "down"
"""Directions of messages between an aggregator and what is above it"""
TIERS = "tiers|"
"""Prefix of the names of the tiers' arrays in a checkpoint"""
CHARGED, UPDATED, CLOCK = "charged ", "updated ", "clock "
"""Prefixes of names in `Tiers.state`"""


class Tiers:
    """The aggregators of one run between its rounds."""

    def __init__(
        self,
        schedule: TierSchedule,
        clock: TierClock,
        aggregator_of: NDArray[np.intp],
        nbytes: Mapping[str, int],
        prices: Sequence[float],
        draw: Callable[[int], np.random.Generator],
        on_loss: str = "wait",
        evaluates_between: bool = False,
    ) -> None:
        """``aggregator_of``: (clients,). ``nbytes``: direction -> bytes of a message between an aggregator and what is
        above it. ``prices``: of a gigabyte, by tier. ``draw``: round -> generator of the aggregators that take part
        from it on. ``on_loss``: as ``fleet.tiers.on_loss``. ``evaluates_between``: whether there is something to
        evaluate while aggregators have models of their own."""
        intervals = (*schedule.intervals, 1)[: clock.levels]
        self.schedule, self.clock = replace(schedule, interval=intervals), clock
        self.home, self.nbytes = aggregator_of, nbytes
        self.aggregator_of = aggregator_of
        """(clients,) in this round; -1: none. At ``home`` but for those whose aggregator is away"""
        self.on_loss, self.evaluates_between = on_loss, evaluates_between
        self._prices, self._draw = prices, draw
        size = clock.sizes[0]
        self.ready = np.zeros(size)
        """(aggregators,) absolute seconds at which each of the lowest tier can begin its next round; inf: never"""
        self.present = np.ones(size, bool)
        """(aggregators,) those that take part until all meet the server"""
        self._updated = [np.zeros(each, bool) for each in clock.sizes]
        """Of each tier, (aggregators,) those that have got updates, or those below them, since they last met"""
        self._charged = [np.zeros(each) for each in clock.sizes]
        """Of each tier, (aggregators,) absolute seconds until which their waiting is charged"""
        self.spent_bytes, self.spent_price = 0, 0.0

    def round(self, run: FederatedRun) -> TieredRound:
        """The next round of the run."""
        return TieredRound(run, self, run.rounds)

    @property
    def least(self) -> tuple[int, float]:
        """(bytes, price) of the messages between two steps of the server."""
        nbytes, price, count = 0, 0.0, self._count
        for tier, size in enumerate(self.clock.sizes):
            often = self.schedule.cycle // math.prod(self.schedule.intervals[: tier + 1])
            each = self.nbytes[UP_SIDE] + self.nbytes[DOWN_SIDE]
            messages = often * (min(count, size) if tier == 0 else size)
            nbytes += messages * each
            price += messages * each / 1e9 * self._prices[tier]
        return nbytes, price

    @property
    def _count(self) -> int:
        size = self.clock.sizes[0]
        return size if self.schedule.participants is None else min(self.schedule.participants, size)

    def choose(self, round: int) -> None:
        """Choose the aggregators that take part from a round on."""
        size = self.clock.sizes[0]
        chosen = self._draw(round).permutation(size)[: self._count]
        self.present = np.isin(np.arange(size), chosen)

    def locate(self) -> None:
        """Find the aggregators that are there when their rounds begin, and where the clients of the others go."""
        places = [
            index
            for index in np.flatnonzero(self.present & np.isfinite(self.ready)).tolist()
            if not self.clock.is_there(0, index, float(self.ready[index]))
        ]
        self.aggregator_of = self.home
        if self.on_loss == "wait":
            for index in places:
                self.ready[index] = self.clock.first_there(0, index, float(self.ready[index]))
            return
        there = self.present & np.isfinite(self.ready)
        there[places] = False
        if places:
            self.aggregator_of = self.home.copy()
        following = np.flatnonzero(there)
        for index in places:
            after = following[following > index] if (following > index).any() else following
            goes_to = after[0] if self.on_loss == "move" and after.size else -1
            self.aggregator_of[self.home == index] = goes_to

    def _present_at(self, tier: int) -> NDArray[np.bool_]:
        """Those of a tier below which somebody takes part."""
        present = self.present
        for lower in range(tier):
            above = np.zeros(self.clock.sizes[lower + 1], bool)
            above[self.clock.parent(lower)[present]] = True
            present = above
        return present

    def send_down(self, record: RoundRecord, now: float) -> None:
        """Send the server's models to the aggregators that take part, tier by tier, from now on."""
        ready, never = np.full(1, now), [np.full(size, math.inf) for size in self.clock.sizes]
        for tier in reversed(range(self.clock.levels)):
            ready = self._down(record, tier, ready, never[tier])
        self.ready = ready

    def _down(
        self,
        record: RoundRecord,
        tier: int,
        above: NDArray[np.float64],
        otherwise: NDArray[np.float64],
        is_second: bool = False,
    ) -> NDArray[np.float64]:
        """When the aggregators of a tier have got what those above send from ``above`` on; inf: they send nothing.

        ``otherwise``: of those that get nothing. ``is_second``: after a meeting, in a round that may have begun with another
        message down.
        """
        begin = above[self.clock.parent(tier)]
        present = self._present_at(tier) & np.isfinite(begin)
        messages = self.clock.down(tier, begin, present, self.nbytes[DOWN_SIDE], record.round, is_second=is_second)
        self._record(record, tier, DOWN_SIDE, messages, present)
        return np.where(present, messages.end, otherwise)

    def note_updates(self, aggregators: Iterable[int]) -> None:
        """These of the lowest tier get updates in this round."""
        self._updated[0][list(aggregators)] = True

    def meet(self, record: RoundRecord, ready: NDArray[np.float64]) -> tuple[list[NDArray[np.bool_]], float]:
        """Send models up as the schedule says after a round, and down again to tiers that do not meet the server.

        Only aggregators that have got updates since they last met send any. ``ready``: (aggregators,) when each of the
        lowest tier has made its step, inf for those that take no part. Returns (of each tier that meets what is above
        it, the aggregators whose models arrive; when the round ends).
        """
        meetings, arrivals, before = self.schedule.meetings(record.round + 1), [], []
        end = float(ready[np.isfinite(ready)].max(initial=record.start))
        for tier in range(meetings):
            sent = np.isfinite(ready) & self._updated[tier]
            messages = self.clock.up(tier, ready, sent, self.nbytes[UP_SIDE], record.round)
            self._record(record, tier, UP_SIDE, messages, sent)
            arrived = sent & np.isfinite(messages.end)
            self._updated[tier][:] = False
            parent = self.clock.parent(tier)
            above = np.full(int(parent.max()) + 1, -math.inf)
            np.maximum.at(above, parent[arrived], messages.end[arrived])
            counts = np.bincount(parent[arrived], minlength=above.size)
            for index, count in enumerate(counts.tolist()):
                seconds = self.clock.aggregation_seconds(tier, count * self.nbytes[UP_SIDE], count)
                above[index] = above[index] + seconds if count else math.inf
            if tier + 1 < self.clock.levels:
                self._updated[tier + 1] |= counts > 0
            arrivals.append(arrived)
            before.append(ready)
            ready = above
            end = float(ready[np.isfinite(ready)].max(initial=end))
        if meetings < self.clock.levels:
            for tier in reversed(range(meetings)):
                ready = self._down(record, tier, ready, before[tier], is_second=True)
            self.ready = ready
        return arrivals, end

    def _record(
        self, record: RoundRecord, tier: int, direction: str, messages: TierMessages, sent: NDArray[np.bool_]
    ) -> None:
        """Add the messages that were ``sent`` to the record, with the energy of waiting before them."""
        charged = self._charged[tier]
        for index in np.flatnonzero(sent).tolist():
            start, end = float(messages.start[index]), float(messages.end[index])
            idle = float(self.clock.idle_watts(tier)[index]) * max(start - float(charged[index]), 0.0)
            row = AggregatorRow(
                record.round,
                tier,
                index,
                direction,
                start,
                end if math.isfinite(end) else None,
                int(messages.nbytes[index]),
                float(messages.joules[index]),
                idle,
                float(messages.contention_seconds[index]),
                float(messages.price[index]),
            )
            record.aggregators.append(row)
            charged[index] = max(end if math.isfinite(end) else start, float(charged[index]))
            self.spent_bytes += row.nbytes
            self.spent_price += row.price

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What later rounds depend on, by name."""
        charged = {f"{CHARGED}{tier}": each for tier, each in enumerate(self._charged)}
        updated = {f"{UPDATED}{tier}": each for tier, each in enumerate(self._updated)}
        spent = np.array([self.spent_bytes, self.spent_price])
        own: dict[str, NDArray[np.generic]] = {"ready": self.ready, "present": self.present, "spent": spent}
        return own | charged | updated | {f"{CLOCK}{name}": each for name, each in self.clock.state().items()}

    def restore(self, now: float, state: Arrays) -> None:
        """Inverse of `state`, at time ``now``."""
        self.ready = np.asarray(state["ready"], np.float64)
        self.present = np.asarray(state["present"], bool)
        nbytes, self.spent_price = np.asarray(state["spent"], np.float64).tolist()
        self.spent_bytes = int(nbytes)
        for tier in range(self.clock.levels):
            self._charged[tier] = np.array(state[f"{CHARGED}{tier}"], np.float64)
            self._updated[tier] = np.array(state[f"{UPDATED}{tier}"], bool)
        of_clock = {
            name.removeprefix(CLOCK): np.asarray(each, np.float64)
            for name, each in state.items()
            if name.startswith(CLOCK)
        }
        self.clock.restore(now, of_clock)


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
    """When the aggregator has made its step"""

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
        self.arrivals: list[NDArray[np.bool_]] = []
        self.end_time = math.inf
        self.stopped_by: str | None = None
        self.training: list[CohortTraining] = []
        """Those that have begun: one for all visits, or of partial sums one for each aggregator"""
        self._untrained: list[list[PlannedVisit]] = []

    # --- before training ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Send models down, sample the cohort, time all visits and messages, and submit what counts for training."""
        run, tiers = self.run, self.tiers
        run.check_stop()
        if run.clock.now >= run.budget.ends_at:
            self.stopped_by = SECONDS
            return
        if self.number % tiers.schedule.cycle == 0:
            self.stopped_by = run.budget.refuses_messages(tiers.spent_bytes, tiers.spent_price, *tiers.least)
            if self.stopped_by is not None:
                return
            tiers.choose(self.number)
            tiers.send_down(self.record, run.clock.now)
        tiers.locate()
        if isinstance(run.server, TieredServer):  # a replay has no vectors
            run.server.aggregator_of = np.where(tiers.aggregator_of < 0, tiers.home, tiers.aggregator_of)
        visits = self._admitted()
        if not visits:
            self.stopped_by = self.stopped_by or CLIENTS
            return
        self.groups = self._groups(visits)
        self.record.start = min(group.start for group in self.groups.values())
        # An aggregator without visits goes on when the first of the others has made its step.
        ready = np.maximum(tiers.ready, min(group.end for group in self.groups.values()))
        for index, group in self.groups.items():
            ready[index] = group.end
        tiers.ready = ready
        tiers.note_updates(index for index, group in self.groups.items() if group.counts.any())
        self.arrivals, self.end_time = tiers.meet(self.record, np.where(tiers.present, ready, math.inf))
        if self.end_time > run.budget.ends_at:
            self.stopped_by = self.record.cut_by = SECONDS
            return
        run.server.started(self.number, [visit.dispatch for visit in visits])
        trained = [
            [visit for visit in compress(group.visits, group.counts) if visit.kind == "train"]
            for group in self.groups.values()
        ]
        # A worker has one sum at a time.
        self._untrained = trained if run.server.setup.sum == "fixed_point" else [list(chain.from_iterable(trained))]
        self._train_next()

    def _train_next(self) -> CohortTraining:
        self.training.append(CohortTraining(self.run.trainer, self.run.server, self._untrained.pop(0)))
        return self.training[-1]

    def _admitted(self) -> list[PlannedVisit]:
        """The visits within the budgets, in client order; none if nobody can take part."""
        run, number = self.run, self.number
        while True:
            eligible = [client for client in run.eligible(run.candidates, number) if self._start(client) < math.inf]
            is_there = self._is_there
            if is_there is None or any(map(is_there, eligible)) or not eligible:
                break
            self._wait(eligible)
        if not eligible or (is_there is not None and not any(map(is_there, eligible))):
            return []
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
        kept_out = run.kept_out(cohort)
        foreseen = len(planned) + kept_out
        if len(affordable) < foreseen:
            if run.rules.is_cut_short(len(affordable), foreseen):
                self.stopped_by = refused_by
                return []
            self.record.cut_by = refused_by or CLIENTS
            self.stopped_by = refused_by
        return run.numbered(affordable)

    def _start(self, client: int) -> float:
        """When a visit of the client would begin; inf where its aggregator takes no part."""
        index = self.tiers.aggregator_of[client]
        return float(self.tiers.ready[index]) if index >= 0 and self.tiers.present[index] else math.inf

    @property
    def _is_there(self) -> Callable[[int], bool] | None:
        """A test whether a client is there when its visit would begin; None where all always are."""
        clock = self.run.clock
        if clock.is_there is None:
            return None
        availability = clock.fleet.behaviour.availability
        return lambda client: availability.interval(client, self._start(client))[0]

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
        run, start = self.run, float(self.tiers.ready[index])
        conditions = run.clock.conditions([visit.client for visit in visits], self.number)
        conditions = replace(conditions, access_link=np.full(len(visits), index))
        starts, works = np.full(len(visits), start), [visit.work for visit in visits]
        timeline = run.clock.solve(starts, works, conditions)
        # Of what the policy wants of a cohort, the share of these visits.
        share = len(visits) * run.rules.participants / run.rules.cohort
        rules = replace(run.rules, participants=max(1, math.floor(share + 1e-9)))
        counts, end = accepted(rules, visits, timeline, start)
        links, nbytes = run.clock.fleet.links, sum(visit.work.bytes_up for visit in compress(visits, counts))
        end += nbytes / links.aggregate_bytes_per_second + links.seconds_per_visit * int(counts.sum())
        if (timeline.end > end).any():  # late visits are told that the round is over
            timeline = run.clock.solve(starts, works, conditions, end)
        return _Group(visits, conditions, timeline, counts, start, end)

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
        if not self.training:
            if self.groups:
                run.clock.advance(run.budget.ends_at)
                self._account([], cut_at=run.budget.ends_at)
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
        run.clock.advance(max(self.end_time, run.clock.now))
        self._keep_states()
        counted = [visit for group in self.groups.values() for visit in compress(group.visits, group.counts)]
        run.received(self.number, sorted(counted, key=lambda visit: visit.client))
        self.record.log_visits(replies)
        if replies:
            run.step()
            learned = [
                each
                for group in self.groups.values()
                for each in outcomes(group.visits, group.among(replies), group.timeline)
            ]
            self.record.method_rows += run.server.feedback(self.number, learned)
        for tier, arrived in enumerate(self.arrivals):
            if isinstance(run.server, TieredServer):  # a replay has no vectors
                run.server.meet(tier, arrived)
        run.rounds += 1
        self.stopped_by = self.stopped_by or run.budget.reached(run.rounds, None)
        self._account(replies)
        is_together = len(self.arrivals) == self.tiers.clock.levels
        is_due = is_together or self.tiers.evaluates_between or self.stopped_by is not None
        evaluation = run.evaluate_if_due(self.stopped_by is not None) if is_due else None
        return run.close_round(self.record, evaluation, self.stopped_by, self._state())

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

    @property
    def _faulty(self) -> dict[int, str]:
        """client -> kind of its visit, if its update failed a check"""
        return {client: kind for training in self.training for client, kind in training.faulty.items()}

    def _account(self, replies: Sequence[Update], cut_at: float = math.inf) -> None:
        """Record and charge all visits; ``cut_at``: when the run ended before the round could."""
        run, last, faulty = self.run, max(self.groups.values(), key=lambda group: group.end), self._faulty
        losses = {reply.client: reply.numbers["loss"] for reply in replies}
        for group in self.groups.values():
            timeline, end = group.timeline, group.end
            if cut_at < math.inf:
                end, group.counts = max(min(end, cut_at), group.start), np.zeros(len(group.visits), bool)
                starts, works = np.full(len(group.visits), group.start), [visit.work for visit in group.visits]
                timeline = run.clock.solve(starts, works, group.conditions, end)
            waiting = timeline.waiting_joules(end, group.conditions)
            interrupted = "cut" if cut_at < math.inf else "late"
            kinds = [
                faulty.get(visit.client) or (visit.kind if counts else "lost" if is_lost else interrupted)
                for visit, counts, is_lost in zip(group.visits, group.counts, np.isfinite(timeline.lost), strict=True)
            ]
            reported = [losses.get(visit.client) for visit in group.visits]
            run.charge(self.record.add(group.visits, run.clock.fleet, timeline, kinds, end, waiting, losses=reported))
            run.clock.passed(group.conditions, timeline, waiting)
            if group is last:
                self.record.set_critical_path(group.visits, timeline, end)
