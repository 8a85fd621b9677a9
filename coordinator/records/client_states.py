"""Client states: the files of what clients keep between their visits.

A client state holds blocks of the model, slots of the method, or both. A file is written by the worker that trained the
visit, named by visit, and committed with the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.records import names
from edge.protocol import client_state
from edge.protocol.codecs.update_codec import REFERENCE
from edge.protocol.payload import MODEL, Payload

if TYPE_CHECKING:
    from coordinator.rounds.visit import PlannedVisit


class ClientStates:
    """The client states of one run folder. ``kept_blocks``: keys of the model that a client keeps.

    ``keeps_references``: whether a client also keeps the last downloaded version of these, which its updates differ
    from where a codec encodes them.
    """

    def __init__(
        self, folder: Path, kept_blocks: Sequence[str], keeps_slots: bool, keeps_references: bool = False
    ) -> None:
        self._keeps_references = keeps_references
        self._folder, self._kept_blocks, self._keeps_slots = folder / names.STATE, kept_blocks, keeps_slots
        self.committed: dict[int, str] = {}
        """client -> file name in the ledger"""
        self.uncommitted: Mapping[int, str] = {}
        """client -> file name of a state written since the last commit, which a visit may need before the next"""

    def path(self, name: str) -> Path:
        """The path of the file of this name."""
        return self._folder / name

    def newest(self, client: int) -> str | None:
        """The path of a client's newest state; None if it has none yet."""
        name = self.uncommitted.get(client, self.committed.get(client))
        return None if name is None else str(self.path(name))

    def drop(self, name: str) -> None:
        """Delete a file that will not be committed, if it exists."""
        self.path(name).unlink(missing_ok=True)

    def store_broadcast(self, visits: Sequence[PlannedVisit]) -> dict[int, str]:
        """Store the downloaded model in the states of clients with a download-only visit; their slots stay.

        Without slots all clients share one file. Returns client -> file name.
        """
        if not visits:
            return {}
        sent, round = visits[0].dispatch.payload[MODEL], visits[0].rng_round
        kept = {key: sent[key] for key in self._kept_blocks}
        model: Payload = {MODEL: kept} | ({f"{REFERENCE}{MODEL}": kept} if self._keeps_references else {})
        if not self._keeps_slots:
            name = names.of_broadcast(round)
            client_state.write(str(self.path(name)), model)
            return {visit.client: name for visit in visits}
        for visit in visits:
            before = client_state.read(self.newest(visit.client))
            client_state.write(str(self.path(visit.state_name)), before | model)
        return {visit.client: visit.state_name for visit in visits}
