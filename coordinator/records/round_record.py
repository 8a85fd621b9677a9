"""The round record: the ledger's rows of one round.

All round policies write their rows here, so that columns mean the same for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import VisitFeedback
from coordinator.records.chain import StoredRow, as_stored
from coordinator.records.schema import (
    COUNTED,
    LEFTOVER,
    TRAINED,
    AggregatorRow,
    ConditionsRow,
    EvaluationRow,
    Lengths,
    LoggedRow,
    RoundRow,
    StepsRow,
    payload_name,
)
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.bounds import is_bounded
from edge.protocol.messages import VALIDATION, Update

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions
    from costmodel.fleet.fleet import Fleet
    from costmodel.visits.exchange import ExchangeTimes
    from costmodel.visits.timeline import Timeline


class EvalResult(NamedTuple):
    """The result of one evaluation."""

    accuracy: float | None
    loss: float | None
    """Mean loss of an example"""
    values: Sequence[EvaluationRow] = ()
    """Their rounds are set when the round is committed"""
    score: float | None = None
    """The value by which the run is judged, where that is not the accuracy"""

    @property
    def judged(self) -> float | None:
        """The value by which the run is judged."""
        return self.accuracy if self.score is None else self.score


def validation_score(rows: Iterable[EvaluationRow], metric: str) -> float | None:
    """Mean over clients of a metric on their validation examples, among one evaluation's rows, in their order; None if
    no client has a value."""
    values = [row.value for row in rows if (row.kind, row.metric) == (VALIDATION, metric) and row.value is not None]
    return float(np.mean(values)) if values else None


def logged_means(rows: Iterable[LoggedRow]) -> dict[str, float | None]:
    """The numbers that were logged in one round: ``server/NAME``, and ``clients/NAME`` for means over visits.

    None if no number of a name was finite.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        place = "server" if row.client is None else "clients"
        values.setdefault(f"{place}/{row.name}", []).extend([] if row.value is None else [row.value])
    return {name: float(np.mean(numbers)) if numbers else None for name, numbers in sorted(values.items())}


NOT_EVALUATED = EvalResult(None, None)


DISCARDED = {
    "kind": "cut", "nominal_bytes": 0.0, "nominal_flops": 0.0, "loss": None, "down_payload": "", "up_payload": ""
}  # fmt: skip
"""Values of a visit that has ended, but does not count"""


