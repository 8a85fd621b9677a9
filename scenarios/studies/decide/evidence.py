"""What a candidate's runs say: the progress of each, with the energy of its busiest device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coordinator.rounds.amounts import ROUNDS
from costmodel.fleet.fleet import Fleet
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import KeyValues
from scenarios.run import aggregators
from scenarios.run.progress import Trail, accumulated, with_devices
from scenarios.run.run_folder import RunFolder
from scenarios.run.score import score_of
from scenarios.studies.decide import variations
from scenarios.studies.replay import Prepared, prepared


@dataclass(frozen=True)
class _Overrides:
    """Overrides as the key of a cache."""

    values: KeyValues

    def __hash__(self) -> int:
        return hash(frozenset(self.values))


def recorded(folder: Path, rounds: int) -> Trail:
    """The progress of a run that was made, until so many rounds have ended."""
    return _recorded(folder, RunFolder(folder).completed).within({ROUNDS: rounds})


@lru_cache(maxsize=1024)
def _recorded(folder: Path, completed: int) -> Trail:
    return RunFolder(folder).device_trail.within({ROUNDS: max(1, completed)})


def replayed(folder: Path, overrides: KeyValues, rounds: int) -> Trail:
    """The progress of a run on another fleet, until so many rounds have ended. Errors as of `replay.replay`."""
    return _replayed(folder, _Overrides(overrides), RunFolder(folder).completed).within({ROUNDS: rounds})


@lru_cache(maxsize=1024)
def _replayed(folder: Path, overrides: _Overrides, completed: int) -> Trail:
    return played(prepared(folder, overrides.values))


def changed(folder: Path, overrides: KeyValues, change: str) -> Trail | None:
    """The progress of a run on a fleet that is changed (`variations.REPLAYED`); None if other visits would be trained,
    or it cannot be replayed."""
    return _changed(folder, _Overrides(overrides), RunFolder(folder).completed, change)


@lru_cache(maxsize=1024)
def _changed(folder: Path, overrides: _Overrides, completed: int, change: str) -> Trail | None:
    axis, value = variations.REPLAYED[change]
    try:
        ready = prepared(folder, overrides.values)
        return played(ready, variations.AXES[axis][0](ready.fleet, value))
    except ScenarioError:
        return None


def played(ready: Prepared, fleet: Fleet | None = None) -> Trail:
    """The progress of a run that is replayed, on its own fleet or another one. OtherVisits."""
    new = ready.play(ready.fleet if fleet is None else fleet, may_end_elsewhere=True)
    above = aggregators.of_messages(new.messages_done) if new.loaded.scenario.fleet.tiers.count else None
    spent = ((visit.round, visit.client, visit.joules, visit.bytes_down + visit.bytes_up) for visit in new.visits_done)
    prices = new.loaded.scenario.fleet.price
    better = score_of(new.loaded.scenario.train).better
    return with_devices(accumulated(new.rounds_done, above, prices, new.carbon, better), spent)
