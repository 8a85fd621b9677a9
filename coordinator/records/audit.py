"""Whether a ledger still says what a run committed: its hash chain computed again, from the first round to the last.

The chain has no key, so whoever computes it anew can still change a ledger; `fedbr verify` makes the run itself again.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from coordinator.records.chain import next_hash
from coordinator.records.store import Ledger
from coordinator.rounds.run import RunFailed

Kept = dict[int, tuple[str, str]]
"""client -> (name, sha256) of what it keeps"""


def audit(ledger: Ledger, heed: Callable[[], None] = lambda: None) -> None:
    """RunFailed that names the first round whose rows, or whose files as far as they are needed, are not the run's.

    Takes time in proportion to the rows, and memory for one round; ``heed`` is asked before each.
    """
    chain, kept = ledger.genesis, Kept()
    needed = {round: (name, digest) for round, name, digest in ledger.checkpoints()}
    for stored in ledger.stored():
        heed()
        try:
            chain = next_hash(chain, stored.rows, stored.files)
            checkpoint, states = json.loads(stored.files)
            kept |= {client: (name, digest) for client, name, digest in states}
        except (TypeError, ValueError):  # bytes, a number that is none, or no list of files
            chain = ""
        if not chain or chain != stored.chain:
            raise _broken(ledger, stored.round, "its rows are")
        if stored.round not in needed:
            continue
        if list(needed.pop(stored.round)) != checkpoint:
            raise _broken(ledger, stored.round, "its row in the table checkpoints is")
        now = ledger.kept(stored.round)
        if now != kept:
            client = min(client for client in {*now, *kept} if now.get(client) != kept.get(client))
            raise _broken(ledger, stored.round, f"the rows in the table states of client {client} until then are")
    for round in needed:
        raise _broken(ledger, round, "its row in the table checkpoints is")


def _broken(ledger: Ledger, round: int, these: str) -> RunFailed:
    return RunFailed(f"{ledger.path}: round {round}: {these} not what was committed, so the run is not gone on with")
