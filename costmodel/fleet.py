"""The clients' devices and networks, and what they can do in one round.

A fleet is drawn once per run: each client gets a device, a network and two slow-down factors that it keeps. What
changes from round to round is drawn by the caller's generators: a fleet never changes and holds no random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.device import Device, Network, nearest
from costmodel.device import devices as device_table
from costmodel.device import networks as network_table

Doubles = NDArray[np.float64]
Choice = Mapping[str, float] | Sequence[str]
"""Shares by name (any positive numbers), or one name per client."""


@dataclass(frozen=True)
class Conditions:
    """What some clients can do in one round; float64 arrays of shape (clients,)."""

    flops_per_second: Doubles
    down: Doubles
    """bit/s, the client's own link"""
    up: Doubles
    """bit/s, the client's own link"""
    rtt: Doubles
    """seconds"""
    train_watts: Doubles
    idle_watts: Doubles
    transmit_watts: Doubles
    receive_watts: Doubles


@dataclass(frozen=True)
class Fleet:
    """Who has which device and network, and the server's link that all share."""

    devices: tuple[Device, ...]
    """The kinds of device that occur."""
    networks: tuple[Network, ...]
    """The kinds of network that occur."""
    device_of: NDArray[np.intp]
    """(clients,) index into ``devices``"""
    network_of: NDArray[np.intp]
    """(clients,) index into ``networks``"""
    compute_slowdown: Doubles
    """(clients,) >= 1: what the device's throughput is divided by"""
    bandwidth_slowdown: Doubles
    """(clients,) >= 1: what both rates of the network are divided by"""
    server_down: float
    """bit/s from the server to all clients together; inf: never a bottleneck"""
    server_up: float
    """bit/s from all clients together to the server; inf: never a bottleneck"""
    redraw: float
    """r: in each round a client's throughput and its rates are each times a factor from U(1-r, 1+r)"""

    @classmethod
    def build(
        cls,
        clients: int,
        devices: Choice,
        networks: Choice,
        *,
        server_down: float,
        server_up: float,
        compute_spread: float = 1.0,
        bandwidth_spread: float = 1.0,
        redraw: float = 0.0,
        rng: np.random.Generator,
    ) -> Fleet:
        """Draw a fleet. A spread s divides each client's figure by exp(U(0, ln s)), log-uniform from 1 to s.

        ValueError for an unknown name, shares that are not positive, or a number out of its range.
        """
        _check(clients, server_down=server_down, server_up=server_up, redraw=redraw)
        _check_spreads(compute_spread=compute_spread, bandwidth_spread=bandwidth_spread)
        # All four draws are always made, so that changing one option leaves what the others drew as it was.
        device_places, network_places = rng.permutation(clients), rng.permutation(clients)
        compute_places, bandwidth_places = rng.random(clients), rng.random(clients)
        device_names, device_of = _assign("device", devices, device_table(), device_places)
        network_names, network_of = _assign("network", networks, network_table(), network_places)
        return cls(
            tuple(device_table()[name] for name in device_names),
            tuple(network_table()[name] for name in network_names),
            device_of,
            network_of,
            compute_slowdown=np.exp(compute_places * math.log(compute_spread)),
            bandwidth_slowdown=np.exp(bandwidth_places * math.log(bandwidth_spread)),
            server_down=server_down,
            server_up=server_up,
            redraw=redraw,
        )

    def __len__(self) -> int:
        return self.device_of.size

    def device_name(self, client: int) -> str:
        """The kind of device that a client has."""
        return self.devices[int(self.device_of[client])].name

    def network_name(self, client: int) -> str:
        """The kind of network that a client has."""
        return self.networks[int(self.network_of[client])].name

    def conditions(self, clients: Sequence[int], rng_of: Callable[[int], np.random.Generator]) -> Conditions:
        """What these clients can do now; ``rng_of(client)`` is asked only if ``redraw`` > 0, once per client."""
        chosen = np.asarray(clients, np.intp)
        factor = np.ones((chosen.size, 2))
        if self.redraw > 0:
            low, high = 1 - self.redraw, 1 + self.redraw
            factor = np.array([rng_of(client).uniform(low, high, 2) for client in clients]).reshape(-1, 2)
        speed, bandwidth = factor[:, 0] / self.compute_slowdown[chosen], factor[:, 1] / self.bandwidth_slowdown[chosen]

        def of_device(key: str) -> Doubles:
            return np.array([getattr(device, key) for device in self.devices], np.float64)[self.device_of[chosen]]

        def of_network(key: str) -> Doubles:
            return np.array([getattr(network, key) for network in self.networks], np.float64)[self.network_of[chosen]]

        return Conditions(
            flops_per_second=of_device("flops_per_second") * speed,
            down=of_network("down_bits_per_second") * bandwidth,
            up=of_network("up_bits_per_second") * bandwidth,
            rtt=of_network("rtt_seconds"),
            train_watts=of_device("train_watts"),
            idle_watts=of_device("idle_watts"),
            transmit_watts=of_network("transmit_watts"),
            receive_watts=of_network("receive_watts"),
        )


def counts(shares: Mapping[str, float], clients: int) -> NDArray[np.intp]:
    """How many clients each name gets, in the order of the names: largest remainders, ties to the first name."""
    quotas = clients * np.array(list(shares.values()), np.float64) / math.fsum(shares.values())
    whole = np.floor(quotas).astype(np.intp)
    by_remainder = np.argsort(whole - quotas, kind="stable")
    whole[by_remainder[: clients - whole.sum()]] += 1
    return whole


def _assign(
    kind: str, choice: Choice, table: Mapping[str, object], places: NDArray[np.intp]
) -> tuple[list[str], NDArray[np.intp]]:
    """(names that occur, index into them per client); ``places`` is a random order of the clients."""
    assert not isinstance(choice, str), choice
    names = list(dict.fromkeys(choice))
    for name in names:
        if name not in table:
            raise ValueError(f"unknown {kind} {name!r}, {nearest(name, table)}")
    if not isinstance(choice, Mapping):
        if len(choice) != places.size:
            raise ValueError(f"{len(choice)} {kind} names for {places.size} clients: give one per client, or shares")
        index = {name: position for position, name in enumerate(names)}
        return names, np.array([index[name] for name in choice], np.intp)
    for name, number in choice.items():
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"the share of {kind} {name!r} must be a positive number, not {number!r}")
    if not names:
        raise ValueError(f"no {kind} is named: choose from {', '.join(table)}")
    return names, np.repeat(np.arange(len(names)), counts(choice, places.size))[places]


def _check(clients: int, *, server_down: float, server_up: float, redraw: float) -> None:
    if clients < 1:
        raise ValueError(f"a fleet needs at least one client, not {clients}")
    for name, rate in (("server_down", server_down), ("server_up", server_up)):
        if not rate > 0:
            raise ValueError(f"{name} must be a positive number of bit/s, not {rate!r}")
    if not 0 <= redraw < 1:
        raise ValueError(f"redraw must be at least 0 and less than 1, not {redraw!r}")


def _check_spreads(**spreads: float) -> None:
    for name, spread in spreads.items():
        if not (math.isfinite(spread) and spread >= 1):
            raise ValueError(f"{name} must be at least 1, not {spread!r}")
