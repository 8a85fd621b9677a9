"""The clients' devices and networks, and what they can do in one round.

A fleet is drawn once per run: each client gets a device, a network and factors of its own that it keeps. What changes
from round to round, or from visit to visit, comes from streams keyed by the round or the visit: a fleet never changes
and holds no random state.

Rates of clients are held as bit/s on the wire, headers included, so that all flows of a link are measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.devices import devices as device_table
from costmodel.fleet.devices import networks as network_table
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.profile_assignment import Choice, ProfileColumns, assign, columns
from costmodel.fleet.trace_columns import ClientTrace, TraceColumns
from costmodel.fleet.variation import VisitVariation, uniforms, visit_variation
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.visits.timeline import Links

Doubles = NDArray[np.float64]
Streams = Callable[[str, int, int], np.random.Generator]
"""(purpose, index, client) -> generator, always the same one for the same key"""
VISITS_PER_DRAW = 1024


@dataclass(frozen=True)
class ClientVariation:
    """How clients of the same kinds differ, for good."""

    compute: float = 1.0
    """s: each client's throughput is divided by a factor that is log-uniform in 1 .. s"""
    bandwidth: float = 1.0
    """Likewise for both of its rates"""
    compute_sigma: float = 0.0
    """Each client's throughput is multiplied by a lognormal factor of median 1"""
    down_sigma: float | None = 0.0
    """Likewise for its rate down; None: the sigma of its network's row"""
    up_sigma: float | None = 0.0
    rates: tuple[float, float] | None = None
    """(low, high) bit/s as a measurement of throughput sees them: both rates are uniform in between"""


@dataclass(frozen=True)
class RoundVariation:
    """What differs from round to round and from visit to visit."""

    jitter: float = 0.0
    """Sigma of the lognormal factor, of median 1, on the computing time of each visit"""
    redraw: float = 0.0
    """r: in each round a client's throughput and its rates are each times a factor from U(1-r, 1+r)"""
    noise: float = 0.0
    """Sigma of the lognormal factor, of mean 1, on the bits of each message: what TCP does beyond fair shares"""
    mode_rounds: int = 0
    """Every so many rounds each client draws one of its device's power modes, and its `ClientVariation.rates` anew; 0:
    never"""
    crashes_per_second: float = 0.0
    """Hazard of a crash per second of being at work"""


