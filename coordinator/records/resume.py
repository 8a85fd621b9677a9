"""Resume of an interrupted run from its ledger and its last checkpoint.

All state of a run between two rounds is in its checkpoint (the model, and the state of server side, optimizer and
clock) and in its ledger (costs, files of client states). A damaged checkpoint is not used: the run is resumed from the
one before.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coordinator.aggregation.server import Models, models_sha256
from coordinator.aggregation.tiers import server_name
from coordinator.records import names
from coordinator.records.chain import next_hash
from coordinator.records.checkpoints import (
    PROGRESS,
    CheckpointStore,
    arrays_under,
    clock_state,
    file_sha256,
    model_prefix,
    restore_server,
    stored_models,
)
from coordinator.records.names import CHECKPOINTS, STATE, VECTORS
from coordinator.records.round_record import EvalResult
from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.budget import CONVERGED, ROUNDS, TARGET
from coordinator.rounds.ports import Arrays
from coordinator.rounds.run import HELD, LEVELS_STATE, SELECTOR, FederatedRun, History, RunFailed, RunTotals
from coordinator.rounds.tiers import TIERS
from edge.protocol.messages import VALIDATION
from edge.protocol.payload import Vector

_log = logging.getLogger("fedbr.resume")


def resume_checkpoint(run: FederatedRun, store: CheckpointStore) -> str | None:
    """Set a new run to the end of the last round that its ledger holds.

    Returns the rule that had ended the run, if any. RunFailed if no checkpoint can be used, and for a ledger that no
    run has written; Stopped.
    """
    ledger = store.ledger
    _check_names(ledger)
    audit(ledger, run.check_stop)
    number, arrays = _newest_valid(store, run.check_stop)
    _check_model(run, store, number, arrays)
    store.remove(ledger.truncate_after(number))
    run.rounds, run.visits, evaluated = (int(n) for n in np.asarray(arrays[PROGRESS]))
    run.evaluated = bool(evaluated)
    rounds, visits = ledger.rounds(), ledger.visits()
    selecting = ledger.evaluations(VALIDATION)
    last = rounds[-1]
    if run.is_asynchronous:
        run.history = History(rounds, visits, ledger.method_rows(), arrays, selecting, ledger.payloads())
    else:
        restore_server(run.server, arrays)
        run.clock.restore(last.end_s, clock_state(arrays))
        run.charge(VisitColumns.of(visits))
        run.selection.selector.restore(arrays_under(SELECTOR, arrays))
        run.downloads.held.restore(arrays_under(HELD, arrays))
        if run.tiers is not None:
            run.tiers.restore(last.end_s, arrays_under(TIERS, arrays))
        if run.levels is not None:
            run.levels.restore(arrays_under(LEVELS_STATE, arrays))
    if run.states is not None:
        run.states.committed = {client: name for client, (name, _) in ledger.client_states(number).items()}
    run.server.store.restore({place: name for place, (name, _) in ledger.client_vectors(number).items()})
    down, up = sum(row.bytes_down for row in rounds), sum(row.bytes_up for row in rounds)
    run.committed = RunTotals(run.rounds, last.end_s, down, up, last.model_sha256)
    store.remove_orphans()
    stored, reached = ledger.stopped_by(number), None
    for row in rounds:  # all, since convergence depends on the best of them
        result = EvalResult(row.accuracy, row.test_loss, selecting.get(row.round, ()), row.score)
        reached = run.reached(min(row.round + 1, run.rounds), result)
    # A budget's refusal is only in the ledger; the other rules are checked again.
    return reached if stored in (None, TARGET, CONVERGED, ROUNDS) else stored


def _check_names(ledger: Ledger) -> None:
    """RunFailed for file names that no run writes: names become paths, and files that no row names are deleted."""
    folders = {"states": STATE, "client_vectors": VECTORS, "checkpoints": CHECKPOINTS}
    for table, name in ledger.file_names():
        if not names.is_valid(folders[table], name):
            raise RunFailed(f"{ledger.path}: table {table} names the file {name!r}, which no run has written")


def _newest_valid(store: CheckpointStore, check_stop: Callable[[], None]) -> tuple[int, Arrays]:
    """(round, arrays) of the newest checkpoint that is undamaged, as are all files of its round."""
    problems: list[str] = []
    for number, name, digest in store.ledger.checkpoints():
        states, vectors = store.ledger.client_states(number), store.ledger.client_vectors(number)
        files = [
            (f"{CHECKPOINTS}/{name}", digest),
            *((f"{STATE}/{file}", sha256) for file, sha256 in sorted(set(states.values()))),
            *((f"{VECTORS}/{file}", sha256) for file, sha256 in sorted(vectors.values())),
        ]
        damaged = []
        for file, expected in files:
            try:
                is_undamaged = file_sha256(store.folder / file, check_stop) == expected
            except OSError:
                is_undamaged = False
            if not is_undamaged:
                damaged.append(file)
        if not damaged:
            for problem in problems:
                detail = f"{problem}; going back to round {number + 1}"
                _log.warning(detail)
                store.ledger.event(HostEvent("checkpoint_damaged", "", detail, time.time()))
            path = store.folder / CHECKPOINTS / name
            try:
                return number, dict(load_file(path))
            except SafetensorError as error:  # not damaged, since its hash is the ledger's
                raise RunFailed(f"{path}: {error}") from None
        problems.append(f"round {number + 1}: {', '.join(damaged)} is missing or not what was committed")
    raise RunFailed("no checkpoint can be used: " + ("; ".join(problems) or "there is none"))


def _check_model(run: FederatedRun, store: CheckpointStore, number: int, arrays: Arrays) -> None:
    """RunFailed for a checkpoint whose models have other shapes than the run's, or another hash than the round's."""
    file = store.folder / CHECKPOINTS / names.of_checkpoint(number)
    models: Models = {}
    for name in stored_models(run.server, arrays):
        models[name] = {}
        for key, vector in run.server.models[server_name(name)].items():
            array = arrays.get(f"{model_prefix(name)}{key}")
            if array is None or (array.shape, array.dtype) != (vector.data.shape, vector.data.dtype):
                has = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise RunFailed(f"{file}: block {key}: holds {has} instead of {vector.data.dtype} {vector.data.shape}")
            models[name][key] = Vector(np.asarray(array, np.float32))
    (row,) = (row for row in store.ledger.rounds() if row.round == number)
    if models_sha256(models) != row.model_sha256:
        raise RunFailed(f"{file}: round {number + 1}: its model is not the one that {store.ledger.path} names")


StateFiles = dict[int, tuple[str, str]]
"""client -> (name, sha256) of the file of its state"""


def audit(ledger: Ledger, check_stop: Callable[[], None] = lambda: None) -> None:
    """RunFailed that names the first round whose rows, or whose files that are still needed, were changed.

    Takes time in proportion to the rows, and memory for one round; ``check_stop`` is called before each round.
    """
    chain, states, vectors = ledger.genesis, StateFiles(), dict[tuple[int, str], tuple[str, str]]()
    needed = {round: (name, digest) for round, name, digest in ledger.checkpoints()}
    if (undivided := ledger.undivided()) is not None:
        raise _broken(ledger, undivided, "the parts of a visit's joules are")
    for stored in ledger.stored():
        check_stop()
        try:
            chain = next_hash(chain, stored.rows, stored.files)
            checkpoint, files, *more = json.loads(stored.files)
            states |= {client: (name, digest) for client, name, digest in files}
            vectors |= {(client, slot): (name, digest) for client, slot, name, digest in (more[0] if more else [])}
        except (TypeError, ValueError, RecursionError):  # bytes, NaN, or no list of files
            chain = ""
        if not chain or chain != stored.chain:
            raise _broken(ledger, stored.round, "its rows are")
        if stored.round not in needed:
            continue
        if list(needed.pop(stored.round)) != checkpoint:
            raise _broken(ledger, stored.round, "its row in the table checkpoints is")
        listed = ledger.client_states(stored.round)
        if listed != states:
            client = min(client for client in {*listed, *states} if listed.get(client) != states.get(client))
            raise _broken(ledger, stored.round, f"the rows in the table states of client {client} until then are")
        if ledger.client_vectors(stored.round) != vectors:
            raise _broken(ledger, stored.round, "the rows in the table client_vectors until then are")
    for round in needed:
        raise _broken(ledger, round, "its row in the table checkpoints is")


def _broken(ledger: Ledger, round: int, rows_are: str) -> RunFailed:
    return RunFailed(f"{ledger.path}: round {round + 1}: {rows_are} not what was committed, so the run is not resumed")
