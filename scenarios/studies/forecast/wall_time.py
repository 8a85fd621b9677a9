"""Wall-clock arithmetic of a study: seconds of a round from measured paces, rounds that a run needs, and time left.

Nothing is run or measured here: `scenarios.studies.forecast.duration` measures.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from coordinator.records.store import has_rounds, read
from costmodel.units import format_seconds
from scenarios.experiment.run_set import PlannedRun, RunSet, known_folder, pending
from scenarios.run.progress import AMOUNTS, TARGET, Trail, trail


@dataclass(frozen=True)
class MeasuredRound:
    """One round of a short run."""

    seconds: float
    flops: Sequence[float]
    """Of each visit that was trained."""
    is_evaluated: bool


@dataclass(frozen=True)
class Pace:
    """The speed of this machine in one kind of run."""

    training: float
    """Seconds per FLOP of the worker that has most to do, while all work."""
    evaluation: float
    """Seconds per FLOP of an evaluation that all workers share."""


@dataclass(frozen=True)
class RoundWork:
    """The work of a run's rounds."""

    cohorts: Sequence[Sequence[float]]
    """FLOPs of each visit, in several typical rounds."""
    evaluation: float
    """FLOPs of one evaluation."""
    every: int
    """Rounds from one evaluation to the next."""


@dataclass(frozen=True)
class RunDuration:
    """How long a run of a study is expected to take."""

    name: str
    rounds: int
    """For its needs; as many as the run may have, if it has to reach an accuracy."""
    seconds_per_round: float

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.rounds * self.seconds_per_round


def busiest(flops: Sequence[float], workers: int) -> float:
    """The FLOPs of the worker that has most to do, if each takes the longest visit that is left."""
    loads = [0.0] * workers
    for visit in sorted(flops, reverse=True):
        heapq.heapreplace(loads, loads[0] + visit)
    return max(loads)


def pace(rounds: Sequence[MeasuredRound], workers: int, evaluation_flops: float) -> Pace:
    """The pace of rounds of which some were evaluated, each with ``evaluation_flops``, and others were not."""
    plain = [one for one in rounds if not one.is_evaluated]
    scored = [one for one in rounds if one.is_evaluated]
    training = sum(one.seconds for one in plain) / sum(busiest(one.flops, workers) for one in plain)
    left = sum(one.seconds - training * busiest(one.flops, workers) for one in scored)
    return Pace(training, max(0.0, left) / (len(scored) * evaluation_flops))


def round_seconds(work: RoundWork, pace: Pace, workers: int) -> float:
    """Wall seconds of a round, the mean over typical ones, with its share of an evaluation."""
    training = fmean(busiest(cohort, workers) for cohort in work.cohorts) * pace.training
    return training + work.evaluation * pace.evaluation / work.every


def rounds_needed(needs: Mapping[str, float], most: int, spent: Mapping[str, float]) -> int:
    """Rounds until the needs of a run are met, at most ``most``; ``spent``: what one round takes of each kind.

    It is not foreseen when an accuracy is reached: a run that needs one counts with ``most`` rounds.
    """
    if not needs or TARGET in needs or any(spent.get(kind, 0.0) <= 0 for kind in needs):
        return most
    return min(most, max(math.ceil(need / spent[kind]) for kind, need in needs.items()))


def durations(found: Mapping[str, Any]) -> list[RunDuration]:
    """Those that the result of a study keeps under ``estimate``; none if they were not measured."""
    rows = found.get("estimate", {}).get("runs", [])
    return [RunDuration(row["name"], row["rounds"], row["seconds_per_round"]) for row in rows]


def left(run_set: RunSet, out: Path, device: str, foreseen: Sequence[RunDuration] = ()) -> dict[str, Any]:
    """How far a run set is, and the wall seconds that the rest takes, None if no round has been made or foreseen.

    A run goes on at its own pace so far; one that has not begun at the foreseen pace, or at the mean pace of others.
    """
    known, folder = {one.name: one for one in foreseen}, known_folder(run_set, out)
    unfinished = {run.name for run in (run_set.runs if folder is None else pending(run_set, out, device))}
    states = [_state(run, known.get(run.name), folder, run.name not in unfinished) for run in run_set.runs]
    paces = [state.seconds_per_round for state in states if state.seconds_per_round is not None]
    rounds = [state.rounds_left for state in states]
    seconds = [
        (fmean(paces) if state.seconds_per_round is None else state.seconds_per_round) * state.rounds_left
        for state in states
        if paces
    ]
    return {
        "runs_ended": len(run_set.runs) - len(unfinished),
        "runs": len(run_set.runs),
        "rounds_done": sum(state.rounds_done for state in states),
        "rounds_left": sum(rounds),
        "seconds_left": sum(seconds) if paces or not any(rounds) else None,
    }


def left_text(left: Mapping[str, Any]) -> str:
    """``1 of 4 runs ended, 120 rounds done, at most 380 left; about 3.2 h left``."""
    seconds = left["seconds_left"]
    text = f"{left['runs_ended']} of {left['runs']} runs ended, {left['rounds_done']:,} rounds done, "
    text += f"at most {left['rounds_left']:,} left"
    return text if seconds is None else f"{text}; about {about(seconds)} left"


def about(seconds: float) -> str:
    """A duration with two digits: ``41 d``, ``3.2 h``."""
    number, unit = format_seconds(seconds).split()
    return f"{float(number):.0f} {unit}" if float(number) >= 10 else f"{float(number):.2g} {unit}"


@dataclass(frozen=True)
class _RunState:
    rounds_done: int
    rounds_left: int
    seconds_per_round: float | None


def _state(run: PlannedRun, foreseen: RunDuration | None, folder: Path | None, is_finished: bool) -> _RunState:
    ledger = None if folder is None else folder / run.name / "ledger.sqlite"
    most = run.loaded.scenario.rounds.max if foreseen is None else foreseen.rounds
    if ledger is None or not has_rounds(ledger):
        return _RunState(0, most, None if foreseen is None else foreseen.seconds_per_round)
    points = trail(ledger.parent)
    done = len(points)
    rounds = rounds_needed(run.needs, run.loaded.scenario.rounds.max, _spent(points))
    (row,) = read(ledger, "SELECT AVG(wall_s) AS mean FROM host_rounds")
    return _RunState(done, 0 if is_finished else max(0, rounds - done), row["mean"])


def _spent(points: Trail) -> dict[str, float]:
    """What a round has taken on average, by kind of need."""
    return {kind: float(getattr(points[-1], name)) / len(points) for kind, name in AMOUNTS.items()}
