"""What some clients can do in the visits that begin now: numbers only, drawn by `costmodel.fleet.fleet`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.network.bandwidth import UP

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Conditions:
    """Columns of a batch of visits; float64 arrays of shape (visits,) unless said otherwise."""

    clients: NDArray[np.intp]
    site: NDArray[np.intp]
    """Which site's link the client is behind; 0 where there are no sites"""
    flops_per_second: Doubles
    step_seconds: Doubles
    """Overhead of each local step"""
    slowdown: Doubles
    """What the computing time of this visit is multiplied by"""
    down: Doubles
    """bit/s on the wire, the client's own link"""
    up: Doubles
    """bit/s on the wire, the client's own link"""
    noise: Doubles
    """(visits, 2) What the bits of the download and of the upload are multiplied by"""
    rtt: Doubles
    """seconds"""
    last_down: Doubles
    """Absolute seconds at which the client was last sent to; -inf: never"""
    last_up: Doubles
    """Absolute seconds at which the client last sent; -inf: never"""
    crash_after: Doubles
    """Seconds of being at work after which the client crashes; inf: it does not"""
    charge: Doubles
    """Joules left in the battery; inf: mains"""
    train_watts: Doubles
    idle_watts: Doubles
    transmit_watts: Doubles
    transmit_joules_per_bit: Doubles
    receive_watts: Doubles
    receive_joules_per_bit: Doubles
    tail_watts: Doubles
    """Drawn by the radio after a transfer"""
    tail_seconds: Doubles

    def __len__(self) -> int:
        return self.clients.size

    def compute_seconds(self, flops: Doubles, steps: NDArray[np.int64]) -> Doubles:
        """How long so much work takes without a pause."""
        return (steps * self.step_seconds + flops / self.flops_per_second) * self.slowdown

    def rate(self, direction: int) -> Doubles:
        """Of the client's own link, bit/s on the wire."""
        return self.up if direction == UP else self.down

    def last_used(self, direction: int) -> Doubles:
        """When the client last sent or was last sent to."""
        return self.last_up if direction == UP else self.last_down

    def radio(self, direction: int) -> tuple[Doubles, Doubles]:
        """(watts while it is at work, joules per bit)"""
        if direction == UP:
            return self.transmit_watts, self.transmit_joules_per_bit
        return self.receive_watts, self.receive_joules_per_bit
