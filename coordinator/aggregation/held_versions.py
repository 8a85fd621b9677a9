"""The versions of vectors that clients hold from their last visits that counted: what codecs take differences from.

A visit that does not count leaves its client as it was, here as in the client's own state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Payload, Vector, vectors

Held = dict[tuple[str, str], Vector]
"""(slot, key) -> the version that a client holds"""
SENT = "model as sent"
"""Slot of the server's own version of a block of the model that a client holds as a codec has changed it on its way
down, and that not every visit downloads"""
SEPARATOR = "|"


class HeldVersions:
    """What each client holds. Clients share the vectors of a version; one that no client holds any more is dropped."""

    def __init__(self, is_wanted: Callable[[str, str, int], bool] = lambda slot, key, size: False) -> None:
        """``is_wanted``: of (slot, key, numbers), whether any codec takes differences from versions of this vector."""
        self._is_wanted = is_wanted
        self._held: dict[int, Held] = {}

    def of(self, client: int) -> Mapping[tuple[str, str], Vector]:
        """What a client holds."""
        return self._held.get(client, {})

    def received(self, client: int, payload: Payload) -> None:
        """Note vectors that a visit has downloaded, which counts."""
        wanted = {
            (slot, key): vector
            for slot, key, vector in vectors(payload)
            if self._is_wanted(slot, key, vector.data.size)
        }
        if wanted:
            self._held.setdefault(client, {}).update(wanted)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Each version once, and (client, number of its version) of each vector, by name."""
        numbers: dict[tuple[str, str], dict[bytes, int]] = {}
        state: dict[str, NDArray[np.generic]] = {}
        holders: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for client, held in sorted(self._held.items()):
            for place, vector in held.items():
                versions = numbers.setdefault(place, {})
                number = versions.setdefault(vector.version, len(versions))
                state.setdefault(SEPARATOR.join((*place, str(number))), vector.data)
                holders.setdefault(place, []).append((client, number))
        return state | {SEPARATOR.join((*place, "clients")): np.array(pairs) for place, pairs in holders.items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""
        self._held = {}
        known = {name: Vector(np.asarray(array, np.float32)) for name, array in state.items() if name[-1].isdigit()}
        for name, pairs in state.items():
            slot, key, last = name.rsplit(SEPARATOR, 2)
            if last == "clients":
                for client, number in np.asarray(pairs, np.int64).tolist():
                    self._held.setdefault(client, {})[slot, key] = known[SEPARATOR.join((slot, key, str(number)))]
