"""What one model demands of a device: the time of its operations, and the memory of a training visit.

A device says how many operations of each kind it does per second, in all or some kinds; a model's step does some number
of each. The kinds are those of `edge.protocol.operations`. Nothing here estimates anything for a device without such
figures, which computes all models of a family at one throughput.

A client stores the received global model, its local copy and the gradients, and for each example of a batch the
activations that the backward pass needs; beside these the vectors of the optimizer, and the residual of a codec with
error feedback, and what its stages keep. All are 32-bit floats. Encoding works when the activations are gone, and is
not counted; further vectors of a method (a teacher, a control variate) are not either, nor is evaluation, which stores
no activations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.fleet.devices import Device
from costmodel.units import format_bytes

FLOAT_NBYTES = 4
LIMIT = 0.7
"""Fraction of a device's memory that training may take. An assumption: the operating system, the framework and its
workspaces need the rest."""
OF_FLOPS = ("conv", "pointwise", "channelwise", "linear", "attention")
"""Kinds counted in FLOPs, before any width class; a device without a figure does them at its throughput of a family."""
INSTEAD = {"attention": "linear"}
"""Kind -> the one whose figure counts where a device has none of its own"""


@dataclass(frozen=True)
class Operations:
    """The operations of a plain training step, by kind; "conv.w16" is the kind ``conv`` of width class 16."""

    flops: float
    """FLOPs of one example."""
    per_example: Mapping[str, float]
    per_step: Mapping[str, float]
    """Operations that do not depend on the batch."""
    traffic_nbytes: float = 0.0
    """Bytes that a step of the optimizer reads and writes beyond those of SGD."""


def speed(device: Device, families: Sequence[str], step: Operations) -> tuple[float, float]:
    """(FLOP/s, seconds of overhead per step) of a device for a model.

    ``families``: the model's name, then its family. They alone decide for a device that has a throughput of the model
    itself or no figures by kind of operation, and for a model without FLOPs, but for the optimizer's traffic.
    ValueError as of `Device.throughput`.
    """
    throughput = device.throughput(*families)
    moved = device.step_seconds
    if step.traffic_nbytes:
        moved += step.traffic_nbytes / device.memory_bytes_per_second
    if not device.operations_per_second or families[0] in device.flops_per_second or not step.flops:
        return throughput, moved
    seconds = _seconds(device, throughput, step.per_example)
    overhead = moved + _seconds(device, throughput, step.per_step)
    return (step.flops / seconds if seconds else throughput), overhead


def figures_of_speed(device: Device, families: Sequence[str]) -> list[str]:
    """Keys (as `costmodel.fleet.devices.figures` names them) of the figures that `speed` takes for a model whose step
    has FLOPs, but for the overhead per step; ``families`` as there."""
    if device.operations_per_second and families[0] not in device.flops_per_second:
        return [f"operations_per_second.{kind}" for kind in device.operations_per_second]
    family = next(name for name in families if name in device.flops_per_second)
    return [f"flops_per_second.{family}"]


def _seconds(device: Device, throughput: float, counts: Mapping[str, float]) -> float:
    """Seconds of these operations; ``throughput`` is that of FLOPs without a figure, other operations take no time."""
    seconds = []
    for kind, count in counts.items():
        otherwise = throughput if _parted(kind)[0] in OF_FLOPS else math.inf
        figures = (rate(device.operations_per_second, each) for each in (kind, INSTEAD.get(kind, kind)))
        seconds.append(count / next(filter(None, figures), otherwise))
    return math.fsum(seconds)


def rate(per_second: Mapping[str, float], kind: str) -> float | None:
    """Operations of a kind per second; None without a figure for it.

    A width class without a figure has the log-interpolated one of the next narrower and the next wider class of its
    kind, and beyond all classes that of the nearest.
    """
    base, width = _parted(kind)
    classes = ((*_parted(name), figure) for name, figure in per_second.items())
    known = {wide: figure for of, wide, figure in classes if wide and of == base}
    if kind in per_second or not width or not known:
        return per_second.get(kind)
    widths = sorted(known)
    return float(np.exp(np.interp(math.log(width), np.log(widths), np.log([known[wide] for wide in widths]))))


def _parted(kind: str) -> tuple[str, int]:
    """("conv", 16) for "conv.w16"; width 0 for a kind without classes."""
    found = re.fullmatch(r"(.+)\.w([1-9][0-9]{0,5})", kind)
    return (found[1], int(found[2])) if found else (kind, 0)


def training_nbytes(parameters: int, activations: float, batch: int, state: int = 0, kept: int = 0) -> int:
    """Bytes that training takes; ``activations`` is floats per example, over all blocks that train,
    ``state`` the numbers of the optimizer's vectors, and ``kept`` those that a client keeps for its codec from one
    visit to the next."""
    assert parameters >= 0, parameters
    assert 0 <= activations < math.inf, activations
    assert batch >= 0, batch
    assert state >= 0, state
    assert kept >= 0, kept
    # 2: the global and the local copy; the third is the gradients.
    return math.ceil(FLOAT_NBYTES * (2 * parameters + parameters + activations * batch + state + kept))


def fits(nbytes: int, memory_bytes: float) -> bool:
    """Whether training that takes ``nbytes`` may run on a device with ``memory_bytes``; the limit itself may."""
    return nbytes <= LIMIT * memory_bytes


def sum_text(
    parameters: int, activations: float, batch: int, memory_bytes: float, state: int = 0, kept: int = 0
) -> str:
    """The sum of `training_nbytes` and the result of `fits`, as text."""
    nbytes = training_nbytes(parameters, activations, batch, state, kept)
    verdict = "within" if fits(nbytes, memory_bytes) else "more than"
    further = "".join(f" + {count:,} {of}" for count, of in ((state, "of the optimizer"), (kept, "kept")) if count)
    return (
        f"{FLOAT_NBYTES} B x (2 x {parameters:,} parameters + {parameters:,} gradients"
        f" + {batch:,} x {activations:,.12g} activations{further}) = {format_bytes(nbytes)},"
        f" {verdict} {LIMIT:g} of {format_bytes(memory_bytes)}"
    )
