"""What a run costs, in short: virtual time and bytes per round and in all, and wall time, disk and memory here.

Wall time is that of rounds that were measured: of an earlier run, or of a few rounds now. It is never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from coordinator.records.kept_checkpoints import BEST, EVERY, NEWEST
from costmodel.units import format_bytes
from edge.data.decoded_cache import why_no_download
from edge.protocol.config import ModelProfile
from scenarios.config.load import Loaded
from scenarios.run import builder
from scenarios.run.host import choose_device, default_workers
from scenarios.studies.forecast import earlier_runs
from scenarios.studies.forecast.typical_visits import TypicalVisits

NEWEST_CHECKPOINTS = 2
LEDGER_NBYTES, LEDGER_VISIT_NBYTES, REPORT_NBYTES = 60_000, 300, 700_000
"""Of a new ledger, of each visit in it, and of a report: measured in runs on the digits, November 2026"""
COORDINATOR_MODELS = 4
"""Copies of the models that the coordinator holds: the current ones, the next ones, an update, and a checkpoint"""


@dataclass(frozen=True)
class MeasuredMemory:
    """Resident bytes of processes that were measured before any training."""

    coordinator: int
    worker: int


def measured_memory() -> MeasuredMemory:
    """Of this process, and of the largest that it has started: a worker, with its data set if that is there."""
    own = psutil.Process()
    children = [_resident(child) for child in own.children(recursive=True)]
    return MeasuredMemory(own.memory_info().rss, max(children, default=0))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended meanwhile
        return 0


def costs(
    loaded: Loaded,
    description: ModelProfile,
    estimate: Mapping[str, Any],
    out: Path,
    memory: MeasuredMemory,
) -> dict[str, Any]:
    """The summary of ``check``; ``estimate`` is that of `scenarios.studies.forecast.estimate`.

    Wall times are those of an earlier run in ``out``, or None.
    """
    (_, rounds), device = estimate["rounds"], choose_device("auto")
    earlier = earlier_runs.newest(loaded, out, device)
    seconds = None if earlier is None else earlier.seconds_per_round
    workers = default_workers() if earlier is None else earlier.workers
    each = estimate["per_round"]
    return {
        "rounds": rounds,
        "virtual_seconds_per_round": each["virtual_seconds"][1] if "virtual_seconds" in each else None,
        "bytes_per_round": each["bytes"],
        "wall_seconds_per_round": seconds,
        "wall_seconds": None if seconds is None else seconds * rounds,
        "wall_from": None if earlier is None else earlier.folder,
        "workers": workers,
        "device": device,
        "disk_nbytes": disk_nbytes(loaded, description, estimate),
        "coordinator_nbytes": memory.coordinator + COORDINATOR_MODELS * _models_nbytes(loaded, description),
        "worker_nbytes": memory.worker + builder.training_nbytes(loaded, description),
    }


def with_pace(costs: Mapping[str, Any], seconds_per_round: float, workers: int) -> dict[str, Any]:
    """`costs` with wall times that were measured just now, with so many workers."""
    wall = {"wall_seconds_per_round": seconds_per_round, "wall_seconds": seconds_per_round * costs["rounds"]}
    return {**costs, **wall, "wall_from": None, "workers": workers}


def disk_nbytes(loaded: Loaded, description: ModelProfile, estimate: Mapping[str, Any]) -> int:
    """Bytes of a run folder, about: checkpoints, client states, vectors of clients, ledger and report."""
    visits = TypicalVisits(loaded, description).per_round * loaded.scenario.rounds.max
    kept = checkpoints_kept(loaded.scenario.checkpoints.keep, loaded.scenario.rounds.max)
    ledger = LEDGER_NBYTES + LEDGER_VISIT_NBYTES * visits
    states = int(estimate["state_disk_nbytes"]) + int(estimate["vectors_disk_nbytes"])
    return kept * _models_nbytes(loaded, description) + states + ledger + REPORT_NBYTES


def checkpoints_kept(keep: str | tuple[int, ...], rounds: int) -> int:
    """The number of checkpoints at the end of a run; all but the newest two are kept by a rule."""
    if not isinstance(keep, str):
        return NEWEST_CHECKPOINTS + len([each for each in keep if each <= rounds])
    match = EVERY.fullmatch(keep)
    return NEWEST_CHECKPOINTS + {NEWEST: 0, BEST: 1}.get(keep, rounds // int(match[1]) if match else 0)


def _models_nbytes(loaded: Loaded, description: ModelProfile) -> int:
    """Bytes of the server's models and of its other state."""
    server = TypicalVisits(loaded, description).server
    vectors = [vector for model in server.models.values() for vector in model.values()]
    return sum(vector.data.nbytes for vector in vectors) + sum(array.nbytes for array in server.state().values())


def refusals(loaded: Loaded, estimate: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The reasons why the run cannot work, as ``key = value: reason; choice``; ``found``: its `costs`."""
    data, scenario = estimate["data"], loaded.scenario
    why = why_no_download(loaded.dataset, scenario.data)
    if data["found"] is None and why is not None:
        yield f"data.name = {scenario.data.name!r}: {data['warning']}; it is not downloaded: {why}"
    refused = estimate["refused_clients"]
    if sum(row["clients"] for row in refused) >= scenario.data.clients:
        yield f"fleet.devices: none of {scenario.data.clients} clients can take part: {refused[0]['why']}"
    need, here = found["coordinator_nbytes"] + found["worker_nbytes"], psutil.virtual_memory().total
    if need > here:
        yield (
            f"train.batch = {scenario.train.batch}: the coordinator and one worker need {format_bytes(need)} of "
            f"memory, and this machine has {format_bytes(here)}; choose a smaller batch or model"
        )
