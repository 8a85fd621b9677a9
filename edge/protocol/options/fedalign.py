"""The options of FedAlign, one object for both of its sides, and the cost of its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options
from edge.protocol.options.gradaug import channels

LEAST_BLOCKS = 3
"""One before block L, block L, and the head"""


class FedAlignOptions(Options):
    """CE + μ·ℓ, ℓ being the mean of (σ_S − σ_F)² over examples; σ_F and σ_S are the spectral norms of the transmitting
    matrices of block L and of its narrower form."""

    weight: float = Field(default=0.45, ge=0, title="μ")
    """Weight of ℓ; 0 leaves clipping alone."""
    width: float = Field(default=0.25, gt=0, le=1, title="ω_S")
    """Width of the narrower form."""
    align_scale: Literal["code", "paper"] = "code"
    """paper: μ·ℓ is added; code: μ·(CE/ℓ)·ℓ with CE/ℓ as a number, so that the term's value is always μ·CE."""
    iterations: int = Field(default=10, ge=1, le=1000)
    """Power iterations of each spectral norm."""
    clip: float = Field(default=10.0, ge=0)
    """L2 norm that the gradient of both terms is clipped to where ``train.clip`` is 0, before those of corrections are
    added; 0: never. A ``train.clip`` above 0 takes its place."""
    multiple: int = Field(default=8, ge=1)
    """Channels in use are a multiple of this, as far as there are so many."""

    def check(self, blocks: int) -> None:
        """There must be a block L, and one before it."""
        if blocks < LEAST_BLOCKS:
            raise ValueError(
                f"method = 'fedalign': aligns the block before the head with the one before that, and the model has "
                f"{blocks} blocks; the least is {LEAST_BLOCKS}"
            )


def alignment_flops(
    before: Sequence[int], after: Sequence[int], factor: float, multiple: int, iterations: int
) -> float:
    """FLOPs per example of FedAlign's transmitting matrices and their spectral norms; 1 MAC = 2 FLOPs.

    ``before`` and ``after``: (channels, height, width) of the maps that a block takes and makes. A matrix of a x b is
    built once, by sums over the places of ``after``, and each iteration multiplies by it and by its transpose. Those of
    the sub-network have gradients: of the matrix from both products of every iteration, of the vectors from all but the
    first one, and of the maps that the sub-network makes.
    """
    places = after[1] * after[2]
    whole = before[0] * after[0]
    slim = channels(before[0], factor, multiple) * channels(after[0], factor, multiple)
    teacher = 2 * whole * places + 4 * iterations * whole
    student = 2 * slim * places + 4 * iterations * slim
    gradient = 2 * slim * places + (8 * iterations - 2) * slim
    return float(teacher + student + gradient)
