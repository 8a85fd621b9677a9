"""The values of clients in the ledger's table ``evaluations``: mean, worst decile and spread, and the best round.

Each client has a score of its own: its accuracy, or the metric by which the run is judged. The mean of these is another
figure than the score of all examples together, which rounds have of metrics other than the accuracy.

The best round is chosen on validation examples where these were evaluated. Without them it is that of the best
score, which is as optimistic as any best of many draws: ``selected_by`` tells both apart.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct

from coordinator.records.round_record import validation_score
from coordinator.records.schema import EvaluationRow, RoundRow
from edge.protocol.better import HIGHER, Better
from edge.protocol.messages import BEFORE, CORRECT, CROSS_ENTROPY, GLOBAL, SUBVALUE, EvaluatedQuantity
from scenarios.run import progress
from scenarios.run.score import OF_ACCURACY, RunScore

CLASS_ACCURACY = "class-accuracy"
SelectedBy = Literal["validation", "accuracy", "score"]
KindOfValue = Literal["before", "validation"] | None
PART = 10
"""The worst decile is one in so many clients."""


@dataclass(frozen=True)
class OverClients:
    """One evaluation over all clients with examples. Of accuracies, in [0, 1]."""

    mean: float
    worst_decile: float
    """Mean of the worst tenth of the clients, rounded down, and at least one"""
    spread: float
    """Standard deviation over clients"""
    values: tuple[float, ...]
    """Ascending"""


def over_clients(values: Sequence[float], better: Better = HIGHER) -> OverClients:
    """The values of one evaluation, at least one."""
    ascending = sorted(values)
    part = max(1, len(ascending) // PART)
    worst = ascending[:part] if better is HIGHER else ascending[-part:]
    return OverClients(
        statistics.fmean(ascending), statistics.fmean(worst), statistics.pstdev(ascending), tuple(ascending)
    )


def by_round(
    rows: Sequence[EvaluationRow], score: RunScore = OF_ACCURACY, kind: KindOfValue = None
) -> dict[int, OverClients]:
    """Round -> the clients' scores after it, for rounds with any; ``kind``: as of `EvaluatedQuantity`."""
    quantity = EvaluatedQuantity(score.metric, kind=kind)
    values: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.client != GLOBAL and row.quantity == quantity and row.value is not None:
            values[row.round].append(row.value)
    return {round: over_clients(numbers, score.better) for round, numbers in sorted(values.items())}


def last(rows: Sequence[EvaluationRow], score: RunScore = OF_ACCURACY) -> OverClients | None:
    """The clients' scores at the last evaluation; None if there are none."""
    return next(reversed(by_round(rows, score).values()), None)


ByDevice = Mapping[str, Mapping[int, OverClients]]
"""Kind of device -> round -> the scores of its clients after it"""


def by_device(
    rows: Sequence[EvaluationRow], clients: Mapping[str, Sequence[int]], score: RunScore = OF_ACCURACY
) -> ByDevice:
    """The clients' scores by kind of device; those without any are left out. ``clients``: of each kind."""
    device_of = {client: device for device, members in clients.items() for client in members}
    own_rows: defaultdict[str, list[EvaluationRow]] = defaultdict(list)
    for row in rows:
        if row.client in device_of:
            own_rows[device_of[row.client]].append(row)
    return {device: values for device in clients if (values := by_round(own_rows[device], score))}


def at_round(devices: ByDevice, round: int | None = None) -> dict[str, OverClients]:
    """Kind of device -> its clients at the evaluation after a round, by default the last one."""
    if round is None:
        round = max((known for values in devices.values() for known in values), default=-1)
    return {device: values[round] for device, values in devices.items() if round in values}


def before_and_after(
    rows: Sequence[EvaluationRow], round: int, score: RunScore = OF_ACCURACY
) -> list[tuple[float, float]]:
    """(score before the adaptation, after it) of each client with both at the evaluation after a round."""
    before, after = (
        {row.client: row.value for row in rows if (row.round, row.quantity) == (round, of) and row.value is not None}
        for of in (EvaluatedQuantity(score.metric, kind=BEFORE), EvaluatedQuantity(score.metric))
    )
    return [(value, after[client]) for client, value in before.items() if client in after]