@dataclass
class RoundRecord:
    """The rows of one round, collected while it runs."""

    round: int
    start: float
    """Absolute virtual seconds"""
    visits: VisitColumns = field(default_factory=VisitColumns.of)
    payloads: dict[str, Lengths] = field(default_factory=dict)
    """Name -> lengths of the vectors of payloads of visits that counted"""
    method_rows: list[NamedTuple] = field(default_factory=list)
    """Rows of the method's own table"""
    evaluations: list[EvaluationRow] = field(default_factory=list)
    """Values of the evaluation beside the round's accuracy and loss, set when it has ended"""
    aggregators: list[AggregatorRow] = field(default_factory=list)
    """Messages between aggregators and what is above them"""
    conditions: list[StoredRow] = field(default_factory=list)
    """`ConditionsRow` of each visit"""
    steps: list[StepsRow] = field(default_factory=list)
    """Of each visit of a model that is cut"""
    logged: list[LoggedRow] = field(default_factory=list)
    """Numbers that the method has logged: in visits whose updates were accepted, then on the server's side"""
    states: dict[int, str] = field(default_factory=dict)
    """client -> file of its state, if written in this round"""
    critical: int | None = None
    """The client of the visit that ended last"""
    bottleneck: Callable[[], str] = lambda: ""
    """Names it when the round's row is made: of asynchronous rounds, the last visit alone decides"""
    epsilon: float = math.inf
    """Spent by its end, in runs with differential privacy"""
    cut_by: str = ""
    """The rule whose budget left out or interrupted visits of this round"""
    meets: bool = False
    """Whether aggregators have met what is above them, which changes models without any visit"""

    def set_critical(
        self, visits: Sequence[PlannedVisit], ends: NDArray[np.float64], bottleneck: Callable[[], str]
    ) -> None:
        """Set the client of the visit that ended last, by the ``ends`` (visits,) of those that the round waited for
        (-inf: it did not), and what names the round's bottleneck."""
        self.critical, self.bottleneck = visits[int(np.argmax(ends))].client, bottleneck

    def discard(self, numbers: Collection[int]) -> None:
        """Make these visits ones that the end of the run has cut: the updates that they sent are of no use."""
        for i in [i for i, number in enumerate(self.visits["visit"]) if number in numbers]:
            for column, value in DISCARDED.items():
                self.visits[column][i] = value

    def add(
        self,
        visits: Sequence[PlannedVisit],
        fleet: Fleet,
        timeline: Timeline,
        kinds: Sequence[str],
        until: float,
        waiting_joules: NDArray[np.float64] | float = 0.0,
        staleness: int = 0,
        losses: Sequence[float | None] | None = None,
        conditions: Conditions | None = None,
    ) -> VisitColumns:
        """Add visits that ended, or were interrupted at ``until``; returns them. ``conditions``: what they met, where
        that is known."""
        clients, count = [visit.client for visit in visits], len(visits)
        counted = [visit if kind in COUNTED else None for visit, kind in zip(visits, kinds, strict=True)]
        end = np.minimum(timeline.end, until)
        down_payloads, up_payloads = self._payloads(visits, kinds, timeline.bytes_up.tolist())
        added = VisitColumns(
            visit=[visit.number for visit in visits],
            round=[self.round] * count,
            client=clients,
            device=fleet.device_names(clients),
            network=fleet.network_names(clients),
            kind=kinds,
            staleness=[staleness] * count,
            start_s=timeline.start,
            down_end_s=np.minimum(timeline.down_end, end),
            compute_end_s=np.minimum(timeline.compute_end, end),
            up_end_s=np.minimum(timeline.up_end, end),
            shared_s=timeline.contention_seconds,
            paused_s=timeline.paused_seconds,
            bytes_down=timeline.bytes_down,
            bytes_up=timeline.bytes_up,
            nominal_bytes=[visit.price.nominal_bytes if visit else 0.0 for visit in counted],
            flops=timeline.flops,
            nominal_flops=[visit.price.nominal_flops if visit else 0.0 for visit in counted],
            joules=timeline.joules_spent + waiting_joules,
            samples=[visit.plan.samples for visit in visits],
            steps=[visit.work.steps for visit in visits],
            loss=[None] * count if losses is None else losses,
            down_payload=down_payloads,
            up_payload=up_payloads,
            idle_joules=timeline.idle_joules + waiting_joules,
            compute_joules=timeline.compute_joules,
            receive_joules=timeline.receive_joules,
            send_joules=timeline.send_joules,
            rate=[None if kind == LEFTOVER else visit.price.rate for visit, kind in zip(visits, kinds, strict=True)],
        )
        self.visits.extend(added)
        if timeline.exchange is not None:
            self.steps += steps_rows(self.round, visits, timeline, timeline.exchange)
        if conditions is not None:
            self.conditions += conditions_rows(self.round, visits, timeline, conditions)
        return added

    def _payloads(
        self, visits: Sequence[PlannedVisit], kinds: Sequence[str], bytes_up: Sequence[int]
    ) -> tuple[list[str], list[str]]:
        """The names of the payloads that went down and up in visits that counted; '' for others.

        Of those of which a replay could not know it otherwise, also what would have gone up.
        """
        names: dict[int, str] = {}  # by identity, since visits share lengths

        def noted(lengths: Lengths) -> str:
            if id(lengths) not in names:
                name = names[id(lengths)] = payload_name(lengths)
                self.payloads[name] = lengths
            return names[id(lengths)]

        down, up = [], []
        for visit, kind, nbytes in zip(visits, kinds, bytes_up, strict=True):
            price, counts = visit.price, kind in COUNTED
            down.append(noted(price.down) if counts else "")
            up.append(noted(price.up) if (counts and nbytes) or price.is_measured else "")
        return down, up

    def log(self, client: int | None, logged: Mapping[str, float]) -> None:
        """Add the numbers that the visit of a client has logged; None: the server's side."""
        self.logged += [
            LoggedRow(self.round, client, name, value if math.isfinite(value) else None)
            for name, value in logged.items()
        ]

    def log_visits(self, updates: Iterable[Update]) -> None:
        """Add the numbers that visits have logged."""
        for update in updates:
            self.log(update.client, update.logged)

    def round_row(self, end: float, result: EvalResult, model_sha256: str) -> RoundRow:
        """The row of the round, from those of its visits."""
        visits = self.visits.in_order()
        kinds = visits["kind"]
        wasted = visits.only([i for i, kind in enumerate(kinds) if kind not in COUNTED])
        losses = [loss for loss in visits["loss"] if loss is not None]
        return RoundRow(
            round=self.round,
            start_s=self.start,
            end_s=end,
            participants=sum(kind in TRAINED for kind in kinds),
            accuracy=result.accuracy,
            test_loss=result.loss if result.loss is not None and is_bounded(result.loss) else None,
            train_loss=float(np.mean(losses)) if losses else None,
            bytes_down=sum(visits["bytes_down"]),
            bytes_up=sum(visits["bytes_up"]),
            nominal_bytes=sum(visits["nominal_bytes"]),
            flops=sum(visits["flops"]),
            nominal_flops=sum(visits["nominal_flops"]),
            joules=sum(visits["joules"]),
            busy_s=sum(visits.seconds),
            wasted_s=sum(wasted.seconds),
            wasted_bytes=sum(wasted["bytes_down"]) + sum(wasted["bytes_up"]),
            wasted_joules=sum(wasted["joules"]),
            critical=self.critical,
            bottleneck=self.bottleneck(),
            model_sha256=model_sha256,
            cut_by=self.cut_by,
            score=None if result.score is None or not is_bounded(result.score) else result.score,
            epsilon=self.epsilon if math.isfinite(self.epsilon) else None,
        )


