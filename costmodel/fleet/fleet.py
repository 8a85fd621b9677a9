"""The clients' devices and networks, and the conditions of their visits in one round.

A fleet is drawn once per run: each client gets a device, a network and factors of its own for the whole run. Numbers
that change from round to round, or from visit to visit, come from streams keyed by the round or the visit: a fleet
never changes and has no random state.

Clients' rates are bit/s on the wire, headers included, so that all flows of a link are measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams, everywhere
from costmodel.config import FleetConfig, Scale
from costmodel.fleet.codec_costs import Stages, codec_seconds, reference_rates
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.devices import devices as device_table
from costmodel.fleet.devices import networks as network_table
from costmodel.fleet.dynamics import ClientDynamics, client_dynamics
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.model_demand import Operations, speed
from costmodel.fleet.recorded_clients import gateway_of, gateway_variation, recorded_clients
from costmodel.fleet.variation import ProfileColumns, VisitVariation, assign, columns, noise_factors, visit_variation
from costmodel.network.bandwidth import behind_sites
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
    codec_slowdown: Doubles
    """(clients,) `Device.codec_slowdown`, times what makes the client slower than its device, in the full-speed mode"""
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
    """The figures of clients, by the names of the fields above, that come from a trace or recorded rates of links, and
    not from rows"""
    bandwidth_cv: Doubles | None = None
    """(clients, 2) coefficient of variation of each client's rates down and up, where a trace has it"""
    access_links: NDArray[np.intp] | None = None
    """(clients,) index of each client's access link, which is its aggregator's where there are tiers; None: in turn"""
    parts: Mapping[float, Doubles] = field(default_factory=dict)
    """Rate of a part of the model -> (devices, 2) factors on the seconds of a FLOP and on the overhead of a step"""

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

        With ``inputs.trace``, each client gets a row of it: rates are taken as they are, and seconds per sample as
        speeds relative to the median row, which computes like the clients' devices. Of figures over time it has the
        mean.
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
        recorded = recorded_clients(clients, config, inputs, streams)
        own = recorded.figures
        if own.relative_speed is not None:
            computes = computes * own.relative_speed
        columns_of_rows = {"flops_per_second": computes, "down": down, "up": up, "rtt": network["rtt_seconds"]}
        traced = {name: column for name in columns_of_rows if (column := getattr(own, name)) is not None}
        by_row = np.array([device.codec_slowdown for device in devices])[device_of]
        codec_slowdown = by_row * (throughputs[device_of] / traced.get("flops_per_second", computes))
        outages = network["outages_per_hour"], network["outage_seconds"]
        plain = replace(config, scale=Scale())
        links, behaviour = Links.of(plain), client_dynamics(config, recorded, *outages, streams)
        behind = None
        if config.gateways.count and config.gateways.assign != "turn":
            behind = gateway_of(clients, config, inputs)
        over_time = gateway_variation(config, inputs, streams)
        if over_time is not None:
            links = links.varying(over_time.variation, over_time.rates)
            sites = gateway_of(clients, config, inputs)
            behaviour = replace(behaviour, variation=behind_sites(behaviour.variation, over_time.variation, sites))
        fleet = cls(
            devices,
            networks,
            device_of,
            network_of,
            **(columns_of_rows | traced),
            codec_slowdown=codec_slowdown,
            streams=streams,
            config=plain,
            links=links,
            behaviour=behaviour,
            traced=frozenset(traced),
            bandwidth_cv=own.bandwidth_cv,
            access_links=behind,
        )
        fleet.check("fleet" if inputs.trace is None else "fleet.trace")
        if recorded.link is None:
            return fleet.checked_at_scale(config.scale)
        of_down, of_up = recorded.link.rates
        fleet = replace(
            fleet,
            down=fleet.down if of_down is None else of_down,
            up=fleet.up if of_up is None else of_up,
            traced=fleet.traced | {name for name, own in (("down", of_down), ("up", of_up)) if own is not None},
        )
        fleet.check("fleet.bandwidth.file")
        return fleet.checked_at_scale(config.scale)

    def checked_at_scale(self, scale: Scale) -> Fleet:
        """`at_scale`; ValueError as of `check`, also for links that clients share."""
        fleet = self.at_scale(scale)
        if scale != Scale():
            fleet.check("fleet.scale")
            fleet.links.check("fleet.scale")
        return fleet

    def at_scale(self, scale: Scale) -> Fleet:
        """The same clients with links and devices at other rates and speeds."""
        if scale == Scale():
            return self
        return replace(
            self,
            flops_per_second=scale.devices * self.flops_per_second,
            codec_slowdown=self.codec_slowdown / scale.devices,
            down=scale.links * self.down,
            up=scale.links * self.up,
            links=self.links.times(scale),
            config=replace(self.config, scale=self.config.scale.times(scale)),
        )

    def access_link_of(self, clients: NDArray[np.intp]) -> NDArray[np.intp]:
        """The index of the access link, or the aggregator, of each of these clients; 0 without any."""
        if self.access_links is not None:
            return self.access_links[clients]
        turn: NDArray[np.intp] = clients % max(len(self.links.site_down), 1)
        return turn

    def below(self, aggregator_of: NDArray[np.intp]) -> Fleet:
        """The same clients, each behind the LAN of its aggregator; ``aggregator_of``: (clients,) of `Links.below`."""
        assert aggregator_of.shape == (len(self),), (aggregator_of.shape, len(self))
        assert ((aggregator_of >= 0) & (aggregator_of < len(self.links.site_down))).all(), aggregator_of
        return replace(self, access_links=aggregator_of)

    def check(self, key: str) -> None:
        """ValueError of ``key`` for a device or link so slow that float64 has no digits for seconds of virtual time."""
        lowest = self.config.rates and self.config.scale.links * self.config.rates[0]
        if lowest is not None and lowest < 1:
            raise ValueError(f"{key}: clients' rates begin at {lowest:g} bit/s; the least is 1")
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
        if not step.traffic_nbytes and not any(device.operations_per_second for device in self.devices):
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

    def for_parts(self, families: Sequence[str], whole: Operations, parts: Mapping[float, Operations]) -> Fleet:
        """The same clients with the speed that their devices have for parts of the model (`for_model`), by rate.

        Narrow layers take longer per FLOP. ``whole``: the model's operations.
        """
        if not whole.traffic_nbytes and not any(device.operations_per_second for device in self.devices):
            return self
        by_rate = {}
        for rate, part in parts.items():
            factors = np.ones((len(self.devices), 2))
            for row, device in enumerate(self.devices):
                (throughput, overhead), (own, own_overhead) = (speed(device, families, step) for step in (whole, part))
                factors[row] = throughput / own, own_overhead / overhead if overhead else 1.0
            by_rate[rate] = factors
        return replace(self, parts=by_rate)

    def of_parts(self, conditions: Conditions, rates: Sequence[Mapping[float, float]]) -> Conditions:
        """The conditions of visits that train parts of the model; of each, rate of a part -> share of its FLOPs."""
        if not self.parts:
            return conditions
        rows = self.device_of[conditions.clients].tolist()
        ones = np.ones((len(self.devices), 2))
        factors = np.array(
            [
                sum(share * self.parts.get(rate, ones)[row] for rate, share in shares.items())
                for shares, row in zip(rates, rows, strict=True)
            ]
        )
        return replace(
            conditions,
            flops_per_second=conditions.flops_per_second / factors[:, 0],
            step_seconds=conditions.step_seconds * factors[:, 1],
        )

    def for_codecs(self, encoded: Stages, decoded: Stages) -> Fleet:
        """The same clients, of whom those on devices with `Device.codecs` take the time that these have for a visit.

        ``encoded``, ``decoded``: the stages of a plain visit's upload and of its download; messages of other lengths
        take as much longer or shorter as on the reference host.
        """
        reference = codec_seconds(encoded, "encode") + codec_seconds(decoded, "decode")
        if not reference or not any(device.codecs for device in self.devices):
            return self
        ratio = np.ones(len(self.devices))
        for row, device in enumerate(self.devices):
            if device.codecs:
                rates = {kind: rates.slower(device.codec_slowdown) for kind, rates in reference_rates().items()}
                rates |= device.codecs  # a stage that it has no rates of takes the slowdown times its seconds
                own = codec_seconds(encoded, "encode", rates) + codec_seconds(decoded, "decode", rates)
                ratio[row] = own / (device.codec_slowdown * reference)
        return replace(self, codec_slowdown=self.codec_slowdown * ratio[self.device_of])

    def __len__(self) -> int:
        return self.device_of.size

    @property
    def battery_joules(self) -> float:
        """Each client's energy for the whole run, of which `costmodel.visits.timeline` limits parts; inf: mains."""
        return math.inf if self.config.battery is None else self.config.battery

    # Draws of two rounds are cached, since callers may alternate between the visits of two rounds.

    @cached_property
    def _visit_draws(self) -> Callable[[str, int, int], VisitVariation]:
        return lru_cache(maxsize=2)(partial(visit_variation, self.streams, self.normal_streams, self.loses_segments))

    @cached_property
    def _mode_draws(self) -> Callable[[int], Doubles]:
        """(clients, 3) in 0 .. 1, for the power mode, the rate down and the rate up of an epoch of several rounds."""
        return lru_cache(maxsize=2)(lambda epoch: self.streams("modes", epoch, 0).random((len(self), 3)))

    @cached_property
    def loses_segments(self) -> bool:
        """Whether losses narrow the windows of senders: those of a network, or of full queues."""
        transport = self.links.transport
        is_lossy = transport.by_windows or any(network.loss > 0 for network in self.networks)
        return transport.congestion != "bbr" and is_lossy

    def device_names(self, clients: Sequence[int]) -> list[str]:
        """The names of these clients' devices."""
        return [self.devices[row].name for row in self.device_of[clients].tolist()]

    def network_names(self, clients: Sequence[int]) -> list[str]:
        """The names of these clients' networks."""
        return [self.networks[row].name for row in self.network_of[clients].tolist()]

    def conditions(
        self,
        clients: Sequence[int] | NDArray[np.intp],
        round: int,
        visit: int | None = None,
        *,
        order: int = 0,
        last_down: Doubles | None = None,
        last_up: Doubles | None = None,
        threshold: Doubles | None = None,
        charge: Doubles | None = None,
    ) -> Conditions:
        """The conditions of these clients' visits in ``round``; by default, connections are new and batteries full.

        Variation from visit to visit is drawn for the round, or for the one visit of the number ``visit``.
        ``order``: 0 for the first visit of each client in the round, 1 for a second one, with the round's ``redraw``.
        """
        chosen = np.asarray(clients, np.intp)
        config = self.config
        if chosen.size == 1:
            client = int(chosen[0])
            device, network, radio = self._profiles_of_one(int(self.device_of[client]), int(self.network_of[client]))
        else:
            device, network, radio = self._profiles_of(self.device_of[chosen], self.network_of[chosen])
        access_link = self.access_link_of(chosen)
        draws = self._draws(chosen, round, visit, order)
        mode, down, up = self._modes(chosen, round)
        full_speed = self.flops_per_second[chosen]
        flops_per_second = full_speed * mode
        if config.redraw:
            vary = 1 + 2 * config.redraw * (draws.uniform - 0.5)
            flops_per_second, down, up = flops_per_second * vary[:, 0], down * vary[:, 1], up * vary[:, 1]
        hazard = config.crashes_per_hour / HOUR_SECONDS
        idle, train_watts = device["idle_watts"], device["train_watts"]
        if config.compute_energy == "kappa":  # power above the baseline grows with the cube of the clock
            train_watts = idle + (train_watts - idle) * mode**3
        return Conditions(
            clients=chosen,
            access_link=access_link,
            flops_per_second=flops_per_second,
            codec_slowdown=self.codec_slowdown[chosen] * (full_speed / flops_per_second),
            step_seconds=device["step_seconds"] / config.scale.devices,
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
            train_watts=train_watts,
            idle_watts=idle,
            **radio,
        )

    def _profiles_of(self, device_of: NDArray[np.intp], network_of: NDArray[np.intp]) -> _Profiles:
        device_columns, network_columns = self._columns
        device, network = ProfileColumns(device_columns, device_of), ProfileColumns(network_columns, network_of)
        return device, network, self._radio_columns(network, device["idle_watts"])

    @cached_property
    def _columns(self) -> tuple[dict[str, Doubles], dict[str, Doubles]]:
        return columns(self.devices), columns(self.networks)

    @cached_property
    def _profiles_of_one(self) -> Callable[[int, int], _Profiles]:
        """Clients with the same rows share the columns: visits that begin one by one are many, and rows are few."""
        return lru_cache(lambda device, network: self._profiles_of(np.array([device]), np.array([network])))

    def _radio_columns(self, network: ProfileColumns, idle: Doubles) -> dict[str, Doubles]:
        """The columns of `Conditions` of transfers, and of the radio before and after them, (visits,) each.

        Watts are those of the whole device: its baseline (``idle``) is part of each.
        """
        radio = dict.fromkeys(
            ("transmit_joules_per_bit", "receive_joules_per_bit", "tail_watts", "tail_seconds"), np.zeros_like(idle)
        )
        if self.config.radio_energy == "rate":
            # Figures by bit are those of goodput where the row's rates are, and messages are counted on the wire.
            to_wire = np.where(network["goodput"] > 0, WIRE_FACTOR, 1.0)
            radio["transmit_watts"] = radio["receive_watts"] = idle + network["base_watts"]
            radio["transmit_joules_per_bit"] = network["transmit_joules_per_bit"] / to_wire
            radio["receive_joules_per_bit"] = network["receive_joules_per_bit"] / to_wire
            radio["tail_watts"], radio["tail_seconds"] = network["tail_watts"], network["tail_seconds"]
        else:
            radio["transmit_watts"] = idle + network["transmit_watts"]
            radio["receive_watts"] = idle + network["receive_watts"]
        if self.links.transport.promotion:
            radio["awake_seconds"], radio["promotion_seconds"] = network["tail_seconds"], network["promotion_seconds"]
            radio["promotion_watts"] = idle + network["promotion_watts"]
        else:
            nothing = everywhere(np.float64(0.0), idle.size)
            radio |= dict.fromkeys(("awake_seconds", "promotion_seconds", "promotion_watts"), nothing)
        return radio

    def _draws(self, chosen: NDArray[np.intp], round: int, visit: int | None, order: int) -> VisitVariation:
        config = self.config
        varies = config.jitter or config.redraw or self.links.transport.noise or config.crashes_per_hour
        if not (varies or self.loses_segments):
            return VisitVariation.none(chosen.size)
        if visit is None:
            first = self._visit_draws("visits of a round", round, len(self)).of(chosen)
            if not order:
                return first
            purpose = "second visits of a round" if order == 1 else f"visits {order + 1} of a round"
            return replace(self._visit_draws(purpose, round, len(self)).of(chosen), uniform=first.uniform)
        block, index = divmod(visit, VISITS_PER_DRAW)
        return self._visit_draws("visits one by one", block, VISITS_PER_DRAW).of(slice(index, index + 1))

    def _modes(self, chosen: NDArray[np.intp], round: int) -> tuple[Doubles, Doubles, Doubles]:
        """(factor on throughput, rate down, rate up) in this round."""
        every, rates = self.config.mode_rounds, self.config.rates
        if not every and rates is None:
            return np.ones(chosen.size), self.down[chosen], self.up[chosen]
        drawn = self._mode_draws(round // every if every else 0)[chosen]
        mode = np.ones(chosen.size)
        if every:
            for index, device in enumerate(self.devices):
                has_device = self.device_of[chosen] == index
                factors = np.array(device.modes, np.float64)
                mode[has_device] = factors[(drawn[has_device, 0] * factors.size).astype(np.intp)]
        if rates is None:
            return mode, self.down[chosen], self.up[chosen]
        low, high = (self.config.scale.links * rate for rate in rates)
        down, up = (WIRE_FACTOR * (low + (high - low) * drawn[:, column]) for column in (1, 2))
        return mode, down, up


DEVICE_FIGURES = ("flops_per_second", "step_seconds", "codec_slowdown")
NETWORK_FIGURES = ("down", "up", "rtt")


@dataclass(frozen=True)
class RowFactors:
    """Figure -> name of the row -> factor.

    A factor belongs to a row and applies to all clients that have it: the row's figure is uncertain, not the client.
    """

    devices: Mapping[str, Mapping[str, float]]
    """For each of `DEVICE_FIGURES`"""
    networks: Mapping[str, Mapping[str, float]]
    """For each of `NETWORK_FIGURES`"""


def scaled(fleet: Fleet, factors: RowFactors) -> Fleet:
    """The fleet with the figures of its rows times their factors; KeyError for a row without one.

    Figures that come from a trace, and ``fleet.rates``, are no row's and stay as they are; so do memory, watts and
    links that clients share.
    """
    columns = {}
    for name in ("flops_per_second", "codec_slowdown", *NETWORK_FIGURES):
        is_device = name in DEVICE_FIGURES
        by_row = factors.devices[name] if is_device else factors.networks[name]
        rows: Sequence[Device] | Sequence[Network] = fleet.devices if is_device else fleet.networks
        each = np.array([by_row[row.name] for row in rows], np.float64)
        if name not in fleet.traced:
            columns[name] = getattr(fleet, name) * each[fleet.device_of if is_device else fleet.network_of]
    steps = factors.devices["step_seconds"]
    devices = tuple(replace(row, step_seconds=row.step_seconds * steps[row.name]) for row in fleet.devices)
    return replace(fleet, devices=devices, **columns)
