"""The server's store of vectors per client and slot, such as each client's last update. One file per version.

A file is written once, when the server side puts vectors, and is visible from the server's next step on. The round's
commit names it; files that no commit needs any more are deleted afterwards (`coordinator.records.checkpoints`). Memory
holds file names alone.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from coordinator.records import names
from edge.protocol import files
from edge.protocol.payload import Shapes, Vector

Place = tuple[int, str]
"""(client, slot)"""
SLOT = re.compile("[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class StoredVectors:
    """What the store holds at one time; later steps of the server do not change it. Any thread may use it."""

    folder: Path
    names: Mapping[Place, str]

    def get(self, client: int, slot: str) -> dict[str, Vector] | None:
        """A client's vectors in one slot, read from their file; None if there are none. OSError names the file."""
        name = self.names.get((client, slot))
        if name is None:
            return None
        with files.opened(self.folder / name):
            arrays = load_file(self.folder / name)
        return {key: Vector(np.ascontiguousarray(array, np.float32)) for key, array in arrays.items()}

    def clients(self, slot: str) -> list[int]:
        """The clients with vectors in this slot, in ascending order."""
        return sorted(client for client, of in self.names if of == slot)


class ClientVectors:
    """The store of one run folder; without a folder it is empty, as for the price of a run."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder / names.VECTORS
        self._names: Mapping[Place, str] = {}
        """Names of the visible files; replaced, never changed in place"""
        self._put: dict[Place, str] = {}
        """Names of files written since the server's last step"""
        self._uncommitted: dict[Place, str] = {}
        """Names of files that are visible, but in no snapshot yet"""
        self.obsolete: set[str] = set()
        """Names of files that were replaced before any commit"""
        self.expected: Shapes | None = None
        """Shapes of what is stored per client, by slot and key, as the price of a run has them; None: any"""

    def put(self, client: int, slot: str, vectors: Mapping[str, Vector]) -> None:
        """Replace a client's vectors in one slot; `get` returns them from the server's next step on.

        ValueError for a slot that is no lower-case word, vectors of other shapes than expected, and a client that is no
        number from 0; OSError that names the file if the disk fails.
        """
        client = operator.index(client)  # numpy's numbers cannot be recorded
        if client < 0:
            raise ValueError(f"store: there is no client {client}")
        if not SLOT.fullmatch(slot):
            raise ValueError(f"store: slot {slot!r} is not a lower-case word")
        sizes = {key: vector.data.size for key, vector in vectors.items()}
        if self.expected is not None and self.expected.get(slot) != sizes:
            raise ValueError(f"store: slot {slot} of shapes {sizes}, but store_shapes gives {self.expected.get(slot)}")
        assert self._folder is not None, "a server side that prices a run gets no updates"
        before = self._put.get((client, slot)) or self._names.get((client, slot))
        name = names.of_vectors(client, slot, names.version(before) + 1)
        self._folder.mkdir(exist_ok=True)
        files.write_vectors(self._folder / name, {key: vector.data for key, vector in vectors.items()})
        self._replace(self._put, (client, slot), name)

    def view(self) -> StoredVectors:
        """The store as it is now, for a download that is built later."""
        return StoredVectors(self._folder or Path(), self._names)

    def get(self, client: int, slot: str) -> dict[str, Vector] | None:
        """As `StoredVectors.get`, now."""
        return self.view().get(client, slot)

    def publish(self) -> None:
        """The server makes a step: all vectors that were put are visible."""
        for place, name in self._put.items():
            self._replace(self._uncommitted, place, name)
        self._names, self._put = {**self._names, **self._put}, {}

    def take_uncommitted(self) -> dict[Place, str]:
        """Names of the files that the next commit adds; those of earlier rounds have been taken."""
        taken, self._uncommitted = self._uncommitted, {}
        return taken

    def restore(self, committed: Mapping[Place, str]) -> None:
        """The files of a resumed run."""
        self._names, self._put, self._uncommitted = dict(committed), {}, {}

    def _replace(self, group: dict[Place, str], place: Place, name: str) -> None:
        replaced = group.get(place)
        if replaced is not None:
            self.obsolete.add(replaced)
        group[place] = name