def conditions_rows(
    round: int, visits: Sequence[PlannedVisit], timeline: Timeline, conditions: Conditions
) -> list[StoredRow]:
    """A stored `ConditionsRow` of each visit."""
    codecs = np.array([visit.work.codec_seconds for visit in visits], np.float64)
    columns = (
        [visit.number for visit in visits],
        [round] * len(visits),
        conditions.flops_per_second,
        conditions.step_seconds,
        codecs * conditions.codec_slowdown,
        conditions.slowdown,
        *(conditions.down, conditions.up, conditions.rtt, conditions.loss),
        *conditions.noise.T,
        *(timeline.connect_down, timeline.own_down, timeline.access_down, timeline.server_down),
        *(timeline.connect_up, timeline.own_up, timeline.access_up, timeline.server_up),
        *(conditions.idle_watts, conditions.train_watts, conditions.receive_watts, conditions.transmit_watts),
    )
    return list(zip(*as_stored(ConditionsRow, columns), strict=True))


def steps_rows(round: int, visits: Sequence[PlannedVisit], timeline: Timeline, times: ExchangeTimes) -> list[StepsRow]:
    """A row of each visit that exchanges anything."""
    columns = (
        *(times.down_bits, times.up_bits, timeline.computed),
        *(times.down_seconds, times.up_seconds, times.trip_seconds, times.served, times.queued),
        *(times.access_down, times.server_down, times.access_up, times.server_up),
    )
    rows = zip(visits, *(column.tolist() for column in columns), strict=True)
    return [StepsRow(visit.number, round, *seconds) for visit, *seconds in rows if visit.work.exchange is not None]


def outcomes(visits: Sequence[PlannedVisit], replies: Sequence[Update], timeline: Timeline) -> list[VisitFeedback]:
    """The server side's feedback from the visits that counted, which are those with a reply."""
    by_client = {reply.client: reply for reply in replies}
    times = (timeline.start, timeline.down_end, timeline.compute_end, timeline.up_end)
    return [
        VisitFeedback(visit.dispatch, by_client[visit.client], compute - down, (down - start) + (up - compute))
        for visit, start, down, compute, up in zip(visits, *(column.tolist() for column in times), strict=True)
        if visit.client in by_client
    ]
