"""Other fleets than the one that was decided for, on which runs are replayed: where the answer flips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodel.config import Scale
from costmodel.fleet.fleet import Fleet
from edge.protocol.rng import keyed_generator
from scenarios.config.overrides import KeyValues

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5)
SLOWER = 4.0
"""Of the devices of an axis over their share"""
LOSSES = (0.0, 0.001, 0.005, 0.01, 0.02)


def with_links(fleet: Fleet, factor: float) -> Fleet:
    """All links at so many times their rates."""
    return fleet.at_scale(Scale(server=factor, links=factor))


def with_devices(fleet: Fleet, factor: float) -> Fleet:
    """All devices at so many times their speeds."""
    return fleet.at_scale(Scale(devices=factor))


def with_slow_share(fleet: Fleet, share: float) -> Fleet:
    """A share of the clients, whichever their devices, computes `SLOWER` times slower."""
    chosen = keyed_generator(0, "decide: slow clients").permutation(fleet.device_of.size)
    slow = np.isin(np.arange(chosen.size), chosen[: round(share * chosen.size)])
    factors = np.where(slow, SLOWER, 1.0)
    # A row of devices for each pair of device and factor.
    pairs = [(int(device), float(factor)) for device, factor in zip(fleet.device_of, factors, strict=True)]
    rows = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
    devices = tuple(
        replace(fleet.devices[device], step_seconds=fleet.devices[device].step_seconds * factor)
        for device, factor in rows
    )
    parts = {rate: each[[device for device, _ in rows]] for rate, each in fleet.parts.items()}
    return replace(
        fleet,
        devices=devices,
        device_of=np.array([rows[pair] for pair in pairs], np.intp),
        flops_per_second=fleet.flops_per_second / factors,
        codec_slowdown=fleet.codec_slowdown * factors,
        parts=parts,
    )


def with_loss(fleet: Fleet, loss: float) -> Fleet:
    """All networks lose so many segments at random, as far as their transport feels it."""
    return replace(fleet, networks=tuple(replace(row, loss=loss) for row in fleet.networks))


AXES: Mapping[str, tuple[Callable[[Fleet, float], Fleet], tuple[float, ...], str]] = {
    "links": (with_links, FACTORS, "all links ×"),
    "devices": (with_devices, FACTORS, "all devices ×"),
    "slow_share": (with_slow_share, SHARES, f"share {SLOWER:g} times slower:"),
    "loss": (with_loss, LOSSES, "segments lost:"),
}
"""Name of an axis -> (the fleet at a value, the values, in words)"""


OWN: Mapping[str, float] = {"links": 1.0, "devices": 1.0, "slow_share": 0.0}
"""Name of an axis -> the value at which a fleet is as it was"""

FIFTH = 0.2
LAST_SECOND = 86_400 * 10_000
"""Until which clients that stay are there; those that are gone come in the second before it"""
LINKS_HALVED, DEVICES_HALVED, A_FIFTH_SLOW = "links halved", "devices half as fast", "a fifth slow"
GONE, CUT_OFF = "a fifth of the clients gone", "the gateway with the most clients lost, and them with it"
REPLAYED = {LINKS_HALVED: ("links", 0.5), DEVICES_HALVED: ("devices", 0.5), A_FIFTH_SLOW: ("slow_share", 0.2)}
"""A change that an answer should survive -> (axis, value)"""
SCALED = {LINKS_HALVED: ("server", "links"), DEVICES_HALVED: ("devices",)}
"""Such a change -> the keys of ``fleet.scale`` that are halved where it has to be trained"""
ABSENCES = (GONE, CUT_OFF)
"""Changes that no replay can judge"""
TRAINED = {LINKS_HALVED: "half-links", DEVICES_HALVED: "half-speed", GONE: "gone", CUT_OFF: "cut-off"}
"""A change that is trained if asked for -> the end of its runs' names"""


def absent(fleet: Fleet) -> dict[str, frozenset[int]]:
    """Such a change -> the clients that are gone in it; a gateway, or an aggregator, only if there are several."""
    order = keyed_generator(0, "decide: clients that are gone").permutation(len(fleet))
    found = {GONE: frozenset(order[: max(1, round(FIFTH * len(fleet)))].tolist())}
    access_link = fleet.access_link_of(np.arange(len(fleet)))
    members = np.bincount(access_link)
    if np.count_nonzero(members) > 1:
        found[CUT_OFF] = frozenset(np.flatnonzero(access_link == members.argmax()).tolist())
    return found


def without(gone: Set[int], clients: int) -> str:
    """A trace of availability (CSV) in which these clients are never there while a run lasts."""
    rows = [f"{client},{LAST_SECOND - 1 if client in gone else 0},{LAST_SECOND}" for client in range(clients)]
    return "\n".join(["device,start_s,end_s", *rows, ""])


def with_availability(file: Path) -> KeyValues:
    """The settings of a scenario with the availability of such a file."""
    availability: KeyValues = {"kind": "trace", "file": str(file.absolute()), "repeat": False}
    return {"fleet.availability": availability, "fleet.trace_assign": "by_client"}
