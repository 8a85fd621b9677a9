"""The times of a run in draws of its uncertain figures: the file ``uncertainty.json`` of a run folder.

Draws of one seed have the same factors in all runs, so the draws of two runs are compared in pairs. A replay holds the
training of its run fixed: what another training would give follows from the runs of several seeds (`TimesOverSeeds`). A
file is read as one that anybody may have made. Nothing is computed here but quantiles and shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from edge.protocol.files import opened, write_text
from scenarios.config.errors import ReportError
from scenarios.report.columns import MISSING, SECONDS, Column
from scenarios.report.readings import NOT_REACHED
from scenarios.report.run_reader import RunGroup

FILE = "uncertainty.json"
LARGEST_NBYTES = 4_000_000
MOST_DRAWS = 10_000
LOW, HIGH = 0.05, 0.95
"""Quantiles of an interval."""
GIVEN = "given this training"
"""Of figures that follow from the runs of one seed: another training may give others"""
LARGEST_LOGARITHM = 700.0
"""Of an interval's ends: the exponential of 710 is no float"""

Times = Annotated[list[Annotated[float, Field(ge=0)] | None], Field(min_length=1, max_length=MOST_DRAWS)]
"""Seconds by draw."""


def _printable(text: str) -> str:
    """``text``; ValueError for characters that a terminal obeys."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Text = Annotated[str, Field(max_length=2000), AfterValidator(_printable)]


class Interval(NamedTuple):
    """Quantiles of a time."""

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
    def arguments(self) -> tuple[int, int, Mapping[str, float], float | None]:
        """What runs must have in common to be compared or pooled: seed, number and sigmas of the draws, and target."""
        return self.seed, self.draws, self.sigmas, self.target_accuracy


@dataclass(frozen=True)
class TimesOverSeeds:
    """The times of one method in the same draws, by the seed of its run.

    A draw takes each of the seeds with the same probability, so that every share is a mean over seeds. The intervals
    are for the run of a further seed; those of one seed are for another replay of the same training.
    """

    by_seed: Mapping[int, DrawnTimes]
    """Seed of a run -> its times; all of the same `DrawnTimes.arguments`"""

    @property
    def target_accuracy(self) -> float | None:
        return next(iter(self.by_seed.values())).target_accuracy

    @property
    def reached(self) -> float:
        """Share of the draws with a time in which the target was reached, in [0, 1]."""
        return sum(times.reached for times in self.by_seed.values()) / len(self.by_seed)

    @property
    def left_out(self) -> int:
        """Draws in which other visits would have been trained, of all seeds."""
        return sum(times.left_out for times in self.by_seed.values())

    @property
    def to_target(self) -> Interval | None:
        """Of the seeds and draws that reached the target: None if none did, or one of several seeds alone."""
        return interval([times.time_to_target_s for times in self.by_seed.values()])

    @property
    def to_end(self) -> Interval:
        """Of the virtual seconds of the whole run."""
        found = interval([times.virtual_seconds for times in self.by_seed.values()])
        assert found is not None
        return found

    def around(self, key: str, target: float | None) -> Interval | None:
        """The interval of ``virtual_seconds`` or ``time_to_target_s``; None if the draws have another target."""
        if key == "virtual_seconds":
            return self.to_end
        return self.to_target if target == self.target_accuracy else None


def interval(times: Sequence[Sequence[float | None]]) -> Interval | None:
    """The interval that holds the time of a further seed's run with 90 %: of times (seeds, draws).

    In logarithms, its median is the mean of the seeds' medians. An end is as far from it as two independent distances
    give, sqrt(a^2 + b^2). a is that of the draws from the median of their seed. b is that of a further value of a
    normal distribution of which n are known: the quantile of Student's t with n - 1 degrees of freedom times
    s * sqrt(1 + 1 / n), s being the deviation of the seeds' medians (Hahn and Meeker, Statistical Intervals, 1991).

    Of one seed, the quantiles of its draws. Seeds without a known time are left out: None if there is no other, and if
    there is one of several, from which no deviation follows.
    """
    known = [np.array([time for time in draws if time is not None]) for draws in times]
    known = [draws for draws in known if draws.size]
    if len(known) < min(2, len(times)):
        return None
    if len(known) == 1:
        return Interval(*np.quantile(known[0], [LOW, 0.5, HIGH]).tolist())
    from scipy.special import stdtrit  # which a run does not load

    logarithms = [np.log(np.maximum(draws, np.finfo(np.float64).tiny)) for draws in known]
    medians = np.array([np.median(draws) for draws in logarithms])
    of_draws = np.concatenate([draws - median for draws, median in zip(logarithms, medians, strict=True)])
    of_seeds = stdtrit(len(known) - 1, HIGH) * medians.std(ddof=1) * np.sqrt(1 + 1 / len(known))
    below, above = np.hypot(np.quantile(of_draws, [LOW, HIGH]), of_seeds)
    ends = medians.mean() + np.array([-below, 0.0, above])
    return Interval(*np.exp(np.clip(ends, -LARGEST_LOGARITHM, LARGEST_LOGARITHM)).tolist())


class Chance(NamedTuple):
    """The probability that one method reaches the target before another."""

    probability: float
    """Mean over the seeds"""
    low: float | None
    """Lower end of the 90 % interval that so many seeds leave; None for one seed"""
    high: float | None
    draws: int
    """Draws in which both runs of a seed have a time, of all seeds"""
    by_seed: Mapping[int, float]
    """Seed that both have runs of -> the share of its draws in which the first is before the second"""


def chance(first: TimesOverSeeds | None, second: TimesOverSeeds | None) -> Chance | None:
    """Over the pairs of the same seed and draw in which both have a time; None if there is none, or no target.

    A run that does not reach the target in a draw is behind one that does; equal times, and two runs that both do not
    reach it, count one half. The interval is that of Clopper and Pearson (Biometrika 26, 1934) for as many independent
    trials as there are seeds; shares between 0 and 1 vary less than such trials.
    """
    if first is None or second is None:
        return None
    by_seed: dict[int, float] = {}
    count = 0
    for seed in sorted(first.by_seed.keys() & second.by_seed.keys()):
        one, other = first.by_seed[seed], second.by_seed[seed]
        if one.arguments != other.arguments or one.target_accuracy is None:
            continue
        is_there = [None not in ends for ends in zip(one.virtual_seconds, other.virtual_seconds, strict=True)]
        if any(is_there):
            a, b = (np.array(each.time_to_target_s, np.float64)[is_there] for each in (one, other))
            a, b = np.nan_to_num(a, nan=np.inf), np.nan_to_num(b, nan=np.inf)
            by_seed[seed] = float(((a < b) + 0.5 * (a == b)).mean())
            count += sum(is_there)
    return over_seeds(by_seed, count) if by_seed else None


def over_seeds(by_seed: Mapping[int, float], draws: int) -> Chance:
    """The probability over these seeds, each of which has a share of its draws, with its interval as of `chance`."""
    seeds, before = len(by_seed), sum(by_seed.values())
    ends: tuple[float | None, float | None] = (None, None)
    if seeds > 1:
        from scipy.special import betaincinv  # which a run does not load

        ends = (
            float(betaincinv(before, seeds - before + 1, LOW)) if before else 0.0,
            float(betaincinv(before + 1, seeds - before, HIGH)) if before < seeds else 1.0,
        )
    return Chance(before / seeds, *ends, draws, by_seed)


def chances(methods: Sequence[TimesOverSeeds]) -> dict[tuple[int, int], Chance]:
    """(first, second) -> the probability that the first is before the second, for the places of all pairs."""
    pairs = {(i, j): chance(methods[i], methods[j]) for i, j in combinations(range(len(methods)), 2)}
    return {places: found for places, found in pairs.items() if found is not None}


def scope(seeds: int) -> str:
    """What a figure of so many seeds holds for, in words."""
    return f"{seeds} seeds" if seeds > 1 else GIVEN


def probability_text(chance: Chance) -> str:
    """``43.2 % (17 to 73 %)``; of one seed without an interval."""
    around = (
        "" if chance.low is None or chance.high is None else f" ({100 * chance.low:.0f} to {100 * chance.high:.0f} %)"
    )
    return f"{100 * chance.probability:.1f} %{around}"


def median_texts(methods: Sequence[TimesOverSeeds], key: str) -> list[str]:
    """``virtual_seconds`` or ``time_to_target_s`` of each method: the median with its interval, in one unit."""
    around = [each.around(key, each.target_accuracy) for each in methods]
    texts = with_intervals([ends and ends.median for ends in around], around, NOT_REACHED)
    return [
        "by one seed" if ends is None and each.reached else text
        for each, ends, text in zip(methods, around, texts, strict=True)
    ]


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


def of_groups(groups: Sequence[RunGroup]) -> list[tuple[RunGroup, TimesOverSeeds]]:
    """The groups of which runs have such times, with them; ReportError as of `read`.

    A run whose draws have other `DrawnTimes.arguments` than the first of its group is left out.
    """
    found = []
    for group in groups:
        by_seed: dict[int, DrawnTimes] = {}
        for run in group.runs:
            times = read(run.folder, run.rounds[-1].model_sha256) if run.rounds else None
            if times is not None and all(times.arguments == other.arguments for other in by_seed.values()):
                by_seed[run.seed] = times
        if by_seed:
            found.append((group, TimesOverSeeds(by_seed)))
    return found
