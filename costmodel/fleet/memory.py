"""Whether a device has the memory that a training visit takes. Counts; never measures or allocates.

A client stores the received global model, its local copy and the gradients, and for each example of a batch the
activations that the backward pass needs; all are 32-bit floats. Further vectors of a method (momentum, a teacher, a
control variate) are not counted, nor is evaluation, which stores no activations.
"""

from __future__ import annotations

import math

from costmodel.units import format_bytes

FLOAT_NBYTES = 4
LIMIT = 0.7
"""Fraction of a device's memory that training may take. An assumption: the operating system, the framework and its
workspaces need the rest."""


def training_nbytes(parameters: int, activations: float, batch: int) -> int:
    """Bytes that training takes; ``activations`` is floats per example, over all blocks that train."""
    assert parameters >= 0, parameters
    assert 0 <= activations < math.inf, activations
    assert batch >= 0, batch
    # 2: the global and the local copy; the third is the gradients.
    return math.ceil(FLOAT_NBYTES * (2 * parameters + parameters + activations * batch))


def fits(nbytes: int, memory_bytes: float) -> bool:
    """Whether training that takes ``nbytes`` may run on a device with ``memory_bytes``; the limit itself may."""
    return nbytes <= LIMIT * memory_bytes


def sum_text(parameters: int, activations: float, batch: int, memory_bytes: float) -> str:
    """The sum of `training_nbytes` and the result of `fits`, as text."""
    nbytes = training_nbytes(parameters, activations, batch)
    verdict = "within" if fits(nbytes, memory_bytes) else "more than"
    return (
        f"{FLOAT_NBYTES} B x (2 x {parameters:,} parameters + {parameters:,} gradients"
        f" + {batch:,} x {activations:,.12g} activations) = {format_bytes(nbytes)},"
        f" {verdict} {LIMIT:g} of {format_bytes(memory_bytes)}"
    )
