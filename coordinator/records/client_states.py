"""Which file holds the state that each client keeps between its visits.

A client keeps blocks of the model, slots that its method brings along, or both. A file is written by the worker that
trained the visit, named by visit, and committed with the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.records import names
from edge.protocol import client_state
from edge.protocol.payload import MODEL, Payload

if TYPE_CHECKING:
    from coordinator.rounds.visit import PlannedVisit


class ClientStates:
    """The files of the clients' state in one run folder. ``kept_blocks``: keys of the model that a client keeps."""

    def __init__(self, folder: Path, kept_blocks: Sequence[str], keeps_slots: bool) -> None:
        self._folder, self._kept_blocks, self._keeps_slots = folder / names.STATE, kept_blocks, keeps_slots
        self.committed: dict[int, str] = {}
        """client -> file name, as the ledger has it"""
        self.uncommitted: Mapping[int, str] = {}
        """client -> file name of what it has kept since the last commit: it may be visited again before the next"""

    def path(self, name: str) -> Path:
        """Where the file of this name lies."""
        return self._folder / name

    def newest(self, client: int) -> str | None:
        """The path of what a client keeps; None if it keeps nothing yet."""
        name = self.uncommitted.get(client, self.committed.get(client))
        return None if name is None else str(self.path(name))

    def drop(self, name: str) -> None:
        """Delete a file that will not be committed, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def store_broadcast(self, listeners: Sequence[PlannedVisit]) -> dict[int, str]:
        """Let clients that only downloaded keep the whole model they were sent, and all else that they kept before.

        Where nothing else is kept, one file serves them all. Returns client -> file name.
        """
        if not listeners:
            return {}
        sent, round = listeners[0].dispatch.payload[MODEL], listeners[0].rng_round
        whole: Payload = {MODEL: {key: sent[key] for key in self._kept_blocks}}
        if not self._keeps_slots:
            name = names.of_listeners(round)
            client_state.write(str(self.path(name)), whole)
            return {visit.client: name for visit in listeners}
        for visit in listeners:
            before = client_state.read(self.newest(visit.client))
            client_state.write(str(self.path(visit.state_name)), before | whole)
        return {visit.client: visit.state_name for visit in listeners}
