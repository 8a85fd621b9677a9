"""What a candidate's runs say: the progress of each, with the energy of its busiest device."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from scenarios.run.progress import Trail, accumulated
from scenarios.run.run_folder import RunFolder
from scenarios.studies.replay import Prepared, prepared

Spent = Iterable[tuple[int, int, float]]
"""(round, client, joules) of visits"""
BY_CLIENT = "SELECT round, client, SUM(joules) FROM visits GROUP BY round, client"


def with_devices(trail: Trail, spent: Spent) -> Trail:
    """The progress with what the client that has spent the most has spent by the end of each round."""
    by_round: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for round, client, joules in spent:
        by_round[round].append((client, joules))
    totals: defaultdict[int, float] = defaultdict(float)
    points, most, seen = [], 0.0, -1
    for point in trail:
        for round in range(seen + 1, point.rounds):  # rounds count from 0, and points from 1
            for client, joules in by_round[round]:
                totals[client] += joules
                most = max(most, totals[client])
        seen = max(seen, point.rounds - 1)
        points.append(replace(point, device_joules=most))
    return tuple(points)


def recorded(folder: Path, rounds: int) -> Trail:
    """The progress of a run that was made, until so many rounds have ended."""
    return _within(_recorded(folder, RunFolder(folder).completed), rounds)


@lru_cache(maxsize=1024)
def _recorded(folder: Path, completed: int) -> Trail:
    run = RunFolder(folder)
    trail = tuple(point for point in run.trail if point.rounds <= max(1, completed))
    return with_devices(trail, ((row[0], row[1], row[2]) for row in run.query(BY_CLIENT)))


def replayed(folder: Path, overrides: Mapping[str, Any], rounds: int) -> Trail:
    """The progress of a run on another fleet, until so many rounds have ended. Errors as of `replay.replay`."""
    return _within(_replayed(folder, json.dumps(overrides, sort_keys=True), RunFolder(folder).completed), rounds)


@lru_cache(maxsize=1024)
def _replayed(folder: Path, overrides: str, completed: int) -> Trail:
    return played(prepared(folder, json.loads(overrides)))


def played(ready: Prepared, fleet: Any = None) -> Trail:
    """The progress of a run that is replayed, on its own fleet or another one. OtherVisits."""
    new = ready.play(ready.fleet if fleet is None else fleet, may_end_elsewhere=True)
    spent = ((visit.round, visit.client, visit.joules) for visit in new.visits_done)
    return with_devices(accumulated(new.rounds_done), spent)


def _within(trail: Trail, rounds: int) -> Trail:
    return tuple(point for point in trail if point.rounds <= rounds)
