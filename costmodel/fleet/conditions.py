"""The conditions of a batch of visits: speeds, rates and powers, drawn by `costmodel.fleet.fleet`. Numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.network.bandwidth import UP


@dataclass(frozen=True)
class Conditions:
    """Columns of a batch of visits; float64 arrays of shape (visits,) unless said otherwise."""

    clients: NDArray[np.intp]
    access_link: NDArray[np.intp]
    """Index of the client's access link; 0 where there are none"""
    flops_per_second: Doubles
    step_seconds: Doubles
    """Overhead of each local step"""
    codec_slowdown: Doubles
    """Seconds of encoding or decoding for each second of the reference host"""
    slowdown: Doubles
    """Factor on the computing time of this visit"""
    down: Doubles
    """Rate of the client's own downlink, bit/s on the wire"""
    up: Doubles
    """Rate of the client's own uplink, bit/s on the wire"""
    noise: Doubles
    """(visits, 2) Factors on the bits of the download and of the upload"""
    rtt: Doubles
    """seconds"""
    last_down: Doubles
    """Absolute seconds of the client's last download; -inf: never"""
    last_up: Doubles
    """Absolute seconds of the client's last upload; -inf: never"""
    loss: Doubles
    """Probability that a segment is lost, where that narrows the sender's window"""
    loss_seed: NDArray[np.int64]
    """(visits, 2) Seeds of the losses of the download and of the upload"""
    threshold: Doubles
    """(visits, 2) `costmodel.network.senders.Path.threshold` of the client's connection down and up"""
    crash_after: Doubles
    """Seconds of work after which the client crashes; inf: it does not"""
    charge: Doubles
    """Joules left in the battery; inf: mains"""
    train_watts: Doubles
    """Power of the whole device while it computes, its baseline included"""
    idle_watts: Doubles
    """The device's baseline, which it draws at all times"""
    transmit_watts: Doubles
    """Power of the whole device while it uploads, its baseline included"""
    transmit_joules_per_bit: Doubles
    """Drawn beside it for each bit on the wire"""
    receive_watts: Doubles
    """Power of the whole device while it downloads, its baseline included"""
    receive_joules_per_bit: Doubles
    """Drawn beside it for each bit on the wire"""
    tail_watts: Doubles
    """Drawn by the radio after a transfer, beside what the device draws"""
    tail_seconds: Doubles
    awake_seconds: Doubles
    """Seconds after a message for which the radio needs no promotion"""
    promotion_seconds: Doubles
    """Seconds that an idle radio takes to connect before a message; 0 where that is not counted"""
    promotion_watts: Doubles
    """Power of the whole device meanwhile, its baseline included"""

    def __len__(self) -> int:
        return self.clients.size

    @property
    def last_message(self) -> Doubles:
        """Absolute seconds at which each client's last message ended; -inf: it had none."""
        return np.maximum(self.last_down, self.last_up)

    def only(self, which: NDArray[np.bool_] | slice) -> Conditions:
        """Those of the visits of a mask or slice."""
        return Conditions(**{name: column[which] for name, column in vars(self).items()})

    def followed_by(self, *others: Conditions) -> Conditions:
        """These visits, then the others."""
        return Conditions(
            **{
                name: np.concatenate((column, *(getattr(each, name) for each in others)))
                for name, column in vars(self).items()
            }
        )

    def disconnected(self, which: NDArray[np.bool_]) -> Conditions:
        """The same, but for the connections of these visits (mask), which are new."""
        last_down, last_up = (np.where(which, -math.inf, last) for last in (self.last_down, self.last_up))
        return replace(self, last_down=last_down, last_up=last_up)

    def compute_seconds(self, flops: Doubles, steps: NDArray[np.int64], codec_seconds: Doubles) -> Doubles:
        """Seconds of ``flops`` in ``steps`` local steps and of ``codec_seconds`` on the reference host, without a
        pause; (visits,) each."""
        training = steps * self.step_seconds + flops / self.flops_per_second
        return (training + codec_seconds * self.codec_slowdown) * self.slowdown

    def rate(self, direction: int) -> Doubles:
        """Rates of the clients' own links in one direction, bit/s on the wire."""
        return self.up if direction == UP else self.down

    def last_used(self, direction: int) -> Doubles:
        """Absolute seconds of the clients' last transfers in one direction."""
        return self.last_up if direction == UP else self.last_down

    def radio(self, direction: int) -> tuple[Doubles, Doubles]:
        """(watts of the whole device while it transfers, joules per bit) in one direction."""
        if direction == UP:
            return self.transmit_watts, self.transmit_joules_per_bit
        return self.receive_watts, self.receive_joules_per_bit
