"""A fleet whose links and devices are faster or slower by the same factor for all clients, for replays."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from costmodel.fleet.fleet import Fleet
from costmodel.fleet.row_factors import RowFactors, scaled
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded


class SpeedFactors(NamedTuple):
    """Factors on rates and speeds; 1 everywhere is the fleet itself, to the bit."""

    server: float = 1.0
    """On both directions of the server's link"""
    client: float = 1.0
    """On both directions of the clients' own links and of access links; round trips stay"""
    device: float = 1.0
    """On throughput; the overhead of a step is divided by it"""


def rescaled(fleet: Fleet, factors: SpeedFactors) -> Fleet:
    """The fleet with these factors. Watts stay, so energies are not those of faster hardware."""
    by_device = {
        "flops_per_second": {row.name: factors.device for row in fleet.devices},
        "step_seconds": {row.name: 1 / factors.device for row in fleet.devices},
    }
    own = {row.name: factors.client for row in fleet.networks}
    by_network = {"down": own, "up": own, "rtt": dict.fromkeys(own, 1.0)}
    links = replace(
        fleet.links,
        down=factors.server * fleet.links.down,
        up=factors.server * fleet.links.up,
        site_down=tuple(factors.client * rate for rate in fleet.links.site_down),
        site_up=tuple(factors.client * rate for rate in fleet.links.site_up),
    )
    return replace(scaled(fleet, RowFactors(by_device, by_network)), links=links)


def check_scalable(loaded: Loaded) -> None:
    """ScenarioError for a scenario whose runs cannot be replayed, or whose rates are not those of rows."""
    rounds, fleet = loaded.scenario.rounds, loaded.scenario.fleet
    reasons = {
        f"rounds.policy = {rounds.policy}: the order of its updates depends on times": rounds.is_asynchronous,
        "eval.charged = true: the clients that are evaluated depend on times": loaded.scenario.eval.charged,
        f"fleet.trace = {fleet.trace!r}: recorded figures are not scaled": fleet.trace is not None,
        f"fleet.rates = {fleet.rates}: drawn rates are not scaled": fleet.rates is not None,
        "fleet.bandwidth.kind = trace: recorded rates are not scaled": fleet.bandwidth.kind == "trace",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ScenarioError(f"{reason}; the map needs the policy sync and rows of devices and networks")
