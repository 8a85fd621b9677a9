"""Audit of a ledger: its hash chain is recomputed from the first round to the last.

The chain has no key, so a changed ledger with a recomputed chain passes; `fedbr verify` repeats the run itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from coordinator.records.chain import next_hash
from coordinator.records.store import Ledger
from coordinator.rounds.run import RunFailed

StateFiles = dict[int, tuple[str, str]]
"""client -> (name, sha256) of the file of its state"""


def audit(ledger: Ledger, check_stop: Callable[[], None] = lambda: None) -> None:
    """RunFailed that names the first round whose rows, or whose files that are still needed, were changed.

    Takes time in proportion to the rows, and memory for one round; ``check_stop`` is called before each round.
    """
    chain, states = ledger.genesis, StateFiles()
    needed = {round: (name, digest) for round, name, digest in ledger.checkpoints()}
    for stored in ledger.stored():
        check_stop()
        try:
            chain = next_hash(chain, stored.rows, stored.files)
            checkpoint, files = json.loads(stored.files)
            states |= {client: (name, digest) for client, name, digest in files}
        except (TypeError, ValueError):  # bytes, NaN, or no list of files
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
    for round in needed:
        raise _broken(ledger, round, "its row in the table checkpoints is")


def _broken(ledger: Ledger, round: int, rows_are: str) -> RunFailed:
    return RunFailed(f"{ledger.path}: round {round}: {rows_are} not what was committed, so the run is not resumed")
