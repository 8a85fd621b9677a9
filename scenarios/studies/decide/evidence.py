"""What a candidate's runs say: the progress of each, with the energy of its busiest device."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from costmodel.fleet.fleet import Fleet
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import KeyValues
from scenarios.run import aggregators
from scenarios.run.progress import Trail, accumulated, with_devices
from scenarios.run.run_folder import RunFolder
from scenarios.studies.decide import variations
from scenarios.studies.replay import Prepared, prepared


def recorded(folder: Path, rounds: int) -> Trail:
    """The progress of a run that was made, until so many rounds have ended."""
    return _within(_recorded(folder, RunFolder(folder).completed), rounds)


@lru_cache(maxsize=1024)
def _recorded(folder: Path, completed: int) -> Trail:
    return tuple(point for point in RunFolder(folder).device_trail if point.rounds <= max(1, completed))


def replayed(folder: Path, overrides: KeyValues, rounds: int) -> Trail:
    """The progress of a run on another fleet, until so many rounds have ended. Errors as of `replay.replay`."""
    return _within(_replayed(folder, json.dumps(overrides), RunFolder(folder).completed), rounds)


@lru_cache(maxsize=1024)
def _replayed(folder: Path, overrides: str, completed: int) -> Trail:
    return played(prepared(folder, json.loads(overrides)))


def changed(folder: Path, overrides: KeyValues, change: str) -> Trail | None:
    """The progress of a run on a fleet that is changed (`variations.REPLAYED`); None if other visits would be trained,
    or it cannot be replayed."""
    return _changed(folder, json.dumps(overrides), RunFolder(folder).completed, change)


@lru_cache(maxsize=1024)
def _changed(folder: Path, overrides: str, completed: int, change: str) -> Trail | None:
    axis, value = variations.REPLAYED[change]
    try:
        ready = prepared(folder, json.loads(overrides))
        return played(ready, variations.AXES[axis][0](ready.fleet, value))
    except ScenarioError:
        return None


def played(ready: Prepared, fleet: Fleet | None = None) -> Trail:
    """The progress of a run that is replayed, on its own fleet or another one. OtherVisits."""
    new = ready.play(ready.fleet if fleet is None else fleet, may_end_elsewhere=True)
    above = aggregators.of_messages(new.messages_done) if new.loaded.scenario.fleet.tiers.count else None
    spent = ((visit.round, visit.client, visit.joules, visit.bytes_down + visit.bytes_up) for visit in new.visits_done)
    return with_devices(accumulated(new.rounds_done, above, new.loaded.scenario.fleet.price), spent)


def _within(trail: Trail, rounds: int) -> Trail:
    return tuple(point for point in trail if point.rounds <= rounds)
