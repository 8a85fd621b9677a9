"""The values of single clients in the ledger's table ``evaluations``: mean, worst decile and spread over clients."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.records.schema import EvaluationRow
from edge.protocol.messages import ACCURACY, BEFORE_ACCURACY, GLOBAL, LOSS, SUBVALUE

CLASS_ACCURACY = "class-accuracy"
PART = 10
"""The worst decile is one in so many clients."""


@dataclass(frozen=True)
class OverClients:
    """One evaluation over all clients with examples. Of accuracies, in [0, 1]."""

    mean: float
    worst_decile: float
    """Mean of the lowest tenth of the clients, rounded down, and at least one"""
    spread: float
    """Standard deviation over clients"""
    values: tuple[float, ...]
    """Ascending"""


def over_clients(values: Sequence[float]) -> OverClients:
    """The values of one evaluation, at least one."""
    ascending = sorted(values)
    worst = ascending[: max(1, len(ascending) // PART)]
    return OverClients(
        statistics.fmean(ascending), statistics.fmean(worst), statistics.pstdev(ascending), tuple(ascending)
    )


def by_round(rows: Sequence[EvaluationRow], metric: str = ACCURACY) -> dict[int, OverClients]:
    """Round -> the clients' values of a metric after it, for rounds with any."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.client != GLOBAL and row.metric == metric and row.value is not None:
            values[row.round].append(row.value)
    return {round: over_clients(found) for round, found in sorted(values.items())}


def last(rows: Sequence[EvaluationRow]) -> OverClients | None:
    """The clients' accuracies at the last evaluation; None if there are none."""
    return next(reversed(by_round(rows).values()), None)


def before_and_after(rows: Sequence[EvaluationRow], round: int) -> list[tuple[float, float]]:
    """(accuracy before the adaptation, after it) of each client with both at the evaluation after a round."""
    before, after = (
        {row.client: row.value for row in rows if (row.round, row.metric) == (round, name) and row.value is not None}
        for name in (BEFORE_ACCURACY, ACCURACY)
    )
    return [(value, after[client]) for client, value in before.items() if client in after]


def last_of_each(rows: Sequence[EvaluationRow]) -> dict[int, float]:
    """Client -> its accuracy at the last evaluation over clients."""
    own = [row for row in rows if row.client != GLOBAL and row.metric == ACCURACY and row.value is not None]
    return {row.client: row.value for row in own if row.round == own[-1].round and row.value is not None}


def nbytes(query: Callable[[str], Sequence[Sequence[Any]]]) -> dict[int, int]:
    """Client -> bytes down and up of all its visits, from a ledger; 0 bytes for none."""
    rows = query("SELECT client, SUM(bytes_down + bytes_up) FROM visits GROUP BY client ORDER BY client")
    return {int(client): int(total) for client, total in rows}


def class_accuracy(rows: Sequence[EvaluationRow]) -> dict[int, float]:
    """Class -> accuracy at the last evaluation: of the global model if it was evaluated, else over clients' examples.

    Empty without the metric ``class-accuracy``.
    """
    found = [row for row in rows if row.metric.startswith(CLASS_ACCURACY + SUBVALUE) and row.value is not None]
    found = [row for row in found if row.round == found[-1].round]
    of_global = [row for row in found if row.client == GLOBAL]
    correct: defaultdict[int, float] = defaultdict(float)
    examples: defaultdict[int, int] = defaultdict(int)
    for row in of_global or found:
        label = int(row.metric.partition(SUBVALUE)[2])
        correct[label] += (row.value or 0.0) * row.count
        examples[label] += row.count
    return {label: correct[label] / examples[label] for label in sorted(examples)}


def summary(rows: Sequence[EvaluationRow]) -> Mapping[str, Any] | None:
    """Of the last evaluation, for ``run --json``: the accuracies of its clients, and values of whole models.

    Mean, worst decile and spread of the accuracies, if clients' models were evaluated; ``values`` if there are any.
    """
    found, values = last(rows), whole_values(rows)
    accuracies = (
        {}
        if found is None
        else {"clients_accuracy": found.mean, "worst_decile": found.worst_decile, "spread": found.spread}
    )
    return {**accuracies, **({"values": values} if values else {})} or None


def whole_values(rows: Sequence[EvaluationRow]) -> dict[str, float | None]:
    """Name -> value of the global model, or over clients, at the last evaluation with such values.

    Accuracy, loss, and numbered parts (of classes, of tensors) are left out.
    """
    found = [row for row in rows if _is_whole(row)]
    return {row.metric: row.value for row in found if row.round == found[-1].round}


def whole_by_round(rows: Sequence[EvaluationRow]) -> dict[str, dict[int, float]]:
    """Name -> round -> value of the global model, or over clients, of the metrics of `whole_values`."""
    values: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if _is_whole(row) and row.value is not None:
            values[row.metric][row.round] = row.value
    return values


def _is_whole(row: EvaluationRow) -> bool:
    is_part = row.metric.rpartition(SUBVALUE)[2].isdigit()
    return row.client == GLOBAL and row.metric not in (ACCURACY, LOSS) and not is_part
