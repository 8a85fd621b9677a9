"""The options of FjORD, one object for both of its sides, and its draws of widths, which both foresee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from edge.protocol.options.base import Options

WIDTHS = "fjord: widths"
"""The random stream of the widths of a visit's steps"""


class FjordOptions(Options):
    """Ordered dropout: each local step trains the part of a rate p that is drawn from those that the client has."""

    distil: float = Field(default=0.0, ge=0, le=1, title="α")
    """Weight of the distillation. Above 0, a step at a rate below the client's own trains the client's widest network
    on the labels, and the narrower one on (1 - α)·CE + α·KL from the widest one's predictions, at temperature 1. 1 is
    the paper's choice; 0: the narrower one alone, on the labels."""
    statistics: Literal["width", "shared"] = "width"
    """Running statistics of BatchNorm: of each width its own, as in the paper, where a client downloads and uploads
    those of its own rate and of all below; or shared, those of the model's first channels. Scales and shifts are always
    shared, and a training step normalises by its batch."""


def rates_within(rates: Iterable[float], own: float) -> list[float]:
    """Those of a run's rates that a client with a part of rate ``own`` draws from, the largest first."""
    return sorted((rate for rate in rates if rate <= own), reverse=True)


def draw_rates(rng: np.random.Generator, rates: Sequence[float], steps: int) -> list[float]:
    """The rate of each step of a visit, uniform among ``rates``."""
    return [rates[place] for place in rng.integers(len(rates), size=steps).tolist()]