def last_of_each(rows: Sequence[EvaluationRow], score: RunScore = OF_ACCURACY) -> dict[int, float]:
    """Client -> its score at the last evaluation over clients."""
    own = EvaluatedQuantity(score.metric)
    client_rows = [row for row in rows if row.client != GLOBAL and row.quantity == own and row.value is not None]
    return {
        row.client: row.value for row in client_rows if row.round == client_rows[-1].round and row.value is not None
    }


def nbytes(query: Callable[[str], Sequence[Sequence[Any]]]) -> dict[int, int]:
    """Client -> bytes down and up of all its visits, from a ledger; 0 bytes for none."""
    rows = query("SELECT client, SUM(bytes_down + bytes_up) FROM visits GROUP BY client ORDER BY client")
    return {int(client): int(total) for client, total in rows}


def class_accuracy(rows: Sequence[EvaluationRow]) -> dict[int, float]:
    """Class -> accuracy at the last evaluation: of the global model if it was evaluated, else over clients' examples.

    Empty without the metric ``class-accuracy``.
    """
    class_rows = [
        row for row in rows if row.metric == CLASS_ACCURACY and row.part is not None and row.value is not None
    ]
    class_rows = [row for row in class_rows if row.aggregator is None]
    class_rows = [row for row in class_rows if row.round == class_rows[-1].round]
    of_global = [row for row in class_rows if row.client == GLOBAL]
    correct: defaultdict[int, float] = defaultdict(float)
    examples: defaultdict[int, int] = defaultdict(int)
    for row in of_global or class_rows:
        label = int(row.part or 0)
        correct[label] += (row.value or 0.0) * row.count
        examples[label] += row.count
    return {label: correct[label] / examples[label] for label in sorted(examples)}


class DeviceSummary(Struct, frozen=True):
    """The scores of one kind of device, as `OverClients` has them."""

    clients: int
    mean: float
    worst_decile: float
    spread: float


class ClientSummary(Struct, frozen=True, omit_defaults=True):
    """The last evaluation, for ``run --json``."""

    clients_score: float | None = None
    """Mean over clients' models, if these were evaluated, as the next three; of accuracies, in [0, 1]"""
    worst_decile: float | None = None
    """Mean of the worst tenth, at least one client"""
    spread: float | None = None
    """Standard deviation over clients"""
    by_device: dict[str, DeviceSummary] | None = None
    """If there are several kinds"""
    values: dict[str, float | None] | None = None
    """Of whole models (`whole_by_round`), if there are any"""


def summary(
    rows: Sequence[EvaluationRow], devices: ByDevice = MappingProxyType({}), score: RunScore = OF_ACCURACY
) -> ClientSummary | None:
    """The summary of the last evaluation; None without values of clients or whole models."""
    clients, whole = last(rows, score), [row for row in rows if _is_whole(row)]
    of_last = {row.quantity.name: row.value for row in whole if row.round == whole[-1].round} if whole else None
    if clients is None:
        return None if of_last is None else ClientSummary(values=of_last)
    by_device = device_summary(at_round(devices))
    return ClientSummary(clients.mean, clients.worst_decile, clients.spread, by_device, of_last)


def device_summary(devices: Mapping[str, OverClients]) -> dict[str, DeviceSummary] | None:
    """The summary of each kind of device; None without kinds."""
    kinds = {kind: DeviceSummary(len(of.values), of.mean, of.worst_decile, of.spread) for kind, of in devices.items()}
    return kinds or None