@dataclass(frozen=True)
class Fleet:
    """Who has which device and network, the links that all share, and how clients behave."""

    devices: tuple[Device, ...]
    """The kinds of device that occur."""
    networks: tuple[Network, ...]
    """The kinds of network that occur."""
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
    """What each client may spend in all, `costmodel.visits.timeline` says on what a visit may run; inf: mains"""
    compute_energy: str = "power"
    """``power``: the device's watts; ``kappa``: its watts times the cube of its mode's clock, E = kappa cycles f^2"""
    radio_energy: str = "power"
    """``power``: the network's watts; ``rate``: alpha r + beta, with the tail after each transfer"""
    bandwidth_cv: Doubles | None = None
    """(clients, 2) how much each client's rates vary, where a trace tells"""

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
        own_devices: Mapping[str, Device] | None = None,
        own_networks: Mapping[str, Network] | None = None,
    ) -> Fleet:
        """Draw a fleet for a model of one of these ``families``, the first that a device has a throughput for.

        With a ``trace``, each client gets a row of it (each row once before any comes twice): rates are taken as they
        are, and seconds per sample as speeds relative to the median row, which computes like ``devices``.
        ValueError for an unknown name, shares that are not positive, or a number out of its range.
        """
        spread, change = spread or ClientVariation(), change or RoundVariation()
        _check(clients, spread, change, battery_joules)
        rng = streams("fleet", 0, 0)
        # All draws are always made, so that changing one option leaves what the others drew as it was.
        device_places, network_places = rng.permutation(clients), rng.permutation(clients)
        compute_places, bandwidth_places = rng.random(clients), rng.random(clients)
        normals = rng.standard_normal((clients, 3))
        known_devices = {**device_table(), **(own_devices or {})}
        known_networks = {**network_table(), **(own_networks or {})}
        device_names, device_of = assign("device", devices, known_devices, device_places)
        network_names, network_of = assign("network", networks, known_networks, network_places)
        device_rows = tuple(known_devices[name] for name in device_names)
        network_rows = tuple(known_networks[name] for name in network_names)
        by_kind = np.array([device.throughput(*families) for device in device_rows], np.float64)
        speed = by_kind[device_of] / np.exp(compute_places * math.log(spread.compute))
        slower = np.exp(bandwidth_places * math.log(spread.bandwidth))
        network = ProfileColumns(columns(network_rows), network_of)
        down_sigma = network["sigma_down"] if spread.down_sigma is None else spread.down_sigma
        up_sigma = network["sigma_up"] if spread.up_sigma is None else spread.up_sigma
        to_wire = np.where(network["goodput"] > 0, WIRE_FACTOR, 1.0)
        down = network["down_bits_per_second"] * to_wire / slower * np.exp(down_sigma * normals[:, 1])
        up = network["up_bits_per_second"] * to_wire / slower * np.exp(up_sigma * normals[:, 2])
        traced = TraceColumns(trace, case, clients, streams)
        return cls(
            device_rows,
            network_rows,
            device_of,
            network_of,
            flops_per_second=traced.speed(speed * np.exp(spread.compute_sigma * normals[:, 0])),
            down=traced.rate(DOWN, down),
            up=traced.rate(UP, up),
            rtt=traced.rtt(network["rtt_seconds"]),
            streams=streams,
            links=links or Links(),
            behaviour=behaviour or ClientDynamics(),
            spread=spread,
            change=change,
            battery_joules=battery_joules,
            compute_energy=compute_energy,
            radio_energy=radio_energy,
            bandwidth_cv=traced.cv(),
        )

    def __len__(self) -> int:
        return self.device_of.size

    @cached_property
    def _device_columns(self) -> dict[str, Doubles]:
        return columns(self.devices)

    @cached_property
    def _network_columns(self) -> dict[str, Doubles]:
        return columns(self.networks)

    # The present draws and those before: visits of two rounds may be asked about in turn. They go with the fleet.

    @cached_property
    def _drawn(self) -> Callable[[str, int, int], VisitVariation]:
        return lru_cache(maxsize=2)(partial(visit_variation, self.streams))

    @cached_property
    def _uniforms(self) -> Callable[[int, int], Doubles]:
        return lru_cache(maxsize=2)(partial(uniforms, self.streams))

    def device_name(self, client: int) -> str:
        """The kind of device that a client has."""
        return self.devices[int(self.device_of[client])].name

    def network_name(self, client: int) -> str:
        """The kind of network that a client has."""
        return self.networks[int(self.network_of[client])].name

    def memory_bytes(self, client: int) -> int:
        """Of a client's device."""
        return self.devices[int(self.device_of[client])].memory_bytes

    def access_link_of(self, clients: NDArray[np.intp]) -> NDArray[np.intp]:
        """Which site each client is at: they take turns."""
        return clients % max(len(self.links.site_down), 1)

    def conditions(
        self,
        clients: Sequence[int] | NDArray[np.intp],
        round: int,
        visit: int | None = None,
        *,
        last_down: Doubles | None = None,
        last_up: Doubles | None = None,
        charge: Doubles | None = None,
    ) -> Conditions:
        """What these clients can do in ``round``; without further columns, connections are new and batteries full.

        What varies from visit to visit is drawn for the round, or, if ``visit`` numbers the only one asked for, for it.
        """
        chosen = np.asarray(clients, np.intp)
        device = ProfileColumns(self._device_columns, self.device_of[chosen])
        network = ProfileColumns(self._network_columns, self.network_of[chosen])
        draws = self._draws(chosen, round, visit)
        mode, down, up = self._modes(chosen, round)
        width = 2 * self.change.redraw
        vary = 1 + width * (draws.uniform - 0.5)
        sigma = self.change.noise
        rate_dependent = self.radio_energy == "rate"
        ones, nothing = np.ones(chosen.size), np.zeros(chosen.size)
        hazard = self.change.crashes_per_second
        return Conditions(
            clients=chosen,
            site=self.access_link_of(chosen),
            flops_per_second=self.flops_per_second[chosen] * mode * vary[:, 0],
            step_seconds=device["step_seconds"],
            slowdown=np.exp(self.change.jitter * draws.normal[:, 0]) if self.change.jitter else ones,
            down=down * vary[:, 1],
            up=up * vary[:, 1],
            noise=np.exp(sigma * draws.normal[:, 1:3] - sigma**2 / 2) if sigma else np.ones((chosen.size, 2)),
            rtt=self.rtt[chosen],
            last_down=np.full(chosen.size, -math.inf) if last_down is None else last_down,
            last_up=np.full(chosen.size, -math.inf) if last_up is None else last_up,
            crash_after=draws.exponential / hazard if hazard > 0 else np.full(chosen.size, math.inf),
            charge=np.full(chosen.size, self.battery_joules) if charge is None else charge,
            train_watts=device["train_watts"] * (mode**3 if self.compute_energy == "kappa" else 1.0),
            idle_watts=device["idle_watts"],
            transmit_watts=network["base_watts" if rate_dependent else "transmit_watts"],
            transmit_joules_per_bit=network["transmit_joules_per_bit"] if rate_dependent else nothing,
            receive_watts=network["base_watts" if rate_dependent else "receive_watts"],
            receive_joules_per_bit=network["receive_joules_per_bit"] if rate_dependent else nothing,
            tail_watts=network["tail_watts"] if rate_dependent else nothing,
            tail_seconds=network["tail_seconds"] if rate_dependent else nothing,
        )

    def _draws(self, chosen: NDArray[np.intp], round: int, visit: int | None) -> VisitVariation:
        change = self.change
        if not (change.jitter or change.redraw or change.noise or change.crashes_per_second):
            return VisitVariation.none(chosen.size)
        if visit is None:
            return self._drawn("visits of a round", round, len(self)).of(chosen)
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
            for kind, device in enumerate(self.devices):
                of_kind = self.device_of[chosen] == kind
                factors = np.array(device.modes, np.float64)
                mode[of_kind] = factors[(drawn[of_kind, 0] * factors.size).astype(np.intp)]
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
