"""The doors of one pool and what comes through them: messages, news of lost connections, questions about keys."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import zmq

from coordinator.workers.door import Door, Gate, Porter
from coordinator.workers.listener import Listener
from coordinator.workers.task import PoolError

OWN, GUESTS = "pool", "guests"
"""Sockets in the folder of a pool."""
PROBE_SECONDS = 1.0
"""From a lost connection to the search for whose it was: libzmq forgets the peer meanwhile."""
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero


@dataclass(frozen=True)
class Happened:
    """What a wait ended with."""

    doors: list[Door]
    """Those at which messages have come."""
    stranger: str | None
    """Somebody whose key was refused."""
    is_told: bool
    """Whether the nursery has news."""


class Entrance:
    """A door for the pool's own workers, and one for guests if there is a gate."""

    def __init__(
        self,
        folder: Path,
        gate: Gate | None,
        most_nbytes: int,
        heartbeat_seconds: float,
        nursery: int,
        exits: ExitStack,
    ) -> None:
        """``folder``: for the sockets; ``most_nbytes``: of a guest's largest message, all of its parts together.

        ``nursery``: a file that can be read when it has news. PoolError.
        """
        path, guests = folder / OWN, folder / GUESTS
        if len(os.fsencode(guests)) > MAX_SOCKET_PATH_NBYTES:
            raise PoolError(f"{folder} is too long for a socket: set TMPDIR to a shorter folder")
        self.listener: Listener | None = None
        if gate is not None:  # it passes on the last bytes of sockets that are closed
            self.listener = Listener(gate.endpoint, guests, most_nbytes, heartbeat_seconds, exits)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        exits.callback(context.term)
        self.own = Door(context, f"ipc://{path}", heartbeat_seconds, exits)
        self.guests: Door | None = None
        self.gate = gate
        """As it was opened: with the port that was given to it."""
        self._porter: Porter | None = None
        if gate is not None and self.listener is not None:
            listener = self.listener
            self._porter = Porter(context, gate.allowed, lambda: listener.asked, exits)
            self.guests = Door(context, f"ipc://{guests}", heartbeat_seconds, exits, gate, most_nbytes)
            self.gate = replace(gate, endpoint=listener.endpoint)
            listener.start()
        self._nursery = nursery
        self._doors = [door for door in (self.own, self.guests) if door is not None]
        self._poller = zmq.Poller()
        sockets = [socket for door in self._doors for socket in (door.router, door.monitor)]
        for source in (*sockets, *([self._porter.socket] if self._porter else []), nursery):
            self._poller.register(source, zmq.POLLIN)
        self._probe_at = float("inf")

    def wait(self, seconds: float) -> Happened:
        """Until something happens, but no longer than ``seconds``."""
        happened = dict(self._poller.poll(round(seconds * 1000)))
        is_asked = self._porter is not None and self._porter.socket in happened
        stranger = self._porter.answer() if self._porter is not None and is_asked else None
        for door in self._doors:
            if door.monitor in happened:
                door.take_loss()
                self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        doors = [door for door in self._doors if door.router in happened]
        if self.listener is not None and self.guests not in doors:
            self.listener.drained()
        return Happened(doors, stranger, self._nursery in happened)

    def is_to_probe(self) -> bool:
        """Whether it is time to find whose connection was lost; once per loss."""
        if self._probe_at > time.monotonic():
            return False
        self._probe_at = float("inf")
        return True
