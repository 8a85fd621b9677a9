"""The times of a run in draws of its uncertain figures: the file ``uncertainty.json`` of a run folder.

Draws of one seed have the same factors in all runs, so the draws of two runs are compared in pairs. A file is read as
one that anybody may have made. Nothing is computed here but quantiles and shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from edge.protocol.files import opened, write_text
from scenarios.config.errors import ReportError
from scenarios.report.columns import MISSING, SECONDS, Column
from scenarios.report.run_reader import RecordedRun

FILE = "uncertainty.json"
LARGEST_NBYTES = 4_000_000
MOST_DRAWS = 10_000
LOW, HIGH = 0.05, 0.95
"""Quantiles of an interval."""

Times = Annotated[list[Annotated[float, Field(ge=0)] | None], Field(min_length=1, max_length=MOST_DRAWS)]
"""Seconds by draw."""


def _printable(text: str) -> str:
    """``text``; ValueError for characters that a terminal obeys."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Text = Annotated[str, Field(max_length=2000), AfterValidator(_printable)]


class Interval(NamedTuple):
    """Quantiles of the draws in which a time is known."""

    low: float
    median: float
    high: float


class DrawnTimes(BaseModel):
    """The times of one run in each draw, and the arguments that they follow from."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)]
    sigmas: dict[Text, Annotated[float, Field(ge=0)]]
    """Basis of a figure -> sigma of its factor"""
    noise: float | Literal["measured"]
    """That of the transfers, as `costmodel.fleet.variation.Noise`"""
    target_accuracy: float | None
    model_sha256: Text
    """The run's model after its last round: a run that went on has another"""
    virtual_seconds: Times
    """End of the run; None: other visits would have been trained in this draw"""
    time_to_target_s: Times
    """None: not reached, or other visits would have been trained"""
    reason: Text | None
    """Why other visits would have been trained, of the first such draw"""

    @model_validator(mode="after")
    def _fit(self) -> DrawnTimes:
        pairs = list(zip(self.virtual_seconds, self.time_to_target_s, strict=False))
        if len(self.virtual_seconds) != len(self.time_to_target_s):
            raise ValueError("virtual_seconds and time_to_target_s have not the same number of draws")
        if any(reached is not None and (end is None or reached > end) for end, reached in pairs):
            raise ValueError("time_to_target_s is later than the end of the run")
        if all(end is None for end, _ in pairs):
            raise ValueError("virtual_seconds has no draw with a time")
        return self

    @property
    def draws(self) -> int:
        """All draws."""
        return len(self.virtual_seconds)

    @property
    def left_out(self) -> int:
        """Draws in which other visits would have been trained."""
        return self.virtual_seconds.count(None)

    @property
    def reached(self) -> float:
        """Share of the draws with a time in which the target was reached, in [0, 1]."""
        return (self.draws - self.time_to_target_s.count(None)) / (self.draws - self.left_out)

    @property
    def to_target(self) -> Interval | None:
        """Of the draws that reached the target; None if none did."""
        return interval(self.time_to_target_s)

    def around(self, key: str, target: float | None) -> Interval | None:
        """The interval of ``virtual_seconds`` or ``time_to_target_s``; None if the draws have another target."""
        if key == "virtual_seconds":
            return self.to_end
        return self.to_target if target == self.target_accuracy else None

    @property
    def to_end(self) -> Interval:
        """Of the virtual seconds of the whole run."""
        found = interval(self.virtual_seconds)
        assert found is not None
        return found


def interval(times: Sequence[float | None]) -> Interval | None:
    """The quantiles of the times that are known; None if none is."""
    known = [time for time in times if time is not None]
    return Interval(*np.quantile(known, [LOW, 0.5, HIGH]).tolist()) if known else None


class Chance(NamedTuple):
    """The probability that one run reaches the target before another."""

    probability: float
    draws: int
    """Draws in which both runs have a time"""


def chance(first: DrawnTimes | None, second: DrawnTimes | None) -> Chance | None:
    """Over the draws in which both have a time; None without a target, or without the same draws of both.

    A run that does not reach the target in a draw is behind one that does; equal times, and two runs that both do not
    reach it, count one half.
    """
    if first is None or second is None:
        return None
    arguments = [(each.seed, each.draws, each.sigmas, each.target_accuracy) for each in (first, second)]
    if arguments[0] != arguments[1] or first.target_accuracy is None:
        return None
    is_there = [None not in ends for ends in zip(first.virtual_seconds, second.virtual_seconds, strict=True)]
    if not any(is_there):
        return None
    one, other = (np.array(each.time_to_target_s, np.float64)[is_there] for each in (first, second))
    one, other = np.nan_to_num(one, nan=np.inf), np.nan_to_num(other, nan=np.inf)
    return Chance(float(((one < other) + 0.5 * (one == other)).mean()), int(sum(is_there)))


def chances(runs: Sequence[DrawnTimes]) -> dict[tuple[int, int], Chance]:
    """(first, second) -> the probability that the first is before the second, for the places of all pairs of runs."""
    pairs = {(i, j): chance(runs[i], runs[j]) for i, j in combinations(range(len(runs)), 2)}
    return {places: found for places, found in pairs.items() if found is not None}


def with_intervals(
    seconds: Sequence[float | None], around: Sequence[Interval | None], missing: str = MISSING
) -> list[str]:
    """A column of times, each with the ends of its interval if it has one: ``12.3 min (10.1 to 15.0)``."""
    column = Column.of(SECONDS, [*seconds, *(end for ends in around if ends for end in (ends.low, ends.high))])
    return [
        column.text(time, missing=missing)
        + ("" if ends is None or time is None else f" ({column.number(ends.low)} to {column.number(ends.high)})")
        for time, ends in zip(seconds, around, strict=True)
    ]


# --- the file ---------------------------------------------------------------------------------------------------------


def write(folder: Path, times: DrawnTimes) -> None:
    """Write the file into a run folder; OSError."""
    write_text(folder / FILE, times.model_dump_json(indent=1))


def read(folder: Path, model_sha256: str) -> DrawnTimes | None:
    """The times of a run whose last model has this hash; None without the file, or if the run has gone on since.

    ReportError, naming the file, for one that is damaged, too large or a link.
    """
    path = folder / FILE
    try:
        with opened(path) as file:
            content = file.read(LARGEST_NBYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_NBYTES:
        raise ReportError(f"{path} cannot be read: it is larger than {LARGEST_NBYTES:,} bytes")
    try:
        times = DrawnTimes.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f" {part}:" for part in first["loc"])
        raise ReportError(f"{path} is damaged:{where} {first['msg']}; replay the run with --draws again") from None
    return times if times.model_sha256 == model_sha256 else None


def of_runs(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, DrawnTimes]]:
    """The runs that have such times, with them; ReportError as of `read`."""
    found = [(run, read(run.folder, run.rounds[-1].model_sha256)) for run in runs if run.rounds]
    return [(run, times) for run, times in found if times is not None]
