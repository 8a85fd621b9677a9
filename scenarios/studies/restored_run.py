"""A run as it was at a stored checkpoint, rebuilt from a copy of its ledger in a temporary folder.

The files of the checkpoint lie beside the copy, so that nothing in the run folder is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from coordinator.records import foreign, names
from coordinator.records.checkpoints import restore_server
from coordinator.records.names import CHECKPOINTS, STATE, VECTORS
from coordinator.records.resume import resume_checkpoint
from coordinator.records.store import Ledger
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.workers.pool import Pool
from costmodel.clock import Clock
from edge.protocol.config import Job, ModelProfile
from edge.protocol.files import opened
from edge.protocol.payload import Payload
from scenarios.config.load import Loaded
from scenarios.run import builder
from scenarios.run.observer import Observers

COPIED_PAGES = 4096
"""At a time; signals are handled in between"""


def copied_ledger(loaded: Loaded, round: int, folder: Path, place: Path) -> Ledger:
    """A copy of the ledger up to the checkpoint, beside the files of that."""
    copy = place / "ledger.sqlite"
    with (
        contextlib.closing(foreign.connect(folder / copy.name)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target, pages=COPIED_PAGES)
    ledger = Ledger(copy, None, loaded.method.objective.records.table)
    ledger.truncate_after(round)
    files = [(CHECKPOINTS, name) for number, name, _ in ledger.checkpoints() if number == round]
    files += [(STATE, name) for name, _ in ledger.client_states(round).values()]
    files += [(VECTORS, name) for name, _ in ledger.client_vectors(round).values()]
    for kind in names.PLACES:
        (place / kind).mkdir()
    for kind, name in dict.fromkeys(files):
        if names.is_valid(kind, name):  # others are refused by `resume_checkpoint`
            _link(folder / kind / name, place / kind / name)
    return ledger


def _link(source: Path, target: Path) -> None:
    """The same file in another place; one that is missing is named by `resume_checkpoint`."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:  # another disk
            with opened(source) as file, target.open("wb") as copy:
                shutil.copyfileobj(file, copy)


def restored_run(
    loaded: Loaded,
    round: int,
    job: Job,
    profile: ModelProfile,
    initial: Payload,
    pool: Pool,
    ledger: Ledger,
    place: Path,
    stopped: Callable[[], bool],
) -> FederatedRun:
    """The run at its checkpoint."""
    fleet = builder.with_operations(loaded, builder.fleet(loaded), profile)
    run, store = builder.federated_run(
        loaded,
        job,
        profile,
        builder.server(loaded, profile, initial, place),
        Clock(fleet),
        pool,
        ledger,
        place,
        Observers((), stopped),
        refused=builder.refused(loaded, fleet, profile),
        stop_at_target=False,
    )
    resume_checkpoint(run, store)
    if ledger.checkpoints()[0][0] != round:
        raise RunFailed(f"round {round + 1}: its checkpoint is damaged")
    if run.history is not None:
        restore_server(run.server, run.history.checkpoint)
    return run
