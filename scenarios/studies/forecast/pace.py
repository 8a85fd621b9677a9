"""The pace of runs on this machine, read from run folders: of an earlier run, of a short one, or of a run so far.

Nothing is run or measured here. A pace by FLOPs carries seconds over from a short run to whole rounds.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from coordinator.records.schema import TRAINED
from edge.runtime.numerics import processor
from scenarios.config.load import Loaded
from scenarios.run.run_folder import RunFolder, resolved_keys
from scenarios.run.setup import on_device

MOST_FOLDERS = 20
"""Newest run folders that are looked at"""
FEWEST_ROUNDS = 3
"""Rounds without which a run says too little of later ones"""
WITHOUT_EFFECT = (
    "rounds.max",
    "seed",
    "data.partition.seed",
    "fleet.seed",
    "stop.",
    "budget.",
    "checkpoints.",
    "train.lr",
)
"""Keys, or beginnings of keys, that change how far a run goes or what it learns, and not how long a round takes"""


@dataclass(frozen=True)
class MeasuredRound:
    seconds: float
    is_evaluated: bool
    flops: Sequence[float] = ()
    """FLOPs of each visit that was trained, if they were asked for"""


def read_rounds(folder: Path, with_flops: bool = False) -> list[MeasuredRound]:
    """The rounds of a run folder so far; none before the first."""
    run = RunFolder(folder)
    if not run.is_begun:
        return []
    flops: defaultdict[int, list[float]] = defaultdict(list)
    for visit in run.query("SELECT round, kind, flops FROM visits") if with_flops else ():
        if visit["kind"] in TRAINED:
            flops[visit["round"]].append(visit["flops"])
    query = "SELECT round, wall_s, COALESCE(score, accuracy) AS judged FROM rounds JOIN host_rounds USING (round)"
    rows = run.query(f"{query} ORDER BY round")
    return [MeasuredRound(row["wall_s"], row["judged"] is not None, flops[row["round"]]) for row in rows]


def seconds_per_round(rounds: Sequence[MeasuredRound]) -> float | None:
    """The mean over rounds; None without any."""
    return fmean(row.seconds for row in rounds) if rounds else None


# --- by FLOPs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundWork:
    cohorts: Sequence[Sequence[float]]
    """FLOPs of each visit, in several typical rounds."""
    evaluation: float
    """FLOPs of one evaluation."""
    every: int
    """Rounds from one evaluation to the next."""


@dataclass(frozen=True)
class Pace:
    training: float
    """Seconds per FLOP of the worker that has most to do, while all work."""
    evaluation: float
    """Seconds per FLOP of an evaluation that all workers share."""

    @classmethod
    def of(cls, rounds: Sequence[MeasuredRound], workers: int, evaluation_flops: float) -> Pace:
        """The pace of rounds of which some were evaluated, each with ``evaluation_flops``, and others were not."""
        plain = [row for row in rounds if not row.is_evaluated]
        evaluated = [row for row in rounds if row.is_evaluated]
        training = sum(row.seconds for row in plain) / sum(busiest(row.flops, workers) for row in plain)
        rest = sum(row.seconds - training * busiest(row.flops, workers) for row in evaluated)
        return cls(training, max(0.0, rest) / (len(evaluated) * evaluation_flops))

    def round_seconds(self, work: RoundWork, workers: int) -> float:
        """Wall seconds of a round, the mean over typical ones, with its share of an evaluation."""
        training = fmean(busiest(cohort, workers) for cohort in work.cohorts) * self.training
        return training + work.evaluation * self.evaluation / work.every


def busiest(flops: Sequence[float], workers: int) -> float:
    """The FLOPs of the worker that has most to do, if each takes the longest visit that is left."""
    loads = [0.0] * workers
    for visit in sorted(flops, reverse=True):
        heapq.heapreplace(loads, loads[0] + visit)
    return max(loads)


# --- an earlier run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EarlierRun:
    folder: Path
    seconds_per_round: float
    rounds: int
    workers: int


def pace_keys(loaded: Loaded, device: str) -> dict[str, object]:
    """The keys of a run on a device that decide how long a round takes."""
    return _of_pace(resolved_keys(on_device(loaded, device).scenario))


def _of_pace(keys: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in keys.items() if not key.startswith(WITHOUT_EFFECT)}


def earlier_run(loaded: Loaded, out: Path, device: str) -> EarlierRun | None:
    """The newest run of the same scenario in ``out``, on this machine and this device; None without one."""
    keys = pace_keys(loaded, device)
    folders: list[Path] = []
    with suppress(OSError):
        runs = [path.parent for path in (out / loaded.name).glob("*/ledger.sqlite")]
        runs += [path.parent for path in (out / loaded.name).glob("*/*/ledger.sqlite")]  # of run sets
        folders = sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_FOLDERS]
    for folder in folders:
        with suppress(OSError, ValueError, KeyError, TypeError, sqlite3.Error):  # a folder that is no run of today's
            run = RunFolder(folder)
            environment = run.environment
            # Portable numerics have one fingerprint on processors of different speeds.
            is_here = environment.processor in (None, processor()) and not environment.machine_change(device)
            if environment.device == device and is_here and _of_pace(run.keys()) == keys:
                rounds = read_rounds(folder)
                seconds = seconds_per_round(rounds)
                if len(rounds) >= FEWEST_ROUNDS and seconds is not None:
                    return EarlierRun(folder, seconds, len(rounds), environment.workers)
    return None
