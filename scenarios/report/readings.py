"""Readings: the scalars that tables, tests and figures take from a run, with heading, unit and better direction.

A reading is a function of a run's progress (`progress.Trail`), or of the whole record. `until` and `within` make those
that depend on a target or a budget. A table that needs another heading has a copy with `replace`.

    BEST.value(run.trail)                              0.8712
    until(VIRTUAL_SECONDS, 0.9).over_seeds(trails)     Mean(mean=81.2, .., half_width=3.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from coordinator.rounds import amounts
from coordinator.rounds.amounts import Amount
from edge.protocol.better import HIGHER, LOWER, Better
from scenarios.report import columns
from scenarios.report.columns import COUNT, FLOPS, MISSING, MONEY, PERCENT, POINTS, SECONDS, Quantity
from scenarios.report.run_reader import RecordedRun
from scenarios.run.client_values import BestRound, OverClients
from scenarios.run.progress import Mean, Trail
from scenarios.run.run_records import PaidRecord
from scenarios.run.score import OF_ACCURACY, RunScore

Source = TypeVar("Source")
Other = TypeVar("Other")
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Reading(Generic[Source]):
    """A named scalar of a run."""

    key: str
    """Its name in results and CSV files"""
    heading: str
    quantity: Quantity
    value: Callable[[Source], float | None]
    """Its value, in SI units; None for a run that has none"""
    better: Better | None = None
    """None where runs of different length cannot be compared"""
    missing: str = MISSING
    """Text in place of a value"""

    def over_seeds(self, runs: Iterable[Source]) -> Mean:
        """Mean, deviation, half of the 95 % interval, and values by seed."""
        return Mean.of([self.value(run) for run in runs])

    def of(self, part: Callable[[Other], Source | None]) -> Reading[Other]:
        """The reading of a whole of which ``part`` gives what this one reads, if there is any."""

        def value(whole: Other) -> float | None:
            source = part(whole)
            return None if source is None else self.value(source)

        return Reading(self.key, self.heading, self.quantity, value, self.better, self.missing)


def _known(amount: float) -> float | None:
    return None if math.isnan(amount) else amount


AMOUNTS = {amount.key: amount for amount in amounts.of("clients")}
OF_SOME = {amount.key: amount for amount in amounts.of("some")}
"""Of messages between aggregators and what is above them, of prices, of a carbon intensity and of privacy, beside
`AMOUNTS`: clients' bytes to aggregators are none"""


def quantity(amount: Amount) -> Quantity:
    """How tables write an amount."""
    return columns.OF_UNIT[amount.unit]


ACCURACY = Reading("accuracy", "accuracy, final", PERCENT, attrgetter("final"), HIGHER)
BEST = Reading("best_accuracy", "accuracy, best", PERCENT, attrgetter("best"), HIGHER)


def total_of(amount: Amount) -> Reading[Trail]:
    """What the whole run has spent, as a reading."""
    return Reading(amount.key, amount.heading, quantity(amount), lambda trail: _known(amount.total(trail)))


def of_some(trails: Iterable[Trail]) -> list[Amount]:
    """Those of `OF_SOME` that any of these runs has spent."""
    every = list(trails)
    return [amount for amount in OF_SOME.values() if any(amount.total(trail) > 0 for trail in every)]


SCORE = Quantity({"": 1})
"""Values of a metric in units of its own"""


def quantity_of(score: RunScore) -> Quantity:
    """How tables write scores."""
    return PERCENT if score.is_share else SCORE


def differences_of(score: RunScore) -> Quantity:
    """How tables write differences of scores: those of shares in percentage points."""
    return POINTS if score.is_share else SCORE.of_differences


def of_score(score: RunScore) -> tuple[Reading[Trail], Reading[Trail]]:
    """`ACCURACY` and `BEST`, of runs that are judged by another metric."""
    if score == OF_ACCURACY:
        return ACCURACY, BEST
    held = quantity_of(score)
    final = Reading[Trail]("score", f"{score.metric}, final", held, attrgetter("final"), score.better)
    return final, Reading("best_score", f"{score.metric}, best", held, attrgetter("best"), score.better)


