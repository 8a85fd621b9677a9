"""The compute plan of a visit: the passes, steps and stored activations that a method's local training takes.

A spec foresees them in one function, which serves the clock, the budgets, ``check``, the memory gate, and the
comparison with the worker's own count. Nothing here runs a model, and a plan never depends on data or on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import TrainConfig, TrainingPlan
from edge.protocol.messages import Choice
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, PASS_TYPES, Layout, step_passes
from edge.protocol.privacy import FLOPS_OF_NOISE, FLOPS_OF_WEIGHT
from edge.protocol.rng import keyed_generator
from edge.protocol.variant import PLAIN, Variant

PassCounts = NDArray[np.float64]
"""(blocks, 4): runs of each type of pass per block (`edge.protocol.payload`)"""
INDIVIDUAL = frozenset({"client", "round", "validation"})
"""Facts of a visit that differ between visits with the same choice and variant, and as many training examples"""
SizeFactors = tuple[float, float]
"""A model of other size: (factor on its width, factor on the images' height)"""


@dataclass(frozen=True)
class ComputeContext:
    """The facts of one visit that its compute plan may depend on."""

    layout: Layout
    options: Any
    """Options of the objective and its corrections"""
    choice: Choice
    train: TrainConfig
    plan: TrainingPlan
    """Amount of local training by ``train``, for a client with ``samples`` examples"""
    samples: int
    """Local training examples"""
    flops: NDArray[np.float64]
    """(blocks, 4): FLOPs per example of each type of pass, of the model as it is described"""
    seed: int = 0
    client: int = 0
    round: int = 0
    """Key of the visit's random streams, as in `edge.training.client_update.VisitContext`"""
    validation: int = 0
    """Local validation examples"""
    variants: Mapping[SizeFactors, NDArray[np.float64]] = field(default_factory=dict)
    """Variants that the spec declares -> (blocks, 4), as ``flops``"""
    outputs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))
    """(blocks, 3): channels, height and width of each block's output, where the spec declares variants
    (`edge.protocol.config.ModelProfile`)"""
    part_flops: Mapping[float, NDArray[np.float64]] = field(default_factory=dict)
    """Rate of a part of the model that visits of the run may have -> (blocks, 4), as ``flops``"""
    unit_flops: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    """(units, 4): share of the bodies of the model's residual units in ``flops`` (`ModelProfile.unit_flops`)"""
    variant: Variant = PLAIN

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.layout)

    @property
    def batches(self) -> list[int]:
        """The number of examples of each step of ``plan``, in order."""
        batch, rest = self.train.batch, self.samples % self.train.batch
        epoch = [batch] * (self.samples // batch) + ([rest] if rest and not self.train.drop_last else [])
        return [epoch[step % len(epoch)] for step in range(self.plan.steps)]

    def flops_at(self, width: float, height: float) -> NDArray[np.float64]:
        """(blocks, 4): FLOPs per example of the model at these factors on its width and on the images' height.

        ValueError unless the spec declares the variant.
        """
        if (width, height) not in self.variants:
            raise ValueError(f"the variant {(width, height)} is not declared; declared are {list(self.variants)}")
        return self.variants[width, height]

    def rng(self, purpose: str) -> np.random.Generator:
        """The stream that the client side gets from `VisitContext.rng`: the same draws in the same order."""
        return keyed_generator(self.seed, purpose, self.round, self.client)


class SharedContext(ComputeContext):
    """The context of one of many alike visits; it notes whether a compute plan reads anything that is the visit's own.

    If none is read, the plan is that of all visits with the same choice and variant, and as many training examples.
    """

    is_individual = False

    def __getattribute__(self, name: str) -> Any:
        if name in INDIVIDUAL:
            object.__setattr__(self, "is_individual", True)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class Compute:
    """The computation of one visit."""

    passes: PassCounts
    """Examples that run through each type of pass of each block, training and once per visit together"""
    steps: int
    """Optimiser steps of all phases of training, each with an overhead on the device"""
    stored_forwards: NDArray[np.float64]
    """(blocks,): forward passes of one example whose activations are stored at the same time for a backward pass"""
    further_flops: float = 0.0
    """FLOPs beside those of ``passes``, such as passes of variants: `ComputeContext.flops_at`, and on the client side
    `edge.training.block_model.BlockModel.add_flops`. Negative: FLOPs of ``passes`` that are not executed, such as those
    of residual units without their bodies"""
    narrower_flops: Mapping[float, float] = field(default_factory=dict)
    """Rate of a part within the visit's own -> FLOPs among ``further_flops`` that train it, which devices have a pace
    of their own for"""
    exact: bool = True
    """Whether a worker must count the same FLOPs; False: ``passes`` are an expectation, within a factor of 10"""

    def flops(self, per_example: NDArray[np.float64]) -> float:
        """FLOPs of the visit; ``per_example`` is (blocks, 4)."""
        return float((self.passes * per_example).sum()) + self.further_flops

    def check(self, per_example: NDArray[np.float64]) -> None:
        """Raise ValueError for shapes and numbers that no visit can have; ``per_example`` as of `flops`."""
        blocks = len(per_example)
        for name, array, shape in (
            ("passes", self.passes, (blocks, PASS_TYPES)),
            ("stored_forwards", self.stored_forwards, (blocks,)),
        ):
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}; the model's is {shape}")
            if not (np.isfinite(array) & (array >= 0)).all():
                raise ValueError(f"{name} has a number that is negative or not finite")
        if not math.isfinite(self.further_flops) or self.flops(per_example) < 0:
            raise ValueError(f"further_flops = {self.further_flops!r}: must be finite, and the sum of all at least 0")
        if self.steps < 0:
            raise ValueError(f"steps = {self.steps}: must be at least 0")


