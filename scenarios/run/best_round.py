"""The best round of a run, chosen on validation examples where these were evaluated, and what the run had then.

Without them the best round is that of the highest accuracy, which is as optimistic as any best of many draws:
``selected_by`` tells both apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordinator.records.round_record import validation_accuracy
from coordinator.records.schema import EvaluationRow, RoundRow
from edge.protocol.messages import ACCURACY, BEFORE_ACCURACY
from scenarios.run import client_values, progress
from scenarios.run.run_folder import RunFolder

SelectedBy = Literal["validation", "accuracy"]


@dataclass(frozen=True)
class BestRound:
    """The evaluated round with the highest value, the first of equal ones. Accuracies in [0, 1]."""

    round: int
    """As in the ledger: 0 is the first"""
    rounds: int
    """Rounds until its evaluation"""
    selected_by: SelectedBy
    """``validation``: the mean accuracy on clients' validation examples; ``accuracy``: the round's own"""
    accuracy: float | None
    """The round's own; None if only validation examples were evaluated"""
    virtual_seconds: float
    """Until its end"""
    bytes: int
    """Down and up until its end, real"""
    validation_accuracy: float | None
    """Mean over clients, as all below; None if it was not measured"""
    clients_accuracy: float | None
    """On the evaluated split, after an adaptation if there is one"""
    before_accuracy: float | None
    """The same before the adaptation"""
    worst_decile: float | None
    """Of ``clients_accuracy``"""
    spread: float | None
    """Standard deviation of ``clients_accuracy`` over clients"""


def of_folder(folder: Path) -> BestRound | None:
    """The best round of a run folder; None before the first evaluation. ReportError for a folder that is not a run."""
    run = RunFolder(folder)
    run.check()
    return of_run(run)


def of_run(run: RunFolder) -> BestRound | None:
    """The best round of a run so far; None before the first evaluation."""
    return best_round(run.rounds, run.evaluations, run.completed)


def best_round(rows: Sequence[RoundRow], values: Sequence[EvaluationRow], completed: int) -> BestRound | None:
    """The best of these rounds, given in their order; None if none was evaluated.

    ``values``: of their evaluations; ``completed``: rounds, since a last row may be an evaluation after the last round.
    """
    by_round: defaultdict[int, list[EvaluationRow]] = defaultdict(list)
    for value in values:
        by_round[value.round].append(value)
    validation = {round: mean for round, own in by_round.items() if (mean := _validation(own)) is not None}
    accuracies = {row.round: row.accuracy for row in rows if row.accuracy is not None}
    selecting: Mapping[int, float] = validation or accuracies
    if not selecting:
        return None
    best = max(sorted(selecting), key=selecting.__getitem__)  # the first of equal ones
    row, point = next(pair for pair in zip(rows, progress.accumulated(rows), strict=True) if pair[0].round == best)
    after, before = (client_values.by_round(by_round[best], name).get(best) for name in (ACCURACY, BEFORE_ACCURACY))
    return BestRound(
        round=best,
        rounds=min(point.rounds, completed),
        selected_by="validation" if validation else "accuracy",
        accuracy=row.accuracy,
        virtual_seconds=point.virtual_seconds,
        bytes=point.nbytes,
        validation_accuracy=validation.get(best),
        clients_accuracy=None if after is None else after.mean,
        before_accuracy=None if before is None else before.mean,
        worst_decile=None if after is None else after.worst_decile,
        spread=None if after is None else after.spread,
    )


def _validation(values: Sequence[EvaluationRow]) -> float | None:
    return validation_accuracy((value.metric, value.value) for value in values)
