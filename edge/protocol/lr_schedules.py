"""Learning-rate schedules, under the names that scenarios use as ``train.lr_schedule``. No torch, no state.

The coordinator computes the step size of each visit and sends it along, so workers never resolve a schedule. A schedule
of your own needs no entry: a scenario names its row as ``my_package.my_schedule:ROW``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from edge.protocol.plugins import OptionsRow, PluginOptions, find, is_own


@dataclass(frozen=True)
class LrContext:
    """All that a schedule may use."""

    round: int
    """Server steps before the visit begins, from 0; up to ``rounds``, since an evaluation follows the last round"""
    rounds: int
    """Rounds that the schedule spans"""
    lr: float
    """``train.lr``"""
    decay: float
    """``train.lr_decay``"""


@dataclass(frozen=True)
class LrSchedule(OptionsRow):
    """One learning-rate schedule."""

    rate: Callable[[LrContext, Any], float]
    """(context, options) -> step size of the visits that begin in this round"""
    uses_decay: bool = False
    """Whether ``train.lr_decay`` has a meaning"""


class CosineOptions(PluginOptions):
    """lr(r) = floor + (lr − floor)(1 + cos(π r / rounds)) / 2, with floor = final·lr."""

    final: float = Field(default=0.0, ge=0, le=1)
    """Fraction of train.lr after the last round; 1 is a constant step size."""


class StepOptions(PluginOptions):
    """lr(r) = lr · factor^floor(r / every)."""

    factor: float = Field(default=0.1, gt=0, le=1, title="γ")
    """Factor at each step; 1 is a constant step size."""
    every: int = Field(default=30, ge=1)
    """Rounds between steps."""


def _cosine(at: LrContext, options: CosineOptions) -> float:
    floor = options.final * at.lr
    return floor + (at.lr - floor) * (1 + math.cos(math.pi * min(at.round / at.rounds, 1.0))) / 2


LR_SCHEDULES: dict[str, LrSchedule] = {
    row.name: row
    for row in (
        LrSchedule(
            "exponential",
            "train.lr times train.lr_decay per round; constant by default",
            "Acar et al., FedDyn, ICLR 2021, with a decay of 0.998",
            PluginOptions,
            lambda at, options: at.lr * at.decay**at.round,
            uses_decay=True,
        ),
        LrSchedule("constant", "train.lr", "McMahan et al., AISTATS 2017", PluginOptions, lambda at, options: at.lr),
        LrSchedule(
            "cosine",
            "half a cosine from train.lr to a fraction of it after train.lr_rounds",
            "Loshchilov and Hutter, SGDR, ICLR 2017, without restarts",
            CosineOptions,
            _cosine,
        ),
        LrSchedule(
            "step",
            "a factor after every so many rounds",
            "He et al., Deep Residual Learning, CVPR 2016, in rounds instead of iterations",
            StepOptions,
            lambda at, options: at.lr * options.factor ** (at.round // options.every),
        ),
    )
}


def lr_schedule(name: str) -> LrSchedule:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, LR_SCHEDULES, LrSchedule, "learning-rate schedule")


def checked_rate(row: LrSchedule, name: str, at: LrContext, options: PluginOptions) -> float:
    """The step size of a round; ValueError names the schedule if it is not a finite number of at least 0."""
    try:
        rate = float(row.rate(at, options))
    except Exception as error:  # a user's schedule may raise anything
        if not is_own(name):
            raise
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"train.lr_schedule = {name!r}: round {at.round + 1}: {problem}") from error
    if not 0 <= rate < math.inf:
        raise ValueError(f"train.lr_schedule = {name!r}: gives {rate!r} in round {at.round + 1}")
    return rate