def by_rate(
    rows: Sequence[EvaluationRow], rounds: Sequence[RoundRow], score: RunScore = OF_ACCURACY
) -> dict[float, dict[int, float]]:
    """Rate of a part of the global model -> round -> score: 1, the whole model, then the others.

    Empty if no part was evaluated.
    """
    parts: defaultdict[float, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.client == GLOBAL and row.metric == score.metric and row.rate is not None and row.value is not None:
            parts[row.rate][row.round] = row.value
    return {1.0: of_global(rows, rounds, score), **parts} if parts else {}


def of_global(
    rows: Sequence[EvaluationRow], rounds: Sequence[RoundRow], score: RunScore = OF_ACCURACY
) -> dict[int, float]:
    """Round -> score of the global model, if it is evaluated."""
    own = EvaluatedQuantity(score.metric)
    of_server = [row for row in rows if row.client == GLOBAL and row.aggregator is None and row.quantity == own]
    scores = {row.round: row.value for row in of_server if row.value is not None}
    return scores or {row.round: row.judged for row in rounds if row.judged is not None}


def of_aggregators(rows: Sequence[EvaluationRow], score: RunScore = OF_ACCURACY) -> dict[int, OverClients]:
    """Round -> the scores of aggregators' own models after it, for rounds in which these were evaluated."""
    quantity = EvaluatedQuantity(score.metric)
    values: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.aggregator is not None and row.quantity == quantity and row.value is not None:
            values[row.round].append(row.value)
    return {round: over_clients(numbers) for round, numbers in values.items()}


def whole_by_round(rows: Sequence[EvaluationRow]) -> dict[str, dict[int, float]]:
    """Name -> round -> value of the global model, or over clients.

    Accuracy, loss, numbered parts (of classes, of tensors), parts of the model, and values of aggregators' models are
    left out.
    """
    values: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if _is_whole(row) and row.value is not None and row.rate is None:
            values[row.quantity.name][row.round] = row.value
    return values


def _is_whole(row: EvaluationRow) -> bool:
    is_numbered = row.part is not None and row.part.rpartition(SUBVALUE)[2].isdigit()
    is_further = row.quantity not in (CORRECT, CROSS_ENTROPY)
    return row.client == GLOBAL and row.aggregator is None and is_further and not is_numbered


@dataclass(frozen=True)
class BestRound:
    """The evaluated round with the best value, the first of equal ones. Accuracies in [0, 1]."""

    round: int
    """As in the ledger: 0 is the first"""
    rounds: int
    """Rounds until its evaluation"""
    selected_by: SelectedBy
    """``validation``: the mean score on clients' validation examples; ``accuracy``, ``score``: the round's own"""
    accuracy: float | None
    """The round's own; None if only validation examples were evaluated"""
    score: float | None
    """The value by which the run is judged, which is the accuracy of classifiers"""
    virtual_seconds: float
    bytes: int
    """Down and up until its end, real"""
    validation_score: float | None
    """Mean over clients, as all below; None if it was not measured"""
    clients_score: float | None
    """On the evaluated split, after an adaptation if there is one"""
    before_score: float | None
    worst_decile: float | None
    spread: float | None
    """Standard deviation of ``clients_score`` over clients"""


def best_round(
    rows: Sequence[RoundRow], values: Sequence[EvaluationRow], completed: int, score: RunScore = OF_ACCURACY
) -> BestRound | None:
    """The best of these rounds, given in their order; None if none was evaluated.

    ``values``: of their evaluations; ``completed``: rounds, since a last row may be an evaluation after the last round.
    """
    rows_of: defaultdict[int, list[EvaluationRow]] = defaultdict(list)
    for value in values:
        rows_of[value.round].append(value)
    validation = {
        round: mean
        for round, evaluations in rows_of.items()
        if (mean := validation_score(evaluations, score.metric)) is not None
    }
    scores = {row.round: row.judged for row in rows if row.judged is not None}
    selecting: Mapping[int, float] = validation or scores
    if not selecting:
        return None
    choose = max if score.better is HIGHER else min
    best = choose(sorted(selecting), key=selecting.__getitem__)  # the first of equal ones
    row, point = next(pair for pair in zip(rows, progress.accumulated(rows), strict=True) if pair[0].round == best)
    after, before = (by_round(rows_of[best], score, kind).get(best) for kind in (None, BEFORE))
    return BestRound(
        round=best,
        rounds=min(point.rounds, completed),
        selected_by="validation" if validation else "accuracy" if row.score is None else "score",
        accuracy=row.accuracy,
        score=row.judged,
        virtual_seconds=point.virtual_seconds,
        bytes=point.nbytes,
        validation_score=validation.get(best),
        clients_score=None if after is None else after.mean,
        before_score=None if before is None else before.mean,
        worst_decile=None if after is None else after.worst_decile,
        spread=None if after is None else after.spread,
    )
