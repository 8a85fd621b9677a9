"""The files of one run, committed with its ledger: checkpoints, and what clients keep between their visits.

A file is written first and named by the ledger's next transaction; what no row names any more is deleted afterwards. So
whenever the run is cut off, each file that the ledger names is there. Files of other names than
`coordinator.records.names` gives are left alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.records import names
from coordinator.records.names import CHECKPOINTS, PLACES, STATE
from coordinator.records.round_record import RoundRecord
from coordinator.records.store import Commit, Ledger, RoundRow
from edge.protocol.files import opened, write_vectors

Arrays = Mapping[str, NDArray[np.generic]]
"""By name, as a checkpoint holds them"""
CHUNK_NBYTES = 1 << 20


class CheckpointStore:
    """What a run folder holds, and its ledger names."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger, self._folder = ledger, folder
        self.states: dict[int, str] = {}
        """client -> file name of its kept state, as committed"""
        self._committed_at = time.monotonic()

    def state(self, name: str) -> Path:
        """The path of what a client keeps, by its file's name."""
        return self._folder / STATE / name

    def client_state_path(self, client: int, later: Mapping[int, str]) -> str | None:
        """The path of what a client keeps: of what is not committed yet (client -> file name), or as committed."""
        name = later.get(client, self.states.get(client))
        return None if name is None else str(self.state(name))

    def commit(self, rows: RoundRecord, row: RoundRow, checkpoint: Arrays, stopped_by: str | None) -> None:
        """Write the checkpoint, commit all in one transaction, then drop what is obsolete."""
        written = self._write(rows.round, checkpoint)
        digests = {name: file_sha256(self._folder / STATE / name) for name in set(rows.kept.values())}
        states = {client: (name, digests[name]) for client, name in rows.kept.items()}
        now = time.monotonic()
        wall_seconds, self._committed_at = now - self._committed_at, now
        obsolete = self._ledger.commit(
            Commit(row, rows.visits, rows.transfers, rows.choices, states, written, wall_seconds, stopped_by)
        )
        self.states.update(rows.kept)
        self.remove(obsolete)

    def remove(self, files: Iterable[str]) -> None:
        """Delete files of checkpoints and of what clients kept."""
        for name in files:
            for place in PLACES:
                if names.is_given(place, name):
                    (self._folder / place / name).unlink(missing_ok=True)

    def remove_orphans(self) -> None:
        """Remove what was written for a round that was never committed."""
        remove_all(self._folder, but=self._ledger.files())

    def _write(self, round: int, checkpoint: Arrays) -> tuple[str, str]:
        """(name, sha256) of a checkpoint."""
        name = names.of_checkpoint(round)
        path = self._folder / CHECKPOINTS / name
        write_vectors(path, {key: np.ascontiguousarray(array) for key, array in checkpoint.items()})
        return name, file_sha256(path)


def remove_all(folder: Path, but: Collection[str] = ()) -> None:
    """Delete a run's checkpoints and what its clients kept, and beginnings of such files; what is no run's stays."""
    for place in (folder / name for name in PLACES):
        if place.is_symlink() or not place.is_dir():
            continue
        for path in place.iterdir():
            is_folder = path.is_dir() and not path.is_symlink()
            if names.is_ours(place.name, path.name) and path.name not in but and not is_folder:
                path.unlink()


def file_sha256(path: Path, heed: Callable[[], None] = lambda: None) -> str:
    """The hash of an ordinary file's content; OSError for a link or a device. ``heed`` is asked now and then."""
    digest = hashlib.sha256()
    with opened(path) as file:
        while chunk := file.read(CHUNK_NBYTES):
            heed()
            digest.update(chunk)
    return digest.hexdigest()
