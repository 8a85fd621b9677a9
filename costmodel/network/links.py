"""The links that clients share on their way to the server, and how messages are sent over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from costmodel.network.bandwidth import UP
from costmodel.network.tcp import Transport


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
    aggregate_bytes_per_second: float = math.inf
    """How fast the server adds updates up"""
    transport: Transport = field(default_factory=Transport)

    def __post_init__(self) -> None:
        assert len(self.site_down) == len(self.site_up), (self.site_down, self.site_up)

    def capacity(self, direction: int) -> float:
        """Of the server's link."""
        return self.up if direction == UP else self.down

    def access_capacity(self, direction: int) -> tuple[float, ...]:
        """Of the sites' links."""
        return self.site_up if direction == UP else self.site_down
