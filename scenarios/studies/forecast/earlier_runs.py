"""What an earlier run of the same kind took on this machine: seconds per round, and workers. Reads run folders only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.runtime.numerics import processor
from scenarios.config.load import Loaded
from scenarios.run import builder
from scenarios.run.run_folder import RunFolder, resolved_keys

MOST_FOLDERS = 20
"""Newest run folders that are looked at"""
FEWEST_ROUNDS = 3
"""Rounds without which a run says too little of later ones"""
WITHOUT_EFFECT = ("rounds.max", "seed", "data.partition.seed", "stop.", "budget.", "checkpoints.", "train.lr")
"""Keys, or beginnings of keys, that change how far a run goes or what it learns, and not how long a round takes"""


@dataclass(frozen=True)
class EarlierRun:
    """A run of the same kind on this machine."""

    folder: str
    seconds_per_round: float
    rounds: int
    workers: int
    device: str


def newest(loaded: Loaded, out: Path, device: str) -> EarlierRun | None:
    """The newest run of the same scenario in ``out``, on this machine and this device; None without one."""
    scenario = builder.on_device(loaded, device).scenario
    wanted = _relevant(resolved_keys(scenario))
    for folder in _folders(out / loaded.name):
        with suppress(OSError, ValueError, KeyError, TypeError, sqlite3.Error):  # a folder that is no run of today's
            found = _read(folder, device, wanted)
            if found is not None:
                return found
    return None


def _folders(place: Path) -> Iterator[Path]:
    with suppress(OSError):
        runs = [each for each in place.iterdir() if (each / "ledger.sqlite").is_file()]
        yield from sorted(runs, key=lambda each: each.stat().st_mtime, reverse=True)[:MOST_FOLDERS]


def _read(folder: Path, device: str, wanted: Mapping[str, Any]) -> EarlierRun | None:
    recorded = RunFolder(folder)
    environment = recorded.environment
    # Portable numerics have one fingerprint on processors of different speeds.
    is_here = environment.processor in (None, processor()) and not environment.machine_change(device)
    if environment.device != device or not is_here or not recorded.is_begun:
        return None
    if _relevant(recorded.keys()) != wanted:
        return None
    (row,) = recorded.query("SELECT COUNT(*) AS rounds, AVG(wall_s) AS mean FROM host_rounds")
    if row["rounds"] < FEWEST_ROUNDS or row["mean"] is None:
        return None
    return EarlierRun(str(folder), float(row["mean"]), row["rounds"], environment.workers, device)


def _relevant(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not key.startswith(WITHOUT_EFFECT)}
