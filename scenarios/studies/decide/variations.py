"""Other fleets than the one that was decided for, on which runs are replayed: where the answer flips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodel.fleet.fleet import Fleet
from edge.protocol.rng import keyed_generator

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5)
SLOWER = 4.0
"""Of the devices of an axis over their share"""
LOSSES = (0.0, 0.001, 0.005, 0.01, 0.02)


def with_links(fleet: Fleet, factor: float) -> Fleet:
    """All own links, those between clients and gateways or aggregators, and the server's, at so many times their rates.

    The links of aggregators to what is above them stay as they are.
    """
    shared = fleet.links
    links = replace(
        shared,
        down=shared.down * factor,
        up=shared.up * factor,
        site_down=tuple(rate * factor for rate in shared.site_down),
        site_up=tuple(rate * factor for rate in shared.site_up),
    )
    return replace(fleet, down=fleet.down * factor, up=fleet.up * factor, links=links)


def with_devices(fleet: Fleet, factor: float) -> Fleet:
    """All devices at so many times their speeds."""
    return _slower(fleet, np.full(fleet.device_of.size, 1 / factor))


def with_slow_share(fleet: Fleet, share: float) -> Fleet:
    """A share of the clients, whichever their devices, computes `SLOWER` times slower."""
    chosen = keyed_generator(0, "decide: slow clients").permutation(fleet.device_of.size)
    slow = np.isin(np.arange(chosen.size), chosen[: round(share * chosen.size)])
    return _slower(fleet, np.where(slow, SLOWER, 1.0))


def _slower(fleet: Fleet, factors: np.ndarray) -> Fleet:
    """Clients whose devices take so many times as long; a row of devices for each pair of device and factor."""
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
    "links": (with_links, FACTORS, "rates of all links, times"),
    "devices": (with_devices, FACTORS, "speeds of all devices, times"),
    "slow_share": (with_slow_share, SHARES, f"share of devices {SLOWER:g} times slower"),
    "loss": (with_loss, LOSSES, "segments lost at random"),
}
"""Name of an axis -> (the fleet at a value, the values, in words)"""


FIFTH = 0.2
LAST_SECOND = 86_400 * 10_000
"""Until which clients that stay are there; those that are gone come in the second before it"""
ABSENCES = {
    "gone": "a fifth of the clients gone",
    "cut-off": "the gateway with the most clients lost, and them with it",
}
"""Name of an absence -> in words"""


def absent(fleet: Fleet) -> dict[str, frozenset[int]]:
    """Name of an absence -> the clients that are gone in it; a gateway, or an aggregator, only if there are several."""
    order = keyed_generator(0, "decide: clients that are gone").permutation(len(fleet))
    found = {"gone": frozenset(order[: max(1, round(FIFTH * len(fleet)))].tolist())}
    access_link = fleet.access_link_of(np.arange(len(fleet)))
    members = np.bincount(access_link)
    if np.count_nonzero(members) > 1:
        found["cut-off"] = frozenset(np.flatnonzero(access_link == members.argmax()).tolist())
    return found


def without(gone: Set[int], clients: int) -> str:
    """A trace of availability (CSV) in which these clients are never there while a run lasts."""
    rows = [f"{client},{LAST_SECOND - 1 if client in gone else 0},{LAST_SECOND}" for client in range(clients)]
    return "\n".join(["device,start_s,end_s", *rows, ""])


def with_availability(file: Path) -> dict[str, object]:
    """The settings of a scenario with the availability of such a file."""
    availability = {"kind": "trace", "file": str(file.absolute()), "repeat": False}
    return {"fleet.availability": availability, "fleet.trace_assign": "by_client"}
