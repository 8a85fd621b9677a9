"""The clients' devices and networks, and the conditions of their visits in one round.

A fleet is drawn once per run: each client gets a device, a network and factors of its own for the whole run. Numbers
that change from round to round, or from visit to visit, come from streams keyed by the round or the visit: a fleet
never changes and has no random state.

Clients' rates are bit/s on the wire, headers included, so that all flows of a link are measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams, everywhere
from costmodel.config import FleetConfig
from costmodel.fleet import powers
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.devices import devices as device_table
from costmodel.fleet.devices import networks as network_table
from costmodel.fleet.dynamics import ClientDynamics, client_dynamics, recorded_link
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.model_speed import Operations, speed
from costmodel.fleet.recorded_clients import TraceAssignment
from costmodel.fleet.traces import TraceColumns
from costmodel.fleet.variation import (
    ProfileColumns,
    VisitVariation,
    assign,
    columns,
    noise_factors,
    uniforms,
    visit_variation,
)
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.links import Links
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.units import HOUR_SECONDS

VISITS_PER_DRAW = 1024
_Profiles = tuple[ProfileColumns, ProfileColumns, dict[str, Doubles]]
"""(devices' figures, networks' figures, the radio's columns of `Conditions`)"""


@dataclass(frozen=True)
class Fleet:
    """Each client's device and network, the links that clients share, and client dynamics."""

    devices: tuple[Device, ...]
    """The devices that occur."""
    networks: tuple[Network, ...]
    """The networks that occur."""
    device_of: NDArray[np.intp]
    """(clients,) index into ``devices``"""
    network_of: NDArray[np.intp]
    """(clients,) index into ``networks``"""
    flops_per_second: Doubles
    """(clients,) in the full-speed mode"""
    down: Doubles
    """(clients,) bit/s on the wire"""
    up: Doubles
    rtt: Doubles
    """(clients,) seconds"""
    streams: Streams
    config: FleetConfig = field(default_factory=FleetConfig)
    """What else the clients' visits depend on: variation from round to round and visit to visit, batteries, energy"""
    links: Links = field(default_factory=Links)
    behaviour: ClientDynamics = field(default_factory=ClientDynamics)
    normal_streams: Streams | None = None
    """Streams of the normal numbers of visits (jitter, noise) where they are not those of ``streams``"""
    traced: frozenset[str] = frozenset()
    """The figures of clients, by the names of the fields above, that come from a trace and not from rows"""
    bandwidth_cv: Doubles | None = None
    """(clients, 2) coefficient of variation of each client's rates down and up, where a trace has it"""

    @classmethod
    def build(
        cls,
        clients: int,
        config: FleetConfig,
        *,
        streams: Streams,
        families: Sequence[str] = ("conv",),
        inputs: FleetInputs | None = None,
    ) -> Fleet:
        """Draw a fleet for a model of the first of these ``families`` that a device has a throughput for.

        With ``inputs.trace``, each client gets a row of it (each row once before any comes twice, in a random order or
        in that of the file): rates are taken as they are, and seconds per sample as speeds relative to the median row,
        which computes like the clients' devices. Of figures over time it has the mean.
        ValueError for an unknown name, shares that are not positive, figures with which virtual times are so large that
        float64 has no digits for seconds, and tables that contradict the inputs.
        """
        inputs = inputs or FleetInputs()
        rng = streams("fleet", 0, 0)
        device_places, network_places = rng.permutation(clients), rng.permutation(clients)
        # All numbers are always drawn, so that changing one key leaves the draws of the others as they were.
        uniform_compute, uniform_bandwidth = rng.random(clients), rng.random(clients)
        normals = rng.standard_normal((clients, 3))
        devices, device_of = assign("device", config.devices, {**device_table(), **inputs.devices}, device_places)
        networks, network_of = assign(
            "network", config.networks, {**network_table(), **inputs.networks}, network_places
        )
        try:
            throughputs = np.array([device.throughput(*families) for device in devices], np.float64)
        except ValueError as error:
            raise ValueError(f"fleet: {error}") from None
        computes = throughputs[device_of] / np.exp(uniform_compute * math.log(config.compute_spread))
        computes = computes * np.exp(config.compute_sigma * normals[:, 0])
        network = ProfileColumns(columns(networks), network_of)
        slower = np.exp(uniform_bandwidth * math.log(config.bandwidth_spread))
        to_wire = np.where(network["goodput"] > 0, WIRE_FACTOR, 1.0)
        down_sigma = network["sigma_down"] if config.down_sigma == "network" else config.down_sigma
        up_sigma = network["sigma_up"] if config.up_sigma == "network" else config.up_sigma
        down = network["down_bits_per_second"] * to_wire / slower * np.exp(down_sigma * normals[:, 1])
        up = network["up_bits_per_second"] * to_wire / slower * np.exp(up_sigma * normals[:, 2])
        assignment = TraceAssignment(clients, config, streams)
        shuffle = streams("trace", 0, 0) if assignment.is_shuffled else None
        traced = TraceColumns(inputs.trace, config.trace_case, clients, shuffle)
        link = recorded_link(config, inputs, assignment)
        bandwidth_cv = traced.cv()
        outages = network["outages_per_hour"], network["outage_seconds"]
        fleet = cls(
            devices,
            networks,
            device_of,
            network_of,
            flops_per_second=traced.speed(computes),
            down=traced.rate(DOWN, down),
            up=traced.rate(UP, up),
            rtt=traced.rtt(network["rtt_seconds"]),
            streams=streams,
            config=config,
            links=Links.of(config),
            behaviour=client_dynamics(config, inputs, assignment, link, bandwidth_cv, outages),
            traced=traced.figures,
            bandwidth_cv=bandwidth_cv,
        )
        fleet.check("fleet" if inputs.trace is None else "fleet.trace")
        if link is None:
            return fleet
        of_down, of_up = link.rates
        fleet = replace(fleet, down=fleet.down if of_down is None else of_down, up=fleet.up if of_up is None else of_up)
        fleet.check("fleet.bandwidth.file")
        return fleet

    def check(self, key: str) -> None:
        """ValueError of ``key`` for a device or link so slow that float64 has no digits for seconds of virtual time."""
        for text, values, wrong in (
            ("computes at {:g} FLOP/s; the least is 1", self.flops_per_second, self.flops_per_second < 1),
            ("downloads at {:g} bit/s; the least is 1", self.down, self.down < 1),
            ("uploads at {:g} bit/s; the least is 1", self.up, self.up < 1),
            ("has round trips of {:g} s; the most is 3600", self.rtt, self.rtt > HOUR_SECONDS),
        ):
            for client in np.flatnonzero(wrong)[:1].tolist():
                raise ValueError(f"{key}: client {client} {text.format(values[client])}")

    def for_model(self, families: Sequence[str], step: Operations) -> Fleet:
        """The same clients with the throughput and overhead that their devices have for a model by its operations.

        ``families``: those that the fleet was drawn for. The same fleet where no device has figures by operation.
        """
        if not any(device.operations_per_second for device in self.devices):
            return self
        before = np.array([device.throughput(*families) for device in self.devices])
        speeds = [speed(device, families, step) for device in self.devices]
        rows = tuple(
            replace(device, step_seconds=overhead) for device, (_, overhead) in zip(self.devices, speeds, strict=True)
        )
        ratio = np.array([throughput for throughput, _ in speeds]) / before
        fleet = replace(self, devices=rows, flops_per_second=self.flops_per_second * ratio[self.device_of])
        fleet.check("fleet.devices")
        return fleet

    def __len__(self) -> int:
        return self.device_of.size

    @property
    def battery_joules(self) -> float:
        """Each client's energy for the whole run, of which `costmodel.visits.timeline` limits parts; inf: mains."""
        return math.inf if self.config.battery is None else self.config.battery

    @cached_property
    def _device_columns(self) -> dict[str, Doubles]:
        return columns(self.devices)

    @cached_property
    def _network_columns(self) -> dict[str, Doubles]:
        return columns(self.networks)

    # Draws of two rounds are cached, since callers may alternate between the visits of two rounds.

    @cached_property
    def _drawn(self) -> Callable[[str, int, int], VisitVariation]:
        return lru_cache(maxsize=2)(partial(visit_variation, self.streams, self.normal_streams, self.loses_segments))

    @cached_property
    def _uniforms(self) -> Callable[[int, int], Doubles]:
        return lru_cache(maxsize=2)(partial(uniforms, self.streams))

    @cached_property
    def loses_segments(self) -> bool:
        """Whether the losses of a network narrow the windows of senders."""
        return self.links.transport.congestion == "cubic" and any(network.loss > 0 for network in self.networks)

    def device_names(self, clients: Sequence[int]) -> list[str]:
        """The names of these clients' devices."""
        return [self.devices[row].name for row in self.device_of[clients].tolist()]

    def network_names(self, clients: Sequence[int]) -> list[str]:
        """The names of these clients' networks."""
        return [self.networks[row].name for row in self.network_of[clients].tolist()]

    def memory_bytes(self, client: int) -> int:
        """The memory of a client's device."""
        return self.devices[int(self.device_of[client])].memory_bytes

    def access_link_of(self, clients: NDArray[np.intp]) -> NDArray[np.intp]:
        """Each client's access link: clients are assigned to them in turn."""
        return clients % max(len(self.links.site_down), 1)

    def conditions(
        self,
        clients: Sequence[int] | NDArray[np.intp],
        round: int,
        visit: int | None = None,
        *,
        is_second: bool = False,
        last_down: Doubles | None = None,
        last_up: Doubles | None = None,
        threshold: Doubles | None = None,
        charge: Doubles | None = None,
    ) -> Conditions:
        """The conditions of these clients' visits in ``round``; by default, connections are new and batteries full.

        Variation from visit to visit is drawn for the round, or for the one visit of the number ``visit``.
        ``is_second``: for a second visit of each client in the round, with the round's ``redraw``.
        """
        chosen = np.asarray(clients, np.intp)
        config = self.config
        device, network, radio = self._profiles(chosen)
        draws = self._draws(chosen, round, visit, is_second)
        mode, down, up = self._modes(chosen, round)
        flops_per_second = self.flops_per_second[chosen] * mode
        if config.redraw:
            vary = 1 + 2 * config.redraw * (draws.uniform - 0.5)
            flops_per_second, down, up = flops_per_second * vary[:, 0], down * vary[:, 1], up * vary[:, 1]
        hazard = config.crashes_per_hour / HOUR_SECONDS
        return Conditions(
            clients=chosen,
            access_link=self.access_link_of(chosen),
            flops_per_second=flops_per_second,
            step_seconds=device["step_seconds"],
            slowdown=np.exp(config.jitter * draws.normal[:, 0]) if config.jitter else np.ones(chosen.size),
            down=down,
            up=up,
            noise=noise_factors(self.links.transport.noise, draws.normal[:, 1:3]),
            rtt=self.rtt[chosen],
            last_down=np.full(chosen.size, -math.inf) if last_down is None else last_down,
            last_up=np.full(chosen.size, -math.inf) if last_up is None else last_up,
            loss=network["loss"] if self.loses_segments else everywhere(np.float64(0.0), chosen.size),
            loss_seed=everywhere(np.int64(0), chosen.size, 2) if draws.seed is None else draws.seed,
            threshold=everywhere(np.float64(math.inf), chosen.size, 2) if threshold is None else threshold,
            crash_after=draws.exponential / hazard if hazard > 0 else np.full(chosen.size, math.inf),
            charge=np.full(chosen.size, self.battery_joules) if charge is None else charge,
            train_watts=powers.train_watts(config.compute_energy, device, mode),
            idle_watts=device["idle_watts"],
            **radio,
        )

    def _profiles(self, chosen: NDArray[np.intp]) -> _Profiles:
        if chosen.size == 1:
            client = int(chosen[0])
            return self._profiles_of_one(int(self.device_of[client]), int(self.network_of[client]))
        return self._profiles_of(self.device_of[chosen], self.network_of[chosen])

    def _profiles_of(self, device_of: NDArray[np.intp], network_of: NDArray[np.intp]) -> _Profiles:
        device = ProfileColumns(self._device_columns, device_of)
        network = ProfileColumns(self._network_columns, network_of)
        idle = device["idle_watts"]
        radio = powers.radio(self.config.radio_energy, network, idle)
        return device, network, radio | powers.promotion(self.links.transport.promotion, network, idle)

    @cached_property
    def _profiles_of_one(self) -> Callable[[int, int], _Profiles]:
        """Clients with the same rows share the columns: visits that begin one by one are many, and rows are few."""
        return lru_cache(lambda device, network: self._profiles_of(np.array([device]), np.array([network])))

    def _draws(self, chosen: NDArray[np.intp], round: int, visit: int | None, is_second: bool) -> VisitVariation:
        config = self.config
        varies = config.jitter or config.redraw or self.links.transport.noise or config.crashes_per_hour
        if not (varies or self.loses_segments):
            return VisitVariation.none(chosen.size)
        if visit is None:
            first = self._drawn("visits of a round", round, len(self)).of(chosen)
            if not is_second:
                return first
            return replace(self._drawn("second visits of a round", round, len(self)).of(chosen), uniform=first.uniform)
        block, index = divmod(visit, VISITS_PER_DRAW)
        return self._drawn("visits one by one", block, VISITS_PER_DRAW).of(slice(index, index + 1))

    def _modes(self, chosen: NDArray[np.intp], round: int) -> tuple[Doubles, Doubles, Doubles]:
        """(factor on throughput, rate down, rate up) in this round."""
        every, rates = self.config.mode_rounds, self.config.rates
        if not every and rates is None:
            return np.ones(chosen.size), self.down[chosen], self.up[chosen]
        drawn = self._uniforms(round // every if every else 0, len(self))[chosen]
        mode = np.ones(chosen.size)
        if every:
            for index, device in enumerate(self.devices):
                has_device = self.device_of[chosen] == index
                factors = np.array(device.modes, np.float64)
                mode[has_device] = factors[(drawn[has_device, 0] * factors.size).astype(np.intp)]
        if rates is None:
            return mode, self.down[chosen], self.up[chosen]
        low, high = rates
        down, up = (WIRE_FACTOR * (low + (high - low) * drawn[:, column]) for column in (1, 2))
        return mode, down, up
