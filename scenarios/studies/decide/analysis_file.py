"""The file of an analysis: read key by key, since a decision's folder may come from anyone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from scenarios.run.run_records import Count, Number, Record, read_json


class _Chance(Record):
    than: str
    probability: Number | None
    low: Number | None
    high: Number | None
    by_seed: list[Number]
    draws: Count


class _Figure(Record):
    row: str
    figure: str
    basis: str
    share: Number


class _Choice(Record):
    chosen: str | None
    unknown: list[str]


class _Point(_Choice):
    at: Number
    values: dict[str, Number | None]


class _Axis(Record):
    words: str
    points: list[_Point]


class _Place(_Choice):
    links: Number
    devices: Number


class _Change(_Point):
    change: str
    how: str


class _OnTest(Record):
    seeds: list[Count]
    rounds: list[Count]
    values: list[Number | None]
    mean: Number | None
    deviation: Number | None
    half_width: Number | None


class _Findings(Record):
    """What `Analysis.found` and `on_test` give."""

    model_config = ConfigDict(extra="forbid", strict=True)

    not_replayed: dict[str, str]
    test: _OnTest
    probability: _Chance | None = None
    rests_on: list[_Figure] = Field(default_factory=list)
    flips: dict[str, _Axis] = Field(default_factory=dict)
    map: list[_Place] = Field(default_factory=list)
    robust: list[_Change] = Field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Names of finalists in it."""
        points = [*self.map, *self.robust, *(point for axis in self.flips.values() for point in axis.points)]
        valued = [point for point in points if isinstance(point, _Point)]
        chosen = {each.chosen for each in points if each.chosen is not None}
        others = {name for each in points for name in each.unknown} | {name for each in valued for name in each.values}
        than = set[str]() if self.probability is None else {self.probability.than}
        return chosen | others | than | self.not_replayed.keys()


class AnalysisRecord(Record):
    """The file of an analysis."""

    of: dict[str, Any]
    """What it was made of"""
    found: _Findings


def findings(file: Path, finalists: Sequence[str]) -> dict[str, Any]:
    """Those of the analysis of these finalists; nothing without its file, or where no decision has written it."""
    with suppress(ValueError, OSError):
        return dict(read(file, finalists)["found"])
    return {}


def read(file: Path, finalists: Sequence[str]) -> dict[str, Any]:
    """The file's tables. ValueError, with the key, for values that no decision writes, and for other finalists."""
    tables = read_json(file, AnalysisRecord)
    if others := _Findings.model_validate(tables["found"]).names - {*finalists}:
        raise ValueError(f"found: names other candidates: {', '.join(sorted(others))}")
    return tables
