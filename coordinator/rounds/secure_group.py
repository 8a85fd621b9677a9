"""A station's visits in a round with secure aggregation: phases with a barrier each, around those that train.

The server invites clients. setup: they advertise keys (not of lightsecagg). share: each gets those of its neighbours,
and sends its shares. Then come the visits themselves, which send masked numbers. unmask: those whose update has come
send what takes the masks off. A phase begins when all of the one before have ended or are lost. A client that is lost
in a phase takes no part in the later ones; the masks of one that has shared and sends no update are taken off by its
neighbours. Where fewer than the quorum of anybody's neighbours answer (of lightsecagg: of all clients), the round is
lost, and is paid for.

Aggregators have protocols of their own. Phases are visits of a kind of their own in the ledger; those
that have ended count where the round is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import DROPPED, SETUP, SHARE, TRAIN, UNMASK
from coordinator.rounds.budget import Cost
from coordinator.rounds.group import NONE, Group, Solved, Visits
from coordinator.rounds.policy import Mask, RoundPolicy
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.visit import PlannedVisit, VisitPrice
from costmodel.garbage import without_garbage_collection
from costmodel.secure_aggregation import Exchange, SecureAggregation
from costmodel.visits.work import Work
from edge.protocol.payload import ITEM_NBYTES

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions

ORDER = {SETUP: 2, SHARE: 3, UNMASK: 4}
"""Which visit of its client in the round a phase is, for its draws: the training visit is the first, an evaluation the
second"""


class WarmGroup(Group):
    """Training visits behind a phase, or a phase itself: visits over the connections of what has just ended."""

    before: Group | None = None
    """What has ended; None: connections are as they would be without it"""

    def conditions_of(self, clients: Sequence[int]) -> Conditions:
        conditions = super().conditions_of(clients)
        if self.before is None:
            return conditions
        timeline = self.before.final.solution.timeline
        place = {visit.client: number for number, visit in enumerate(self.before.visits)}
        at = [place[client] for client in conditions.clients.tolist()]
        return replace(conditions, last_down=timeline.down_end[at], last_up=timeline.up_end[at])


class PhaseGroup(WarmGroup):
    """The visits of one phase, which all end or are lost."""

    def __init__(self, run: FederatedRun, round: int, station: int, start: float, kind: str, before: Group | None):
        """``before``: the group of the phase before, whose connections are still warm."""
        super().__init__(run, round, station, start, RoundPolicy())
        self.kind, self.order, self.before = kind, ORDER[kind], before

    def _handling_seconds(self, visits: Visits, counts: Mask) -> float:
        return 0.0  # these are no updates

    def _kind_without_count(self, is_lost: bool) -> str:
        return DROPPED


@dataclass
class Course:
    """The phases of a cohort, as the clock foresees them."""

    phases: list[PhaseGroup] = field(default_factory=list)
    main: WarmGroup | None = None
    """The training visits; None if nobody has come so far"""
    end: float = 0.0
    """Absolute seconds at which the server has the sum, or knows that the round is lost"""
    is_lost: bool = False


class SecureGroup(Group):
    """The phases of a station, and its training visits between them."""

    def __init__(
        self, run: FederatedRun, round: int, station: int, start: float, rules: RoundPolicy, waited: float = 0.0
    ) -> None:
        super().__init__(run, round, station, start, rules, waited)
        self._courses: dict[tuple[int, ...], Course] = {}
        self.course = Course()

    # --- on the clock -------------------------------------------------------------------------------------------------

    def _course(self, visits: Visits) -> Course:
        key = tuple(visit.client for visit in visits)
        if key not in self._courses:
            with without_garbage_collection():
                self._courses[key] = self._foreseen(visits)
        return self._courses[key]

    def _foreseen(self, visits: Visits) -> Course:
        secure = self.run.secure
        assert secure is not None
        trained = [visit for visit in visits if visit.kind == TRAIN]
        cohort = np.array([visit.client for visit in trained], np.intp)
        protocol = secure.protocol(len(trained))
        holders = secure.holders(len(trained), protocol.shares, self.round, self.station)
        course, start = Course(), self.start
        there = np.ones(len(cohort), bool)
        for kind, exchange in ((SETUP, protocol.setup), (SHARE, protocol.share)):
            if kind == SETUP and not protocol.has_setup:
                continue
            one = exchange()
            if not course.phases:
                one = replace(one, bytes_down=one.bytes_down + secure.invitation_nbytes)
            phase = self._phase(kind, start, cohort[there], [one] * int(there.sum()), course)
            there[there] = phase.counts
            start = phase.end
        masked = _Masked(protocol)
        going = [masked.of(visit) for visit, shares in zip(trained, there.tolist(), strict=True) if shares]
        listening = [visit for visit in visits if visit.kind != TRAIN]
        if not going and not listening:
            course.end, course.is_lost = start, True
            return course
        main = course.main = WarmGroup(self.run, self.round, self.station, start, self.rules, self.waited)
        main.before = course.phases[-1] if course.phases and not listening else None
        main.begin(going + listening, [])
        course.end = main.end
        survives = np.zeros(len(cohort), bool)
        survives[there] = main.counts[: len(going)]
        is_dead = there & ~survives
        answers = np.zeros(len(cohort), bool)
        if survives.any():
            living, dead = (_held(holders, group)[survives] for group in (survives, is_dead))
            kinds = {pair: protocol.unmask(*pair) for pair in {*zip((living - 1).tolist(), dead.tolist(), strict=True)}}
            exchanges = [kinds[pair] for pair in zip((living - 1).tolist(), dead.tolist(), strict=True)]
            unmask = self._phase(UNMASK, main.end, cohort[survives], exchanges, course)
            answers[survives], course.end = unmask.counts, unmask.end
        if protocol.kind == "lightsecagg":
            course.is_lost = int(answers.sum()) < protocol.quorum
            if not course.is_lost:  # the first answers will do
                ends = np.sort(course.phases[-1].final.solution.timeline.up_end)
                course.end = course.phases[-1].end = float(ends[protocol.quorum - 1])
        else:
            course.is_lost = not survives.any() or int(_held(holders, answers)[there].min()) < protocol.quorum
        if course.is_lost:
            main.counts = main.counts & np.array([visit.kind != TRAIN for visit in main.visits])
            for phase in course.phases:
                phase.counts = np.zeros(len(phase.visits), bool)
        else:
            course.end += protocol.server_seconds(int(survives.sum()), int(is_dead.sum()))
        return course

    def _phase(
        self, kind: str, start: float, clients: NDArray[np.intp], exchanges: Sequence[Exchange], course: Course
    ) -> PhaseGroup:
        before = course.main if kind == UNMASK else course.phases[-1] if course.phases else None
        phase = PhaseGroup(self.run, self.round, self.station, start, kind, before)
        prices = {one: self.run.phase_price(_work(one)) for one in {*exchanges}}
        planned = zip(clients.tolist(), exchanges, strict=True)
        phase.begin([self.run.prepare_phase(kind, client, prices[one]) for client, one in planned], [])
        course.phases.append(phase)
        return phase

    def outcome(self, visits: Visits, going_on: Visits) -> tuple[Solved, Mask, float]:
        course = self._course(visits)
        counted = set() if course.main is None else {visit.client for visit in course.main.counted()}
        return self._solved_of(course), np.array([visit.client in counted for visit in visits], bool), course.end

    def _solved_of(self, course: Course) -> Solved:
        return (course.main or course.phases[-1]).final

    def costs(self, visits: Visits, going_on: Visits) -> list[Cost]:
        course, costs = self._course(visits), dict.fromkeys((visit.client for visit in visits), Cost())
        for group in (*course.phases, *([] if course.main is None else [course.main])):
            for visit, cost in zip(group.visits, group.costs(group.visits, []), strict=True):
                costs[visit.client] += cost
        return [costs[visit.client] for visit in visits]

    # --- the visits that take part ------------------------------------------------------------------------------------

    def begin(self, visits: Visits, going_on: Visits) -> None:
        self.course = self._course(visits)
        for phase in self.course.phases:
            phase.visits = self.run.numbered(phase.visits)
        main, numbers = self.course.main, {visit.client: visit.number for visit in visits}
        if main is not None:  # which was foreseen before visits had numbers
            main.visits = [visit.numbered(numbers[visit.client]) for visit in main.visits]
        self.visits = [] if main is None else main.visits
        self.counts = self.expected = np.zeros(0, bool) if main is None else main.counts
        self.end = self.course.end
        self.interrupted = "lost" if self.course.is_lost else "late"

    def in_time(self, limit: float) -> Mask:
        """A sum is whole or lost: none, if the run ends before it."""
        return self.counts & (self.end <= limit)

    def cut(self, at: float) -> None:
        self.end = min(self.end, at)
        self.course.phases = [phase for phase in self.course.phases if phase.start < at]
        main = self.course.main
        for group in (*self.course.phases, *([] if main is None else [main])):
            group.__dict__.pop("final", None)  # of visits that were not cut
        for phase in self.course.phases:
            phase.cut(at)
        if main is not None and main.start >= at:
            self.course.main, self.visits = None, []
        elif main is not None:
            main.cut(at)
        self.counts = self.expected = np.zeros(len(self.visits), bool)
        self.interrupted = "cut"

    # --- accounts -----------------------------------------------------------------------------------------------------

    def account(
        self, record: RoundRecord, losses: Mapping[int, float | None] = NONE, faulty: Mapping[int, str] = NONE
    ) -> None:
        main = self.course.main
        for phase in self.course.phases:
            if phase.kind != UNMASK:
                phase.account(record)
        if main is not None:
            main.counts, main.interrupted = self.counts, self.interrupted
            main.account(record, losses, faulty)
        for phase in self.course.phases:
            if phase.kind == UNMASK:
                phase.account(record)

    @cached_property
    def final(self) -> Solved:
        return self._solved_of(self.course)

    def awaited_ends(self, is_step: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        main = self.course.main
        return np.zeros(0) if main is None else main.awaited_ends(is_step)

    def bottleneck(self, above: Mapping[str, float]) -> str:
        main = self.course.main
        return "" if main is None else main.bottleneck(above)


def _work(exchange: Exchange) -> Work:
    return Work(exchange.bytes_down, exchange.bytes_up, 0.0, 0, exchange.seconds)


def _held(holders: NDArray[np.intp] | None, group: Mask) -> NDArray[np.int64]:
    """(clients,) How many of the holders of each client's shares are in a group."""
    if holders is None:
        return np.full(len(group), int(group.sum()))
    counts: NDArray[np.int64] = group[holders].sum(axis=1)
    return counts


class _Masked:
    """Training visits with the messages and the computing of secure aggregation: their numbers are masked."""

    def __init__(self, protocol: SecureAggregation) -> None:
        self._more, self._word = protocol.collect(), protocol.masked_nbytes // protocol.numbers
        self._prices: dict[int, tuple[VisitPrice, VisitPrice]] = {}
        """By identity, since visits share prices"""

    def of(self, visit: PlannedVisit) -> PlannedVisit:
        """The visit, masked."""
        if id(visit.price) not in self._prices:
            self._prices[id(visit.price)] = visit.price, self._price(visit.price)
        return visit.priced(self._prices[id(visit.price)][1])

    def _price(self, price: VisitPrice) -> VisitPrice:
        plain = sum(nbytes for sizes in price.up.values() for nbytes in sizes.values())
        up = {
            slot: {key: nbytes // ITEM_NBYTES * self._word for key, nbytes in sizes.items()}
            for slot, sizes in price.up.items()
        }
        work = replace(
            price.work,
            bytes_down=price.work.bytes_down + self._more.bytes_down,
            bytes_up=price.work.bytes_up - plain + self._more.bytes_up,
            codec_seconds=price.work.codec_seconds + self._more.seconds,
        )
        return replace(price, work=work, up=up)
