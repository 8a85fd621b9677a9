"""The links that clients share on their way to the server, and how messages are sent over them.

Where clients belong to aggregators (``fleet.tiers``), these stand in the server's place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from costmodel.arrays import Doubles
from costmodel.config import FleetConfig, Scale, Transport, UpperTier
from costmodel.network.bandwidth import DOWN, UP, Variation
from costmodel.network.senders import CONGESTION, CUBIC, Congestion

LEAST_QUEUE_SECONDS, LEAST_BY_WINDOWS = 0.05, 0.01
"""A queue that is shorter is well within a round trip, and delays no acknowledgement by much. Where windows share
links, queues of 10 ms and more count."""


@dataclass(frozen=True)
class Links:
    """The links that clients share. Rates in bit/s on the wire; inf: never a bottleneck."""

    down: float = math.inf
    """From the server to all clients together"""
    up: float = math.inf
    """From all clients together to the server"""
    site_down: tuple[float, ...] = ()
    """Likewise for the clients of each site; none: clients reach the server's link directly"""
    site_up: tuple[float, ...] = ()
    airtime: str | None = None
    """One of `costmodel.network.airtime.FAIR`: how the clients of a site share its air in both directions, with
    ``site_down`` and ``site_up`` of inf; None: sites have links of these rates"""
    site_variation: Variation | None = None
    """Factors on the rates of sites over time, by number of site; None: constant. At 0 nothing passes, which
    `costmodel.network.bandwidth.BehindSites` says of each client: here the link keeps its rate"""
    aggregate_bytes_per_second: float = math.inf
    """How fast the server handles the bytes of updates"""
    seconds_per_visit: float = 0.0
    """How long the server handles an update beside its bytes"""
    transport: Transport = field(default_factory=Transport)
    access: Literal["gateway", "air", "LAN"] = "gateway"
    """How the clients of a site reach the server: over a gateway, the air of an access point, or an aggregator's LAN"""

    def __post_init__(self) -> None:
        assert len(self.site_down) == len(self.site_up), (self.site_down, self.site_up)
        if self.airtime is not None:
            assert self.site_down, "air without access points"
            assert {*self.site_down, *self.site_up} == {math.inf}, (self.site_down, self.site_up)

    @property
    def held_up(self) -> int | None:
        """The direction of which messages wait for acknowledgements while the other is full; None: neither."""
        return next((direction for direction in (DOWN, UP) if any(self.are_held_up(direction))), None)

    def are_held_up(self, direction: int) -> tuple[bool, ...]:
        """Of the server's link, then of each site's: whether it is the wider direction of that link, and the queue of
        the other takes `LEAST_QUEUE_SECONDS` (by windows less) or longer (`costmodel.network.duplex`)."""
        least = LEAST_BY_WINDOWS if self.transport.by_windows else LEAST_QUEUE_SECONDS
        most = 0.0 if self.airtime is not None else self.transport.queue_bits / least
        return tuple(
            other <= most and other < rate
            for rate, other in zip(self.capacities(direction), self.capacities(1 - direction), strict=True)
        )

    @classmethod
    def of(cls, config: FleetConfig) -> Links:
        """The links of a fleet's clients: to the server, or to their aggregators."""
        if config.tiers.count:
            return cls.below(config.tiers, config.transport).times(config.scale)
        server, gateways = config.server, config.gateways
        shares_air = gateways.kind == "airtime"
        down, up = (math.inf, math.inf) if shares_air else (gateways.down, gateways.up)
        links = cls(
            server.down,
            server.up,
            (down,) * gateways.count,
            (up,) * gateways.count,
            gateways.fair if shares_air else None,
            access="air" if shares_air else "gateway",
            aggregate_bytes_per_second=server.aggregate / 8,
            seconds_per_visit=server.visit,
            transport=config.transport,
        )
        return links.times(config.scale)

    @classmethod
    def below(cls, tier: UpperTier, transport: Transport) -> Links:
        """The links to aggregators: each has a LAN of its own, and the server's link is not on the way."""
        return cls(
            site_down=(tier.down,) * tier.count,
            site_up=(tier.up,) * tier.count,
            access="LAN",
            aggregate_bytes_per_second=tier.aggregate / 8,
            seconds_per_visit=tier.visit,
            transport=transport,
        )

    def varying(self, variation: Variation, rates: tuple[Doubles | None, Doubles | None]) -> Links:
        """The same links with rates of sites that vary; ``rates``: (sites,) down and up that the factors refer to, None
        as they are."""
        down, up = (
            own if recorded is None else tuple(recorded.tolist())
            for own, recorded in zip((self.site_down, self.site_up), rates, strict=True)
        )
        return replace(self, site_down=down, site_up=up, site_variation=variation)

    def times(self, scale: Scale) -> Links:
        """The same links at other rates."""
        return replace(
            self,
            down=scale.server * self.down,
            up=scale.server * self.up,
            site_down=tuple(scale.links * rate for rate in self.site_down),
            site_up=tuple(scale.links * rate for rate in self.site_up),
        )

    def handling_seconds(self, nbytes: float, updates: int) -> float:
        """Virtual seconds that the server, or what stands in its place, handles ``updates`` of ``nbytes`` together."""
        return nbytes / self.aggregate_bytes_per_second + self.seconds_per_visit * updates

    @property
    def congestion(self) -> Congestion:
        """How windows grow and are cut; bbr's are never cut, so that it does not matter."""
        return CONGESTION.get(self.transport.congestion, CUBIC)

    @property
    def by_events(self) -> bool:
        """Whether the messages of a batch are solved together and event by event: those that share air, or windows."""
        return self.airtime is not None or self.transport.by_windows

    def check(self, key: str) -> None:
        """ValueError of ``key`` for a link of less than 1 bit/s."""
        slowest = min(self.down, self.up, *self.site_down, *self.site_up)
        if slowest < 1:
            raise ValueError(f"{key}: a shared link carries {slowest:g} bit/s; the least is 1")

    def capacity(self, direction: int) -> float:
        """Of the server's link."""
        return self.up if direction == UP else self.down

    def access_capacity(self, direction: int) -> tuple[float, ...]:
        """Of the sites' links."""
        return self.site_up if direction == UP else self.site_down

    def capacities(self, direction: int) -> tuple[float, ...]:
        """Of the server's link, then of each site's."""
        return self.capacity(direction), *self.access_capacity(direction)

    def capacities_at(self, direction: int, t: float) -> tuple[tuple[float, ...], float]:
        """(`capacities` from ``t`` on, absolute seconds of their next change)."""
        if self.site_variation is None:
            return self.capacities(direction), math.inf
        factors = [self.site_variation.factor(site, direction, t) for site in range(len(self.site_down))]
        rates = zip(self.access_capacity(direction), factors, strict=True)
        sites = (rate * (factor or 1.0) for rate, (factor, _) in rates)
        return (self.capacity(direction), *sites), min((until for _, until in factors), default=math.inf)

    def is_open(self, direction: int) -> bool:
        """Whether no shared link in this direction can ever be full."""
        return self.capacity(direction) == math.inf and not self.access_capacity(direction) and self.airtime is None
