"""The visits of a round at one station: their times and prices, which of them count, and their accounts.

A group begins when its station is ready, and ends with the station's step, or where its visits are cut. Late visits to
the station that go on (``rounds.on_late``) share its links, and are solved and charged beside those of the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.records.bottleneck import FASTER, bottleneck
from coordinator.records.round_record import RoundRecord, outcomes
from coordinator.records.schema import LEFTOVER, NOT_SCORED
from coordinator.rounds.budget import Cost
from coordinator.rounds.policy import Mask, RoundPolicy
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.rounds.visit import PlannedVisit, upper_bounds
from costmodel.network.bandwidth import DOWN, UP
from edge.protocol.messages import Update
from edge.protocol.plugins import error_text, is_own

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from coordinator.aggregation.server import VisitFeedback
    from costmodel.fleet.conditions import Conditions
    from costmodel.visits.leftovers import Solution
    from costmodel.visits.timeline import Timeline

Visits = Sequence[PlannedVisit]
NONE: Mapping[int, Any] = MappingProxyType({})


class Solved(NamedTuple):
    """The solution of a batch of visits under these conditions."""

    conditions: Conditions
    solution: Solution


class Group:
    """The visits of one station in a round. Before they begin, other visits may be tried in their place."""

    order = 0
    """Which visit of its client in the round each is, for its draws"""

    def __init__(
        self, run: FederatedRun, round: int, station: int, start: float, rules: RoundPolicy, waited: float = 0.0
    ) -> None:
        """``start``: absolute seconds, ``waited`` after the station was ready. ``rules``: which visits count."""
        self.run, self.round, self.station = run, round, station
        self.start, self.waited, self.rules = start, waited, rules
        self.visits: list[PlannedVisit] = []
        self.going_on: list[PlannedVisit] = []
        """Late visits that go on beside those"""
        self.counts: Mask = np.zeros(0, bool)
        """Visits that count"""
        self.expected: Mask = self.counts
        """Visits that counted before their updates were checked"""
        self.end = math.inf
        """Absolute seconds of the station's step, or at which its visits are cut"""
        self.interrupted = "late"
        """Kind of visits that have not ended then: ``late`` or ``cut``"""
        self._solved: dict[tuple[tuple[int, ...], tuple[int, ...], float], Solved] = {}
        """(clients, those of visits that go on, until) -> solution of the clock, for prices and for the accounts"""

    # --- on the clock -------------------------------------------------------------------------------------------------

    def solved(self, visits: Visits, going_on: Visits, until: float = math.inf) -> Solved:
        """These visits on the clock, interrupted at ``until``."""
        clock, clients = self.run.clock, tuple(visit.client for visit in visits)
        key = clients, tuple(visit.client for visit in going_on), until
        if key not in self._solved:
            conditions = self.conditions_of(clients)
            conditions = clock.fleet.of_parts(conditions, [visit.price.rates for visit in visits])
            if self.run.tiers is not None:
                conditions = replace(conditions, access_link=np.full(len(visits), self.station))
            leftovers = clock.leftovers[self.station].of(key[1]) if going_on else None
            goes_on = self.run.rules.on_late != "stop" and until < math.inf
            starts, works = np.full(len(visits), self.start), [visit.work for visit in visits]
            solution = clock.solve_beside(leftovers, starts, works, conditions, until, goes_on)
            self._solved[key] = Solved(conditions, solution)
        return self._solved[key]

    def conditions_of(self, clients: Sequence[int]) -> Conditions:
        """The conditions of visits of these clients."""
        return self.run.clock.conditions(clients, self.round, order=self.order)

    def outcome(self, visits: Visits, going_on: Visits) -> tuple[Solved, Mask, float]:
        """These visits on the clock if none is interrupted, which of them count, and when the step would be."""
        solved = self.solved(visits, going_on)
        counts, end = self._accepted(visits, solved.solution.timeline)
        return solved, counts, end + self._handling_seconds(visits, counts)

    def costs(self, visits: Visits, going_on: Visits) -> list[Cost]:
        """Bounds of the costs of visits that go on, then of these visits."""
        (conditions, solution), _, end = self.outcome(visits, going_on)
        if self.rules.synchronous.interrupts:
            conditions, solution = self.solved(visits, going_on, end)
        timeline = solution.timeline
        joules = timeline.joules_spent + _waiting_joules(timeline, conditions, end)
        return self.rests(going_on, solution, end) + upper_bounds(visits, joules, timeline.seconds(end))

    @staticmethod
    def rests(going_on: Visits, solution: Solution, end: float) -> list[Cost]:
        """Bounds of the costs of visits that go on until ``end``."""
        rests = solution.leftovers
        return [] if rests is None else upper_bounds(going_on, rests.joules_spent, rests.seconds(end))

    def _handling_seconds(self, visits: Visits, counts: Mask) -> float:
        """Virtual seconds that the station needs to handle the updates of ``visits`` that count."""
        nbytes = sum(visit.work.answer_nbytes for visit in compress(visits, counts))
        return self.run.clock.fleet.links.handling_seconds(nbytes, int(counts.sum()))

    def _accepted(self, visits: Visits, timeline: Timeline) -> tuple[Mask, float]:
        """(mask of the visits that count, virtual seconds of the last that does), as the policy says.

        RunFailed names a user's policy that raises an error, or ends the round before a visit that counts.
        """
        rules, start = self.rules, self.start
        if not is_own(rules.policy):
            return rules.synchronous.accepted(rules, visits, timeline, start)
        try:
            policy = rules.synchronous
            policy.look_back(self.run.selection.history)
            mask, time = policy.accepted(rules, visits, timeline, start)
            counts, end = np.asarray(mask, np.bool_), float(time)
        except Exception as error:
            raise RunFailed(f"rounds.policy = {rules.policy!r}: {error_text(error)}") from error
        problem = ""
        if counts.shape != (len(visits),):
            problem = f"gives a mask of shape {counts.shape} for {len(visits)} visits"
        elif not start <= end < math.inf:
            problem = f"ends a round that starts at {start!r} at {end!r}"
        elif (timeline.up_end[counts] > end).any():
            problem = "counts a visit that has not ended when the round ends"
        if problem:
            raise RunFailed(f"rounds.policy = {rules.policy!r}: {problem}")
        return counts, end

    # --- the visits that take part ------------------------------------------------------------------------------------

    def begin(self, visits: Visits, going_on: Visits) -> None:
        """These visits begin."""
        self.visits, self.going_on = list(visits), list(going_on)
        _, self.counts, self.end = self.outcome(visits, going_on)
        self.expected = self.counts

    def counted(self, kind: str | None = None) -> list[PlannedVisit]:
        """The visits that count, of a kind or of any."""
        return [visit for visit in compress(self.visits, self.counts) if kind in (None, visit.kind)]

    def in_time(self, limit: float) -> Mask:
        """The visits that count, and whose updates the station could handle by ``limit``."""
        timeline = self.solved(self.visits, self.going_on).solution.timeline
        _, end = self._accepted(self.visits, timeline)
        return self.counts & (timeline.up_end + (self.end - end) <= limit)

    def step_at(self, limit: float, counts: Mask) -> None:
        """Let the run end with a step at ``limit``, with the visits of a mask alone; it interrupts the others."""
        self.end, self.counts, self.expected, self.interrupted = limit, counts, counts, "cut"

    def cut(self, at: float) -> None:
        """Cut all visits when the run ends, before the station's step."""
        self.end, self.counts = max(min(self.end, at), self.start), np.zeros(len(self.visits), bool)
        self.interrupted = "cut"

    def reject(self, clients: set[int]) -> None:
        """The visits of these clients do not count, since their updates have failed a check."""
        self.counts = self.counts & np.array([visit.client not in clients for visit in self.visits])

    def feedback(self, replies: Mapping[int, Update]) -> list[VisitFeedback]:
        """What the method learns from the replies of this group's visits; ``replies``: by client, of all groups."""
        own = [replies[visit.client] for visit in self.visits if visit.client in replies]
        return outcomes(self.visits, own, self.final.solution.timeline)

    def order_of_steps(self) -> list[int]:
        """The client of each training step, in the order in which they reach the server.

        Steps of a visit are spread evenly over its computing, and reach the server in the middle of each; equal times
        go by client. Those of a visit that is interrupted have reached it until then.
        """
        timeline = self.final.solution.timeline
        reached: list[tuple[float, int]] = []
        end = np.minimum(timeline.compute_end, np.minimum(timeline.lost, self.end))
        columns = (timeline.down_end, end, timeline.progress)
        for visit, *times in zip(self.visits, *(column.tolist() for column in columns), strict=True):
            begin, until, progress = times
            done = visit.work.steps * progress
            if visit.kind == "train" and done:
                each = (until - begin) / done
                reached += [(begin + (step + 0.5) * each, visit.client) for step in range(math.floor(done + 0.5))]
        return [client for _, client in sorted(reached)]

    # --- accounts -----------------------------------------------------------------------------------------------------

    @cached_property
    def final(self) -> Solved:
        """The solution with visits interrupted at the end, once that is known; a client that is lost exactly then is
        lost."""
        solved, until = self.solved(self.visits, self.going_on), self.end
        whole = solved.solution
        if not (whole.timeline.end > until).any() and (
            whole.leftovers is None or not (whole.leftovers.end > until).any()
        ):
            return solved

        def with_losses(timeline: Timeline, of_whole: Timeline) -> Timeline:
            return replace(timeline, lost=np.where(of_whole.lost <= until, of_whole.lost, math.inf))

        solved = self.solved(self.visits, self.going_on, until)
        solution = replace(solved.solution, timeline=with_losses(solved.solution.timeline, whole.timeline))
        if whole.leftovers is not None and solution.leftovers is not None:
            solution = replace(solution, leftovers=with_losses(solution.leftovers, whole.leftovers))
        return solved._replace(solution=solution)

    def account(
        self, record: RoundRecord, losses: Mapping[int, float | None] = NONE, faulty: Mapping[int, str] = NONE
    ) -> None:
        """Record and charge all visits. ``losses``: client -> what it has reported. ``faulty``: client -> kind of its
        visit, if its update failed a check."""
        run, visits = self.run, self.visits
        conditions, solution = self.final
        timeline = solution.timeline
        waiting = _waiting_joules(timeline, conditions, self.end)
        kinds = [
            faulty.get(visit.client) or (visit.kind if counts else self._kind_without_count(is_lost))
            for visit, counts, is_lost in zip(visits, self.counts, np.isfinite(timeline.lost), strict=True)
        ]
        reported = [losses.get(visit.client) for visit in visits]
        known = None if run.clock.is_measured else conditions
        added = record.add(
            visits, run.clock.fleet, timeline, kinds, self.end, waiting, losses=reported, conditions=known
        )
        run.charge(added)
        run.clock.passed(conditions, timeline, waiting)
        self.account_rests(record, solution)

    def _kind_without_count(self, is_lost: bool) -> str:
        return "lost" if is_lost else self.interrupted

    def account_rests(self, record: RoundRecord, solution: Solution) -> None:
        """Record and charge what late visits that went on did until the end; those that have not ended go on."""
        run, timeline = self.run, solution.leftovers
        if run.rules.on_late == "stop":
            return
        if timeline is not None:
            flowed = timeline.seconds(self.end) > 0
            visits = list(compress(self.going_on, flowed))
            kinds = [LEFTOVER] * len(visits)
            run.charge(record.add(visits, run.clock.fleet, timeline.only(flowed), kinds, self.end))
        run.clock.leave(solution, messages_alone=run.rules.on_late == "finish", station=self.station)

    # --- what held it up ----------------------------------------------------------------------------------------------

    def awaited_ends(self, is_step: bool) -> NDArray[np.float64]:
        """(visits,) The ends of the visits that the station waited for; -inf of the others. ``is_step``: whether an
        update counts."""
        ends = np.minimum(self.final.solution.timeline.end, self.end)
        trained = sum(visit.kind == "train" for visit in compress(self.visits, self.expected))
        if not is_step or self.rules.synchronous.waits_for_all(self.rules, trained):
            return ends
        return np.where(self.expected, ends, -math.inf)

    def bottleneck(self, above: Mapping[str, float]) -> str:
        """The bottleneck of the group, beside the seconds that each cause would save in messages above its station."""
        conditions, solution = self.solved(self.visits, self.going_on)
        whole, visits = solution.timeline, self.visits

        def step_at(ends: NDArray[np.float64]) -> float:
            others = replace(whole, up_end=np.where(np.isfinite(whole.up_end), ends, math.inf))
            return self._accepted(visits, others)[1]

        handling, access = self._handling_seconds(visits, self.counts), self.run.clock.fleet.links.access
        solve = self._solve_if_faster(conditions) if solution.leftovers is None else None
        return bottleneck(whole, access, step_at, solve, waited=self.waited, handling=handling, above=above)

    def _solve_if_faster(self, conditions: Conditions) -> Callable[[str], Timeline] | None:
        """``solve`` of `coordinator.records.bottleneck.bottleneck`; None where no link is shared, and no device of
        the server's, so that no visit can get in another's way."""
        clock, links = self.run.clock, self.run.clock.fleet.links
        is_alone = links.is_open(DOWN) and links.is_open(UP) and self.run.split is None
        if clock.is_measured or not self.run.solves_for_bottlenecks or is_alone:
            return None
        starts, works = np.full(len(self.visits), self.start), [visit.work for visit in self.visits]
        return lambda part: clock.solve_if_faster(part, FASTER, starts, works, conditions)


class EvaluationGroup(Group):
    """Visits that evaluate models on clients, which all end, are lost, or are cut when the run's seconds end.

    The values take no time at the station.
    """

    order = 1

    def outcome(self, visits: Visits, going_on: Visits) -> tuple[Solved, Mask, float]:
        limit = self.run.budget.ends_at
        solved = self.solved(visits, going_on, limit)
        timeline = solved.solution.timeline
        return solved, np.isfinite(timeline.up_end), min(float(timeline.end.max()), limit)

    @cached_property
    def final(self) -> Solved:
        return self.solved(self.visits, self.going_on, self.run.budget.ends_at)

    def _kind_without_count(self, is_lost: bool) -> str:
        return NOT_SCORED


def _waiting_joules(timeline: Timeline, conditions: Conditions, end: float) -> NDArray[np.float64]:
    return timeline.waiting_joules(end, conditions) if math.isfinite(end) else np.zeros(len(timeline))
