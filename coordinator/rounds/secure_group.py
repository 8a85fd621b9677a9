"""A station's visits in a round with secure aggregation: phases with a barrier each, around those that train.

setup: clients advertise keys (not of lightsecagg). share: each gets those of its neighbours, and sends its shares. Then
come the visits themselves, which send masked numbers. unmask: those whose update has come send what takes the masks
off. A phase begins when all of the one before have ended or are lost. A client that is lost in a phase takes no part in
the later ones; the masks of one that has shared and sends no update are taken off by its neighbours. Where fewer than
the quorum of anybody's neighbours answer (of lightsecagg: of all clients), the round is lost, and is paid for.

Neighbours of secagg+ stand beside each other on a ring that is drawn for each round (Bell et al., CCS 2020, section 3.3
has the sizes). Aggregators have protocols of their own. Phases are visits of a kind of their own in the ledger; those
that have ended count where the round is not lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import DROPPED, SETUP, SHARE, TRAIN, UNMASK
from coordinator.rounds.budget import Cost
from coordinator.rounds.group import NONE, Group, Solved, Visits
from coordinator.rounds.policy import Mask, RoundPolicy
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.visit import PlannedVisit
from costmodel.secure_aggregation import Exchange, SecureAggregation
from costmodel.visits.work import Work
from edge.protocol.config import PrivacyConfig
from edge.protocol.payload import ITEM_NBYTES
from edge.protocol.rng import keyed_generator

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions

ORDER = {SETUP: 2, SHARE: 3, UNMASK: 4}
"""Which visit of its client in the round a phase is, for its draws: the training visit is the first, an evaluation the
second"""


@dataclass(frozen=True)
class SecureRules:
    """What the secure aggregation of a run needs to know."""

    config: PrivacyConfig
    numbers: int
    """Numbers of an update"""
    seed: int

    def protocol(self, clients: int) -> SecureAggregation:
        """The protocol of a cohort of so many."""
        config, kind = self.config, self.config.secagg
        assert kind is not None
        shares = clients
        if kind == "secagg+":
            shares = min(clients, config.secagg_shares or 2 * math.ceil(math.log2(max(clients, 2))) + 1)
        colluding = math.floor(config.secagg_colluding * clients) if kind == "lightsecagg" else 0
        quorum = max(math.ceil(config.secagg_quorum * shares - 1e-9), colluding + 1)
        return SecureAggregation(kind, clients, self.numbers + 1, shares, quorum, colluding, config.secagg_wire)

    def neighbours(self, clients: Sequence[int], shares: int, round: int, station: int) -> dict[int, list[int]]:
        """client -> those that hold its shares, itself not counted; all others unless there are fewer shares."""
        if shares >= len(clients):
            return {client: [other for other in clients if other != client] for client in clients}
        ring = keyed_generator(self.seed, "secagg neighbours", round, station).permutation(len(clients)).tolist()
        reach = (shares - 1) // 2
        ways = [*range(-reach, 0), *range(1, shares - reach)]
        return {
            clients[place]: [clients[ring[(number + way) % len(ring)]] for way in ways]
            for number, place in enumerate(ring)
        }


class PhaseGroup(Group):
    """The visits of one phase, which all end or are lost."""

    def __init__(self, run: FederatedRun, round: int, station: int, start: float, kind: str, before: Group | None):
        """``before``: the group of the phase before, whose connections are still warm."""
        super().__init__(run, round, station, start, RoundPolicy())
        self.kind, self.order, self._before = kind, ORDER[kind], before

    def conditions_of(self, clients: Sequence[int]) -> Conditions:
        return _warm(super().conditions_of(clients), self._before)

    def _handling_seconds(self, visits: Visits, counts: Mask) -> float:
        return 0.0  # these are no updates

    def _kind_without_count(self, is_lost: bool) -> str:
        return DROPPED


class SharedGroup(Group):
    """The training visits behind the phases."""

    before: Group | None = None

    def conditions_of(self, clients: Sequence[int]) -> Conditions:
        return _warm(super().conditions_of(clients), self.before)


def _warm(conditions: Conditions, before: Group | None) -> Conditions:
    """Conditions of visits over the connections of a phase that has just ended."""
    if before is None:
        return conditions
    timeline = before.final.solution.timeline
    place = {visit.client: number for number, visit in enumerate(before.visits)}
    at = [place[client] for client in conditions.clients.tolist()]
    return replace(conditions, last_down=timeline.down_end[at], last_up=timeline.up_end[at])


@dataclass
class Course:
    """The phases of a cohort, as the clock foresees them."""

    phases: list[PhaseGroup] = field(default_factory=list)
    main: SharedGroup | None = None
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
            self._courses[key] = self._foreseen(visits)
        return self._courses[key]

    def _foreseen(self, visits: Visits) -> Course:
        secure = self.run.secure
        assert secure is not None
        trained = [visit for visit in visits if visit.kind == TRAIN]
        protocol = secure.protocol(len(trained))
        course, start = Course(), self.start
        clients = [visit.client for visit in trained]
        neighbours = secure.neighbours(clients, protocol.shares, self.round, self.station)
        for kind, exchange in ((SETUP, protocol.setup), (SHARE, protocol.share)):
            if kind == SETUP and not protocol.has_setup:
                continue
            phase = self._phase(kind, start, {client: exchange() for client in clients}, course)
            clients, start = [visit.client for visit in phase.counted()], phase.end
        shared = set(clients)
        going = [_masked(visit, protocol) for visit in trained if visit.client in shared]
        going += [visit for visit in visits if visit.kind != TRAIN]
        if not going:
            course.end, course.is_lost = start, True
            return course
        course.main = SharedGroup(self.run, self.round, self.station, start, self.rules, self.waited)
        listening = len(going) > len(shared)
        course.main.before = None if listening or not course.phases else course.phases[-1]
        course.main.begin(going, [])
        survivors = [visit.client for visit in course.main.counted(TRAIN)]
        course.end = course.main.end
        living, dead = set(survivors), shared.difference(survivors)
        exchanges = {
            client: protocol.unmask(*(sum(other in group for other in neighbours[client]) for group in (living, dead)))
            for client in survivors
        }
        answered = set[int]()
        if survivors:
            unmask = self._phase(UNMASK, course.end, exchanges, course)
            answered, course.end = {visit.client for visit in unmask.counted()}, unmask.end
        if protocol.kind == "lightsecagg":
            course.is_lost = len(answered) < protocol.quorum
            if not course.is_lost:  # the first answers will do
                ends = np.sort(course.phases[-1].final.solution.timeline.up_end)
                course.end = course.phases[-1].end = float(ends[protocol.quorum - 1])
        else:
            held = [sum(other in answered for other in (client, *neighbours[client])) for client in sorted(shared)]
            course.is_lost = not survivors or min(held) < protocol.quorum
        if course.is_lost:
            course.main.counts = np.array([visit.kind != TRAIN for visit in going]) & course.main.counts
            for phase in course.phases:
                phase.counts = np.zeros(len(phase.visits), bool)
        else:
            course.end += protocol.server_seconds(len(survivors), len(dead))
        return course

    def _phase(self, kind: str, start: float, exchanges: Mapping[int, Exchange], course: Course) -> PhaseGroup:
        before = course.phases[-1] if kind != UNMASK and course.phases else None
        phase = PhaseGroup(self.run, self.round, self.station, start, kind, before)
        phase.begin([self.run.prepare_phase(kind, client, _work(one)) for client, one in exchanges.items()], [])
        course.phases.append(phase)
        return phase

    def outcome(self, visits: Visits, going_on: Visits) -> tuple[Solved, Mask, float]:
        course = self._course(visits)
        counted = set() if course.main is None else {visit.client for visit in course.main.counted()}
        return self._solved_of(course), np.array([visit.client in counted for visit in visits], bool), course.end

    def _solved_of(self, course: Course) -> Solved:
        return (course.main or course.phases[-1]).final

    def costs(self, visits: Visits, going_on: Visits) -> list[Cost]:
        course, costs = self._course(visits), {visit.client: Cost() for visit in visits}
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
            main.visits = [replace(visit, number=numbers[visit.client]) for visit in main.visits]
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
        for phase in self.course.phases:
            phase.cut(at)
        main = self.course.main
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


def _masked(visit: PlannedVisit, protocol: SecureAggregation) -> PlannedVisit:
    """A training visit with the messages and the computing of secure aggregation: its numbers are masked."""
    more, price = protocol.collect(), visit.price
    plain = sum(nbytes for sizes in price.up.values() for nbytes in sizes.values())
    word = protocol.masked_nbytes // protocol.numbers
    up = {
        slot: {key: nbytes // ITEM_NBYTES * word for key, nbytes in sizes.items()} for slot, sizes in price.up.items()
    }
    work = replace(
        price.work,
        bytes_down=price.work.bytes_down + more.bytes_down,
        bytes_up=price.work.bytes_up - plain + more.bytes_up,
        codec_seconds=price.work.codec_seconds + more.seconds,
    )
    return replace(visit, price=replace(price, work=work, up=up))
