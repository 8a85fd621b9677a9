"""The powers of visits: columns of `Conditions` from the rows of the clients' devices and networks.

Watts are those of the whole device: its baseline (``idle``) is part of each. Nothing here knows how long a power lasts.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import Doubles, everywhere
from costmodel.fleet.variation import ProfileColumns
from costmodel.network.tcp import WIRE_FACTOR


def train_watts(energy: str, device: ProfileColumns, mode: Doubles) -> Doubles:
    """(visits,) The power of computing; ``energy``: `FleetConfig.compute_energy`.

    ``mode``: (visits,) factor on the clock. With kappa, power above the baseline grows with its cube.
    """
    if energy != "kappa":
        return device["train_watts"]
    idle = device["idle_watts"]
    return idle + (device["train_watts"] - idle) * mode**3


def radio(energy: str, network: ProfileColumns, idle: Doubles) -> dict[str, Doubles]:
    """The columns of transfers and of the radio's tail, (visits,) each; ``energy``: `FleetConfig.radio_energy`."""
    return _radio_by_rate(network, idle) if energy == "rate" else _radio_by_power(network, idle)


def _radio_by_rate(network: ProfileColumns, idle: Doubles) -> dict[str, Doubles]:
    # Figures by bit are those of goodput where the row's rates are, and messages are counted on the wire.
    to_wire = np.where(network["goodput"] > 0, WIRE_FACTOR, 1.0)
    return {
        "transmit_watts": idle + network["base_watts"],
        "transmit_joules_per_bit": network["transmit_joules_per_bit"] / to_wire,
        "receive_watts": idle + network["base_watts"],
        "receive_joules_per_bit": network["receive_joules_per_bit"] / to_wire,
        "tail_watts": network["tail_watts"],
        "tail_seconds": network["tail_seconds"],
    }


def _radio_by_power(network: ProfileColumns, idle: Doubles) -> dict[str, Doubles]:
    nothing = np.zeros_like(idle)
    return {
        "transmit_watts": idle + network["transmit_watts"],
        "transmit_joules_per_bit": nothing,
        "receive_watts": idle + network["receive_watts"],
        "receive_joules_per_bit": nothing,
        "tail_watts": nothing,
        "tail_seconds": nothing,
    }


def promotion(is_counted: bool, network: ProfileColumns, idle: Doubles) -> dict[str, Doubles]:
    """The columns of an idle radio that connects, (visits,) each; ``is_counted``: `Transport.promotion`."""
    if not is_counted:
        nothing = everywhere(np.float64(0.0), idle.size)
        return dict.fromkeys(("awake_seconds", "promotion_seconds", "promotion_watts"), nothing)
    return {
        "awake_seconds": network["tail_seconds"],
        "promotion_seconds": network["promotion_seconds"],
        "promotion_watts": idle + network["promotion_watts"],
    }
