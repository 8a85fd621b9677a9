"""How clients with the same device and network differ, for the whole run: numbers drawn once, before the first round.

Nothing here varies from round to round (`costmodel.fleet.variation`), and nothing comes from a trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.fleet.devices import Device
from costmodel.fleet.variation import ProfileColumns
from costmodel.network.tcp import WIRE_FACTOR


@dataclass(frozen=True)
class ClientVariation:
    """How clients with the same device and network differ, for the whole run."""

    compute: float = 1.0
    """s: each client's throughput is divided by a factor that is log-uniform in 1 .. s"""
    bandwidth: float = 1.0
    """s: both rates of each client are divided by a factor that is log-uniform in 1 .. s"""
    compute_sigma: float = 0.0
    """Each client's throughput is multiplied by a lognormal factor of median 1"""
    down_sigma: float | None = 0.0
    """Each client's downlink rate is multiplied by a lognormal factor of median 1; None: its network's sigma"""
    up_sigma: float | None = 0.0
    """The same for its uplink rate"""
    rates: tuple[float, float] | None = None
    """(low, high) bit/s as a measurement of throughput sees them: each rate is uniform between the two"""


class ClientDraws:
    """The random numbers of a fleet's clients.

    All are always drawn, so that changing one option leaves the draws of the others as they were.
    """

    def __init__(self, rng: np.random.Generator, clients: int) -> None:
        self.devices, self.networks = rng.permutation(clients), rng.permutation(clients)
        """(clients,) places in the order by which devices and networks are handed out"""
        self.compute, self.bandwidth = rng.random(clients), rng.random(clients)
        """(clients,) in 0 .. 1"""
        self.normals = rng.standard_normal((clients, 3))
        """(clients, 3) for throughput and for the rates down and up"""


def throughputs(
    devices: Sequence[Device],
    device_of: NDArray[np.intp],
    families: Sequence[str],
    spread: ClientVariation,
    draws: ClientDraws,
) -> Doubles:
    """(clients,) FLOP/s of each client for a model of the first of ``families`` that its device has a figure for."""
    by_device = np.array([device.throughput(*families) for device in devices], np.float64)
    speed = by_device[device_of] / np.exp(draws.compute * math.log(spread.compute))
    return speed * np.exp(spread.compute_sigma * draws.normals[:, 0])


def wire_rates(network: ProfileColumns, spread: ClientVariation, draws: ClientDraws) -> tuple[Doubles, Doubles]:
    """(down, up) of each client in bit/s on the wire, from its network's medians."""
    slower = np.exp(draws.bandwidth * math.log(spread.bandwidth))
    to_wire = np.where(network["goodput"] > 0, WIRE_FACTOR, 1.0)
    down_sigma = network["sigma_down"] if spread.down_sigma is None else spread.down_sigma
    up_sigma = network["sigma_up"] if spread.up_sigma is None else spread.up_sigma
    down = network["down_bits_per_second"] * to_wire / slower * np.exp(down_sigma * draws.normals[:, 1])
    up = network["up_bits_per_second"] * to_wire / slower * np.exp(up_sigma * draws.normals[:, 2])
    return down, up