def until(amount: Amount, target: float, score: RunScore = OF_ACCURACY) -> Reading[Trail]:
    """The amount spent until the first round whose score reached the target, of accuracies in [0, 1]."""

    def spent(trail: Trail) -> float | None:
        point = trail.until(target)
        return None if point is None else _known(amount.at(point))

    heading = f"{amount.heading} to {score.text_of_target(target)}"
    return Reading(f"{amount.key}_to_{target:g}", heading, quantity(amount), spent, amount.better, NOT_REACHED)


def within(amount: Amount, limit: float, score: RunScore = OF_ACCURACY) -> Reading[Trail]:
    """The score when it was last evaluated within a budget, an amount in SI units that has a ``kind``."""
    text = columns.cells(quantity(amount), [limit])[0]
    return Reading(
        f"{score.metric}_at_{limit:g}_{amount.key}",
        f"{score.metric} at {text}" + (f" {amount.heading}" if amount is amounts.ROUNDS else ""),
        quantity_of(score),
        lambda trail: trail.within({amount: limit}).final,
        score.better,
    )


# --- readings of a whole record -----------------------------------------------------------------------------------


def of_field(name: str, heading: str, quantity: Quantity, better: Better | None = None) -> Reading[Any]:
    """A field of what is read."""
    return Reading(name, heading, quantity, attrgetter(name), better)


def total(column: str, heading: str, quantity: Quantity) -> Reading[RecordedRun]:
    """The sum of a column of the ledger's table ``rounds``."""
    return Reading(column, heading, quantity, lambda run: run.total(column))


def _paid(run: RecordedRun) -> PaidRecord | None:
    """The costs of the data and energy of a run's clients (``fleet.price``); None without prices, or before its end."""
    paid = (run.summary or {}).get("paid")
    return None if paid is None else PaidRecord.model_validate(paid)


COMPLETED: Reading[RecordedRun] = of_field("completed", "rounds", COUNT)
WORK = total("flops", "FLOPs", FLOPS)
NOMINAL_WORK = total("nominal_flops", "nominal", FLOPS)
PAID: Reading[RecordedRun] = Reading(
    "paid",
    "of the run",
    MONEY,
    lambda run: None if (paid := _paid(run)) is None else paid.data + paid.energy,
    LOWER,
)
PAID_A_MONTH: Reading[RecordedRun] = Reading(
    "paid_month", "a month", MONEY, lambda run: None if (paid := _paid(run)) is None else paid.month["price"], LOWER
)
CO2E: Reading[RecordedRun] = replace(total_of(amounts.CO2E).of(attrgetter("trail")), better=LOWER)
WALL_SECONDS: Reading[RecordedRun] = Reading("wall_seconds", "wall time", SECONDS, RecordedRun.wall_seconds)

WORST_DECILE = "worst_decile"


def worst_decile(score: RunScore) -> Reading[OverClients]:
    """Of the scores of clients' models."""
    return of_field(WORST_DECILE, "worst decile", quantity_of(score), score.better)


def over_clients(score: RunScore) -> tuple[Reading[OverClients], ...]:
    """Of the scores of clients' models."""
    held = quantity_of(score)
    return (
        Reading("clients", "clients", COUNT, lambda found: len(found.values)),
        of_field("mean", "mean", held, score.better),
        worst_decile(score),
        of_field("spread", "spread", held, LOWER),
    )


def worst_device(score: RunScore) -> Reading[Mapping[str, float]]:
    """Of the mean scores of kinds of devices."""
    worst = min if score.better is HIGHER else max
    held = quantity_of(score)
    return Reading(
        "worst_device", "worst device", held, lambda means: worst(means.values(), default=None), score.better
    )


def at_best_round(score: RunScore) -> tuple[Reading[BestRound], ...]:
    """Of the round with the best score on validation examples."""
    held = quantity_of(score)
    return (
        of_field("rounds", "round", COUNT),
        of_field("virtual_seconds", "virtual time", SECONDS),
        of_field("bytes", "bytes, real", columns.BYTES),
        of_field("validation_score", "validation", held, score.better),
        of_field("clients_score", "mean", held, score.better),
        of_field("before_score", "mean before adaptation", held, score.better),
        of_field(WORST_DECILE, "worst decile", held, score.better),
        of_field("spread", "spread", held, LOWER),
    )
