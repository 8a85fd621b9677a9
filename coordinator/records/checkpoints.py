"""The checkpoint store: checkpoints, client states and the server's vectors of one run, committed with its ledger.

A file is written first and named by the ledger's next transaction; files that no row names any more are deleted
afterwards. So every file that the ledger names exists whenever the run is interrupted. Files with names other than
those of `coordinator.records.names` are never touched.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import GLOBAL, Models, ServerStrategy, models_sha256
from coordinator.aggregation.tiers import AGGREGATOR, server_name
from coordinator.records import names
from coordinator.records.client_states import ClientStates
from coordinator.records.names import CHECKPOINTS, PLACES, STATE, VECTORS
from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import RoundRow
from coordinator.records.store import Commit, Ledger
from coordinator.rounds.ports import Arrays, PendingCommit, RunMemory, Snapshot
from edge.protocol.files import opened, write_vectors
from edge.protocol.payload import MODEL, Vector

SEPARATOR = "|"
SERVER, CLOCK = "server|", "clock|"
"""Prefixes of the names of a checkpoint's arrays, beside those of models."""
PROGRESS = "progress"
"""Array of a checkpoint: server steps so far, visits begun so far, and whether the model has been evaluated."""
CHUNK_NBYTES = 1 << 20


class CheckpointStore:
    """Checkpoints and client states in a run folder; the recorder of a run that trains.

    ``states`` is None if clients have no state.
    """

    def __init__(
        self, ledger: Ledger, folder: Path, server: ServerStrategy, states: ClientStates | None = None
    ) -> None:
        self.ledger, self.folder, self.states = ledger, folder, states
        self._server = server
        self._committed_at = time.monotonic()

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """The models, which are never changed in place, and copies of all other state."""
        arrays = {f"{SERVER}{key}": np.array(array) for key, array in self._server.state().items()}
        arrays |= {f"{CLOCK}{key}": np.array(array) for key, array in memory.clock.items()}
        arrays[PROGRESS] = np.array([memory.rounds, memory.visits, memory.evaluated])
        models, store = dict(self._server.models), self._server.store
        arrays |= dict(memory.policy_state)
        obsolete, store.obsolete = store.obsolete, set()
        return Snapshot(models_sha256(models), models, arrays, store.take_uncommitted(), obsolete)

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """Write the checkpoint, commit the round in one transaction, then delete obsolete files.

        RunFailed, before anything is written, if the run folder is no longer where it was.
        """
        self.ledger.check_place()
        record, snapshot = pending.record, pending.snapshot
        models = {
            f"{model_prefix(name)}{key}": vector.data
            for name, model in snapshot.models.items()
            for key, vector in model.items()
        }
        checkpoint = names.of_checkpoint(record.round)
        path = self.folder / CHECKPOINTS / checkpoint
        arrays = models | dict(snapshot.arrays)
        write_vectors(path, {key: np.ascontiguousarray(array) for key, array in arrays.items()})
        written = checkpoint, file_sha256(path)
        vectors = {place: (name, file_sha256(self.folder / VECTORS / name)) for place, name in snapshot.vectors.items()}
        digests = {name: file_sha256(self.folder / STATE / name) for name in set(record.states.values())}
        states = {client: (name, digests[name]) for client, name in record.states.items()}
        now = time.monotonic()
        wall_seconds, self._committed_at = now - self._committed_at, now
        obsolete = self.ledger.commit(
            Commit(
                *(row, record.visits, record.payloads, record.method_rows, record.evaluations, record.aggregators),
                record.conditions,
                *(record.logged, states, vectors, written, wall_seconds, stopped_by),
                steps=record.steps,
            )
        )
        if self.states is not None:
            self.states.committed.update(record.states)
        self.remove([*obsolete, *snapshot.obsolete])

    def remove(self, files: Iterable[str]) -> None:
        """Delete files of checkpoints, client states and the server's vectors."""
        for name in files:
            for folder in PLACES:
                if names.is_valid(folder, name):
                    (self.folder / folder / name).unlink(missing_ok=True)

    def remove_orphans(self) -> None:
        """Delete files of rounds that were never committed."""
        self.ledger.check_place()
        remove_all(self.folder, but=self.ledger.files())


def arrays_under(prefix: str, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """The arrays whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def model_prefix(name: str) -> str:
    """Prefix of the names of a model's arrays."""
    return f"{MODEL}{SEPARATOR}" if name == GLOBAL else f"{MODEL} {name}{SEPARATOR}"


def stored_models(server: ServerStrategy, arrays: Arrays) -> list[str]:
    """The names of a checkpoint's models: those of the server, and of aggregators that have their own."""
    own = {name.removeprefix(f"{MODEL} ").partition(SEPARATOR)[0] for name in arrays if name.startswith(f"{MODEL} ")}
    return [*server.models, *sorted(name for name in own if name.startswith(AGGREGATOR))]


def restore_server(server: ServerStrategy, arrays: Arrays) -> None:
    """Set the models and the server side's state to a checkpoint's."""
    models: Models = {}
    for name in stored_models(server, arrays):
        stored = arrays_under(model_prefix(name), arrays)
        model = server.models[server_name(name)]
        models[name] = {key: Vector(np.asarray(stored[key], np.float32)) for key in model}
    server.restore(models, arrays_under(SERVER, arrays))


def clock_state(arrays: Arrays) -> dict[str, NDArray[np.float64]]:
    """The clock's state in a checkpoint."""
    return {key: np.asarray(array, np.float64) for key, array in arrays_under(CLOCK, arrays).items()}


def remove_all(folder: Path, but: Collection[str] = ()) -> None:
    """Delete checkpoints and client states of a run, also half-written ones, but no other files."""
    for subfolder in (folder / name for name in PLACES):
        if subfolder.is_symlink() or not subfolder.is_dir():
            continue
        for path in subfolder.iterdir():
            is_folder = path.is_dir() and not path.is_symlink()
            if names.is_ours(subfolder.name, path.name) and path.name not in but and not is_folder:
                path.unlink()


def file_sha256(path: Path, check_stop: Callable[[], None] = lambda: None) -> str:
    """The hash of a regular file; OSError for a link or a device. ``check_stop`` is called once per chunk."""
    digest = hashlib.sha256()
    with opened(path) as file:
        while chunk := file.read(CHUNK_NBYTES):
            check_stop()
            digest.update(chunk)
    return digest.hexdigest()
