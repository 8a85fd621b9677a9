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
from costmodel.fleet import powers
from costmodel.fleet.client_variation import ClientDraws, throughputs, wire_rates
from costmodel.fleet.client_variation import ClientVariation as ClientVariation
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.devices import devices as device_table
from costmodel.fleet.devices import networks as network_table
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.model_speed import Operations, speed
from costmodel.fleet.traces import ClientTrace, TraceColumns
from costmodel.fleet.variation import (
    Choice,
    Noise,
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

VISITS_PER_DRAW = 1024
_Profiles = tuple[ProfileColumns, ProfileColumns, dict[str, Doubles]]
"""(devices' figures, networks' figures, the radio's columns of `Conditions`)"""


@dataclass(frozen=True)
class RoundVariation:
    """How the conditions of visits differ from round to round and from visit to visit."""

    jitter: float = 0.0
    """Sigma of the lognormal factor, of median 1, on the computing time of each visit"""
    redraw: float = 0.0
    """r: in each round a client's throughput and its rates are each times a factor from U(1-r, 1+r)"""
    noise: Noise = 0.0
    """Factors on the bits of each message, for effects of TCP beyond fair sharing, see `noise_factors`"""
    mode_rounds: int = 0
    """Rounds after which each client draws a new power mode of its device, and new `ClientVariation.rates`; 0: never"""
    crashes_per_second: float = 0.0
    """Hazard of a crash per second of work"""


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
    links: Links = field(default_factory=Links)
    behaviour: ClientDynamics = field(default_factory=ClientDynamics)
    spread: ClientVariation = field(default_factory=ClientVariation)
    change: RoundVariation = field(default_factory=RoundVariation)
    battery_joules: float = math.inf
    """Each client's energy for the whole run (`costmodel.visits.timeline` says which parts it limits); inf: mains"""
    compute_energy: str = "power"
    """``power``: the device's watts; ``kappa``: those above its baseline times the cube of its mode's clock, E = kappa
    cycles f^2"""
    radio_energy: str = "power"
    """``power``: the network's watts; ``rate``: alpha r + beta, with the tail after each transfer"""
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
        devices: Choice,
        networks: Choice,
        *,
        streams: Streams,
        families: Sequence[str] = ("conv",),
        links: Links | None = None,
        behaviour: ClientDynamics | None = None,
        spread: ClientVariation | None = None,
        change: RoundVariation | None = None,
        battery_joules: float = math.inf,
        compute_energy: str = "power",
        radio_energy: str = "power",
        trace: ClientTrace | None = None,
        case: int = 1,
        shuffle_trace: bool = True,
        own_devices: Mapping[str, Device] | None = None,
        own_networks: Mapping[str, Network] | None = None,
    ) -> Fleet:
        """Draw a fleet for a model of the first of these ``families`` that a device has a throughput for.

        With a ``trace``, each client gets a row of it (each row once before any comes twice, in a random order or in
        that of the file): rates are taken as they are, and seconds per sample as speeds relative to the median row,
        which computes like ``devices``. Of figures over time it has the mean.
        ValueError for an unknown name, fractions that are not positive, or a number out of its range.
        """
        spread, change = spread or ClientVariation(), change or RoundVariation()
        _check(clients, spread, change, battery_joules)
        draws = ClientDraws(streams("fleet", 0, 0), clients)
        device_rows, device_of = assign("device", devices, {**device_table(), **(own_devices or {})}, draws.devices)
        network_rows, network_of = assign(
            "network", networks, {**network_table(), **(own_networks or {})}, draws.networks
        )
        network = ProfileColumns(columns(network_rows), network_of)
        down, up = wire_rates(network, spread, draws)
        drawn = cls(
            device_rows,
            network_rows,
            device_of,
            network_of,
            flops_per_second=throughputs(device_rows, device_of, families, spread, draws),
            down=down,
            up=up,
            rtt=network["rtt_seconds"],
            streams=streams,
            links=links or Links(),
            behaviour=behaviour or ClientDynamics(),
            spread=spread,
            change=change,
            battery_joules=battery_joules,
            compute_energy=compute_energy,
            radio_energy=radio_energy,
        )
        return drawn._with_trace(TraceColumns(trace, case, clients, streams("trace", 0, 0) if shuffle_trace else None))

    def _with_trace(self, traced: TraceColumns) -> Fleet:
        return replace(
            self,
            flops_per_second=traced.speed(self.flops_per_second),
            down=traced.rate(DOWN, self.down),
            up=traced.rate(UP, self.up),
            rtt=traced.rtt(self.rtt),
            bandwidth_cv=traced.cv(),
            traced=traced.figures,
        )

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
        return replace(self, devices=rows, flops_per_second=self.flops_per_second * ratio[self.device_of])

    def __len__(self) -> int:
        return self.device_of.size

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

    def network_figure(self, name: str) -> Doubles:
        """(clients,) One figure of the rows of the clients' networks."""
        return self._network_columns[name][self.network_of]

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
        device, network, radio = self._profiles(chosen)
        draws = self._draws(chosen, round, visit, is_second)
        mode, down, up = self._modes(chosen, round)
        flops_per_second = self.flops_per_second[chosen] * mode
        if self.change.redraw:
            vary = 1 + 2 * self.change.redraw * (draws.uniform - 0.5)
            flops_per_second, down, up = flops_per_second * vary[:, 0], down * vary[:, 1], up * vary[:, 1]
        hazard = self.change.crashes_per_second
        return Conditions(
            clients=chosen,
            access_link=self.access_link_of(chosen),
            flops_per_second=flops_per_second,
            step_seconds=device["step_seconds"],
            slowdown=np.exp(self.change.jitter * draws.normal[:, 0]) if self.change.jitter else np.ones(chosen.size),
            down=down,
            up=up,
            noise=noise_factors(self.change.noise, draws.normal[:, 1:3]),
            rtt=self.rtt[chosen],
            last_down=np.full(chosen.size, -math.inf) if last_down is None else last_down,
            last_up=np.full(chosen.size, -math.inf) if last_up is None else last_up,
            loss=network["loss"] if self.loses_segments else everywhere(np.float64(0.0), chosen.size),
            loss_seed=everywhere(np.int64(0), chosen.size, 2) if draws.seed is None else draws.seed,
            threshold=everywhere(np.float64(math.inf), chosen.size, 2) if threshold is None else threshold,
            crash_after=draws.exponential / hazard if hazard > 0 else np.full(chosen.size, math.inf),
            charge=np.full(chosen.size, self.battery_joules) if charge is None else charge,
            train_watts=powers.train_watts(self.compute_energy, device, mode),
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
        radio = powers.radio(self.radio_energy, network, idle)
        return device, network, radio | powers.promotion(self.links.transport.promotion, network, idle)

    @cached_property
    def _profiles_of_one(self) -> Callable[[int, int], _Profiles]:
        """Clients with the same rows share the columns: visits that begin one by one are many, and rows are few."""
        return lru_cache(lambda device, network: self._profiles_of(np.array([device]), np.array([network])))

    def _draws(self, chosen: NDArray[np.intp], round: int, visit: int | None, is_second: bool) -> VisitVariation:
        change = self.change
        if not (change.jitter or change.redraw or change.noise or change.crashes_per_second or self.loses_segments):
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
        every, rates = self.change.mode_rounds, self.spread.rates
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


def _check(clients: int, spread: ClientVariation, change: RoundVariation, battery_joules: float) -> None:
    if clients < 1:
        raise ValueError(f"a fleet needs at least one client, not {clients}")
    for name, value in (("compute spread", spread.compute), ("bandwidth spread", spread.bandwidth)):
        if not (math.isfinite(value) and value >= 1):
            raise ValueError(f"{name} must be at least 1, not {value!r}")
    if spread.rates is not None and not 0 < spread.rates[0] <= spread.rates[1] < math.inf:
        raise ValueError(f"rates must be a low and a high number of bit/s, not {spread.rates!r}")
    if not 0 <= change.redraw < 1:
        raise ValueError(f"redraw must be at least 0 and less than 1, not {change.redraw!r}")
    if not battery_joules > 0:
        raise ValueError(f"battery_joules must be positive, not {battery_joules!r}")
