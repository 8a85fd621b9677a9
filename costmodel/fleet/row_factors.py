"""A fleet whose rows of devices and networks have other figures than their tables say, by factors.

A factor belongs to a row and applies to all clients that have it: the row's figure is uncertain, not the client.
Figures that come from a trace, and ``fleet.rates``, are no row's and stay as they are; so do memory, watts
and links that clients share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import Doubles
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.fleet import Fleet

DEVICE_FIGURES = ("flops_per_second", "step_seconds")
NETWORK_FIGURES = ("down", "up", "rtt")


@dataclass(frozen=True)
class RowFactors:
    """Figure -> name of the row -> factor."""

    devices: Mapping[str, Mapping[str, float]]
    """For each of `DEVICE_FIGURES`"""
    networks: Mapping[str, Mapping[str, float]]
    """For each of `NETWORK_FIGURES`"""


def scaled(fleet: Fleet, factors: RowFactors) -> Fleet:
    """The fleet with the figures of its rows times their factors; KeyError for a row without one."""
    by_figure = {"flops_per_second": _by_row(fleet.devices, factors.devices["flops_per_second"])[fleet.device_of]}
    for figure in NETWORK_FIGURES:
        by_figure[figure] = _by_row(fleet.networks, factors.networks[figure])[fleet.network_of]
    columns = {name: getattr(fleet, name) * by for name, by in by_figure.items() if name not in fleet.traced}
    steps = factors.devices["step_seconds"]
    devices = tuple(replace(row, step_seconds=row.step_seconds * steps[row.name]) for row in fleet.devices)
    return replace(fleet, devices=devices, **columns)


def _by_row(rows: Sequence[Device] | Sequence[Network], factors: Mapping[str, float]) -> Doubles:
    return np.array([factors[row.name] for row in rows], np.float64)