def trained(context: ComputeContext, per_example: PassCounts, once: PassCounts | float = 0.0) -> Compute:
    """Training in one phase with these passes per example, and ``once`` per local example beside it."""
    passes = per_example * context.plan.samples + once * np.ones_like(per_example) * context.samples
    # A forward pass stores activations if a backward pass follows it.
    return Compute(passes, context.plan.steps, per_example[:, INNER_GRADIENT])


def fedavg_compute(context: ComputeContext) -> Compute:
    """An ordinary training step per batch, of the blocks that learn."""
    return trained(context, step_passes(context.layout.learns))


def fedavg_passes(blocks: int) -> PassCounts:
    """One ordinary training step: every pass once, but no gradient with respect to the input."""
    return step_passes(np.ones(blocks, bool))


def of_private_steps(plain: Compute, context: ComputeContext, weights: int) -> Compute:
    """A compute plan with the steps of DP-SGD: Poisson batches, of as many examples on average as others have, whose
    gradients are clipped one by one, and noise on their sum."""
    expected = context.plan.steps * min(context.train.batch, context.samples)
    factor = expected / max(context.plan.samples, 1)
    clipping = FLOPS_OF_WEIGHT * expected * weights + FLOPS_OF_NOISE * context.plan.steps * weights
    return replace(
        plain,
        passes=plain.passes * factor,
        further_flops=plain.further_flops * factor + clipping,
        exact=False,
    )


def forward_passes(blocks: int, times: float = 1.0) -> PassCounts:
    """Passes of an evaluation of the whole model."""
    passes = np.zeros((blocks, PASS_TYPES))
    passes[:, FORWARD] = times
    return passes


def add_frozen_suffix(passes: PassCounts, pathway: int, gradient: bool = True) -> None:
    """Count a pathway through frozen blocks after block ``pathway``: forward and input gradient, no weight gradient."""
    passes[pathway:, FORWARD] += 1
    if gradient:
        passes[pathway:, [INNER_GRADIENT, INPUT_GRADIENT]] += 1


def teacher_compute(context: ComputeContext) -> Compute:
    """An ordinary training step, and the received model forward once, if its logits are compared (``weight``)."""
    return trained(context, distillation_passes(context.blocks, context.blocks if context.options.weight else 0))


def distillation_passes(blocks: int, through: int) -> PassCounts:
    """An ordinary training step, and a frozen teacher that runs forward, without gradient, through the first blocks."""
    total = fedavg_passes(blocks)
    total[:through, FORWARD] += 1
    return total
