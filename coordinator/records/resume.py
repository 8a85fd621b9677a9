"""A run taken up again where its ledger stands, as if it had never been broken off.

What a federation is between two rounds is in its last checkpoint (the model, and what server side, optimiser and clock
remember), in its ledger (what was spent, what clients kept) and nowhere else. A checkpoint that is damaged is not used:
the run goes back to the one before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coordinator.aggregation.server import Model
from coordinator.records import names
from coordinator.records.audit import audit
from coordinator.records.checkpoints import (
    GLOBAL_MODEL,
    PROGRESS,
    CheckpointStore,
    clock_state,
    file_sha256,
    restore_server,
)
from coordinator.records.names import CHECKPOINTS, STATE
from coordinator.records.round_record import spent
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from coordinator.rounds.budget import ROUNDS, TARGET
from coordinator.rounds.ports import Arrays
from coordinator.rounds.run import FederatedRun, History, RunFailed, RunTotals
from edge.protocol.payload import MODEL, Vector, sha256

_log = logging.getLogger("fedbr.resume")


def resume_checkpoint(run: FederatedRun, store: CheckpointStore) -> str | None:
    """Set a run that was made afresh to the end of the last round that its ledger holds.

    Returns the rule that has ended the run already, if one has. RunFailed if no checkpoint can be used, and for a
    ledger that no run has written; Stopped.
    """
    ledger = store.ledger
    _check_names(ledger)
    audit(ledger, run.check_stop)
    number, arrays = _newest_valid(store, run.check_stop)
    _check_model(run, store, number, arrays)
    store.remove(ledger.go_back(number))
    run.rounds, run.visits, evaluated = (int(n) for n in np.asarray(arrays[PROGRESS]))
    run.evaluated = bool(evaluated)
    rounds, visits = ledger.rounds(), ledger.visits()
    last = rounds[-1]
    if run.is_asynchronous:
        run.history = History(rounds, visits, ledger.method_rows(), arrays)
    else:
        restore_server(run.server, arrays)
        run.clock.restore(last.end_s, clock_state(arrays))
        for visit in visits:
            run.budget.settle(visit.client, spent(visit))
    if run.states is not None:
        run.states.committed = {client: name for client, (name, _) in ledger.kept(number).items()}
    down, up = sum(row.bytes_down for row in rounds), sum(row.bytes_up for row in rounds)
    run.committed = RunTotals(run.rounds, last.end_s, down, up, last.model_sha256)
    store.remove_orphans()
    stored, reached = ledger.stopped_by(number), run.budget.reached(run.rounds, last.accuracy)
    # What was refused for a budget is not known any more; a goal and a number of rounds are seen again.
    return reached if stored in (None, TARGET, ROUNDS) else stored


def _check_names(ledger: Ledger) -> None:
    """RunFailed for names of files that no run gives: they are paths here, and what no row names is deleted."""
    places = {"states": STATE, "checkpoints": CHECKPOINTS}
    for table, name in ledger.named():
        if not names.is_given(places[table], name):
            raise RunFailed(f"{ledger.path}: table {table} names the file {name!r}, which no run has written")


def _newest_valid(store: CheckpointStore, heed: Callable[[], None]) -> tuple[int, Arrays]:
    """The newest checkpoint that is whole, with all that clients had kept by then: (round, its arrays)."""
    problems: list[str] = []
    for number, name, digest in store.ledger.checkpoints():
        damaged = [
            file
            for file, wanted in [(f"{CHECKPOINTS}/{name}", digest), *_kept(store, number)]
            if not _is_whole(store.folder / file, wanted, heed)
        ]
        if not damaged:
            for problem in problems:
                detail = f"{problem}; going back to round {number}"
                _log.warning(detail)
                store.ledger.event(HostEvent("checkpoint_damaged", "", detail, time.time()))
            return number, _arrays(store.folder / CHECKPOINTS / name)
        problems.append(f"round {number}: {', '.join(damaged)} is missing or not what was committed")
    raise RunFailed("no checkpoint can be used: " + ("; ".join(problems) or "there is none"))


def _kept(store: CheckpointStore, number: int) -> list[tuple[str, str]]:
    """(file, sha256) of what clients had kept at the end of a round."""
    return [(f"{STATE}/{name}", digest) for name, digest in sorted(set(store.ledger.kept(number).values()))]


def _is_whole(file: Path, digest: str, heed: Callable[[], None]) -> bool:
    try:
        return file_sha256(file, heed) == digest
    except OSError:
        return False


def _check_model(run: FederatedRun, store: CheckpointStore, number: int, arrays: Arrays) -> None:
    """RunFailed for a checkpoint of another model than the run's, or of another than its round ended with."""
    file = store.folder / CHECKPOINTS / names.of_checkpoint(number)
    model: Model = {}
    for key, vector in run.server.model.items():
        found = arrays.get(f"{GLOBAL_MODEL}{key}")
        if found is None or (found.shape, found.dtype) != (vector.data.shape, vector.data.dtype):
            has = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise RunFailed(f"{file}: block {key}: holds {has} instead of {vector.data.dtype} {vector.data.shape}")
        model[key] = Vector(np.asarray(found, np.float32))
    (row,) = (row for row in store.ledger.rounds() if row.round == number)
    if sha256({MODEL: model}) != row.model_sha256:
        raise RunFailed(f"{file}: round {number}: its model is not the one that {store.ledger.path} names")


def _arrays(path: Path) -> Arrays:
    try:
        return dict(load_file(path))
    except SafetensorError as error:  # as it was written: its hash is the ledger's
        raise RunFailed(f"{path}: {error}") from None
