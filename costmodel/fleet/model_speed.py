"""The throughput and overhead of a device for one model, from the operations that a training step of it does.

A device says how many operations of each kind it does per second, in all or some kinds; a model's step does some number
of each. The kinds are those of `edge.protocol.operations`. Nothing here estimates anything for a device without such
figures, which computes all models of a family at one throughput.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.fleet.devices import Device

OF_FLOPS = ("conv", "pointwise", "channelwise", "linear")
"""Kinds counted in FLOPs, before any width class; a device without a figure does them at its throughput of a family."""


@dataclass(frozen=True)
class Operations:
    """The operations of a plain training step, by kind; "conv.w16" is the kind ``conv`` of width class 16."""

    flops: float
    """FLOPs of one example."""
    per_example: Mapping[str, float]
    per_step: Mapping[str, float]
    """Operations that do not depend on the batch."""


def speed(device: Device, families: Sequence[str], step: Operations) -> tuple[float, float]:
    """(FLOP/s, seconds of overhead per step) of a device for a model.

    ``families``: the model's name, then its family. They alone decide for a device that has a throughput of the model
    itself or no figures by kind of operation, and for a model without FLOPs. ValueError as of `Device.throughput`.
    """
    throughput = device.throughput(*families)
    if not device.operations_per_second or families[0] in device.flops_per_second or not step.flops:
        return throughput, device.step_seconds
    seconds = _seconds(device, throughput, step.per_example)
    overhead = device.step_seconds + _seconds(device, throughput, step.per_step)
    return (step.flops / seconds if seconds else throughput), overhead


def _seconds(device: Device, throughput: float, counts: Mapping[str, float]) -> float:
    """Seconds of these operations; ``throughput`` is that of FLOPs without a figure, other operations take no time."""
    rates = {kind: rate(device.operations_per_second, kind) or _default(kind, throughput) for kind in counts}
    return math.fsum(count / rates[kind] for kind, count in counts.items())


def _default(kind: str, throughput: float) -> float:
    return throughput if _parted(kind)[0] in OF_FLOPS else math.inf


def rate(per_second: Mapping[str, float], kind: str) -> float | None:
    """Operations of a kind per second; None without a figure for it.

    A width class without a figure has the log-interpolated one of the next narrower and the next wider class of its
    kind, and beyond all classes that of the nearest.
    """
    base, width = _parted(kind)
    known = {wide: figure for of, wide, figure in _classes(per_second) if of == base}
    if kind in per_second or not width or not known:
        return per_second.get(kind)
    widths = sorted(known)
    return float(np.exp(np.interp(math.log(width), np.log(widths), np.log([known[wide] for wide in widths]))))


def _classes(per_second: Mapping[str, float]) -> Iterator[tuple[str, int, float]]:
    """(kind, width, figure) of the figures by width class."""
    for name, figure in per_second.items():
        kind, width = _parted(name)
        if width:
            yield kind, width, figure


def _parted(kind: str) -> tuple[str, int]:
    """("conv", 16) for "conv.w16"; width 0 for a kind without classes."""
    found = re.fullmatch(r"(.+)\.w([1-9][0-9]{0,5})", kind)
    return (found[1], int(found[2])) if found else (kind, 0)
