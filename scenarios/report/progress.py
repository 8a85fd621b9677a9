"""What a run had spent and reached after each round, and what it was worth at a budget or a target. Reads ledgers only.

Accuracy at a budget is that of the last evaluated round whose running total lies within it. It is not the best so
far: who has that budget does not know which of the rounds was best on the test set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.records.store import read


@dataclass(frozen=True)
class ProgressPoint:
    """Running totals after one round."""

    rounds: int
    """So far; 1 after the first."""
    virtual_seconds: float
    nbytes: int
    """Down and up, real."""
    nominal_nbytes: float
    """As FedBR's Eq. 3 charges them."""
    accuracy: float | None
    """None where the round was not evaluated."""
    best: float
    """Best accuracy so far; 0 before the first evaluation."""


Trail = tuple[ProgressPoint, ...]

AMOUNTS = {"bytes": "nbytes", "time": "virtual_seconds", "nominal": "nominal_nbytes", "rounds": "rounds"}
"""What a budget can be of -> the field of `ProgressPoint` that counts it."""
TARGET = "accuracy"
"""Stands beside `AMOUNTS` in what a run is needed for: a best accuracy to be reached."""


@dataclass(frozen=True)
class BudgetPoint:
    """What one run was worth at one budget."""

    point: ProgressPoint | None
    """The last evaluated round within the budget; None if there is none."""
    used_up: bool
    """Whether the run went on to the budget; if not, a longer run might have been worth more."""

    @property
    def accuracy(self) -> float | None:
        """In [0, 1]."""
        return self.point.accuracy if self.point else None


def trail(folder: Path) -> Trail:
    """The rounds that a run folder's ledger holds."""
    points, nbytes, nominal, best = [], 0, 0.0, 0.0
    for row in read(folder / "ledger.sqlite", "SELECT * FROM rounds ORDER BY round"):
        nbytes += row["bytes_down"] + row["bytes_up"]
        nominal += row["nominal_bytes"]
        best = max(best, row["accuracy"] or 0.0)
        points.append(ProgressPoint(row["round"] + 1, float(row["end_s"]), nbytes, nominal, row["accuracy"], best))
    return tuple(points)


def at_budget(points: Trail, kind: str, limit: float) -> BudgetPoint:
    """The last evaluated round within ``limit`` of ``kind``, one of `AMOUNTS`."""
    spent = [float(getattr(point, AMOUNTS[kind])) for point in points]
    within = [point for point, amount in zip(points, spent, strict=True) if amount <= limit]
    scored = [point for point in within if point.accuracy is not None]
    return BudgetPoint(scored[-1] if scored else None, bool(spent) and spent[-1] >= limit)


def to_target(points: Trail, accuracy: float) -> ProgressPoint | None:
    """The first round that reached the accuracy; None if none did."""
    return next((point for point in points if point.accuracy is not None and point.accuracy >= accuracy), None)


def reached(points: Trail, needs: Mapping[str, float]) -> bool:
    """Whether a run has gone on to every need: amounts of `AMOUNTS` to be used up, and `TARGET` to be reached."""
    if not points:
        return False
    reached = {kind: float(getattr(points[-1], name)) for kind, name in AMOUNTS.items()} | {TARGET: points[-1].best}
    return all(reached[kind] >= need for kind, need in needs.items())


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample deviation; both are None unless every seed has a value, and the deviation of one seed is None."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    whole = bool(known) and len(known) == len(values)
    return {
        "mean": statistics.fmean(known) if whole else None,
        "deviation": statistics.stdev(known) if whole and len(known) > 1 else None,
        "values": list(values),
    }
