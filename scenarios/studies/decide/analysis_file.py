"""The file of an analysis: read key by key, since a decision's folder may come from anyone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from scenarios.run.run_records import read_json
from scenarios.studies.decide.answer import Change, Findings, Place, Point
from scenarios.studies.decide.objective import Objective


class Asked(Struct, frozen=True):
    """All that an analysis is made of."""

    format: int
    objective: Objective
    draws: int
    models: dict[str, list[str]]
    """Finalist -> hash of the last model, by seed"""
    rounds: dict[int, int]
    """Seed -> until the model that is scored"""


class AnalysisRecord(Struct, frozen=True):
    """The file of an analysis."""

    of: Asked
    found: Findings


def findings(file: Path, finalists: Sequence[str]) -> Findings | None:
    """Those of the analysis of these finalists; None without its file, or where no decision has written it."""
    with suppress(ValueError, OSError):
        return read(file, finalists).found
    return None


def read(file: Path, finalists: Sequence[str]) -> AnalysisRecord:
    """The file. ValueError, with the key, for values that no decision writes, and for other finalists."""
    record = msgspec.convert(read_json(file), AnalysisRecord, str_keys=True)
    if record.found.test is None:
        raise ValueError("found: has no score on test examples")
    if others := _names(record.found) - {*finalists}:
        raise ValueError(f"found: names other candidates: {', '.join(sorted(others))}")
    return record


def _names(found: Findings) -> set[str]:
    """Names of finalists in it."""
    axes = (found.flips or {}).values()
    points: list[Point | Change] = [*(found.robust or []), *(point for axis in axes for point in axis.points)]
    places: list[Point | Change | Place] = [*(found.map or []), *points]
    names = {place.chosen for place in places if place.chosen is not None}
    names |= {name for place in places for name in place.unknown}
    names |= {name for point in points for name in point.values}
    than = set() if found.probability is None else {found.probability.than}
    return names | than | found.not_replayed.keys()
