"""Stochastic depth, client side: the bodies of drawn residual units are left out of a step.

Huang, Sun, Liu, Sedra and Weinberger, Deep Networks with Stochastic Depth, ECCV 2016, https://arxiv.org/abs/1603.09382,
as FedAlign's published code has it: one draw per unit and batch; in evaluation mode, a unit computes
ReLU(p_ℓ·body(x) + shortcut(x)).

The parameters of a unit's body are one range of the flat vectors. With ``dropped = stay`` the step of a batch is
applied to the other ranges alone: neither weight decay nor momentum nor a correction moves a body that is left out, nor
does its gradient, which may come from a correction, count in the norm for clipping.

An adaptation before an evaluation trains what is evaluated: the whole depth, with scaled bodies.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from edge.models.layers import ResidualUnit, residual_units
from edge.protocol.options.stochdepth import DRAWS, StochasticDepthOptions, keep_probabilities
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext


def with_keep_probabilities(
    blocks: list[Block], options: StochasticDepthOptions, classes: int, width: int | None
) -> list[Block]:
    """The same blocks; in evaluation mode their residual units scale their bodies."""
    units = residual_units(module for _, module in blocks)
    keep = keep_probabilities(len(units), options.keep_last, options.schedule)
    for unit, probability in zip(units, keep, strict=True):
        unit.keep_probability = float(probability)
    return blocks


class StochasticDepthUpdate(ClientUpdate):
    """One visit with stochastic depth, without client state."""

    options: StochasticDepthOptions

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Begin the stream of draws."""
        super().begin(net, down, state, visit)
        self.rng, self.units = visit.rng(DRAWS), residual_units(net.modules)
        self.keep = keep_probabilities(len(self.units), self.options.keep_last, self.options.schedule)
        self.body_flops = visit.unit_flops.sum(axis=1)  # (units,), of a whole training step
        self.ranges = [body_range(unit) for unit in self.units]
        self.dropped: list[int] = []

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Draw the units of each step, and leave out their bodies."""
        for x, y in batches():
            self.draw()
            step.zero()
            step.backward(self.loss, x, y)
            moving: list[str | slice] | None = None
            if self.dropped and self.options.dropped != "decay":  # the ranges of the flat vectors that the step moves
                left_out = [self.ranges[place] for place in self.dropped]  # in the order of the flat vectors
                ends = [0, *(end for start, stop in left_out for end in (start, stop)), len(net.flat)]
                moving = [slice(start, stop) for start, stop in list(pairwise(ends))[::2] if start < stop]
            step.apply(moving)

    def draw(self) -> None:
        """Choose the units without bodies for the next step."""
        kept = self.rng.random(len(self.units)) < self.keep
        self.dropped = [place for place, keeps in enumerate(kept) if not keeps]

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy, without the bodies of drawn units."""
        for place in self.dropped:
            self.units[place].dropped = True
        try:
            value = super().loss(net, x, y)
        finally:
            for place in self.dropped:
                self.units[place].dropped = False
        net.add_flops(-len(x) * float(self.body_flops[self.dropped].sum()))
        return value

    def adapt(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Adapt all bodies, scaled as in evaluation mode."""
        for unit in self.units:
            unit.always_scaled = True
        try:
            super().adapt(net, batches, step)
        finally:
            for unit in self.units:
                unit.always_scaled = False


def body_range(unit: ResidualUnit) -> tuple[int, int]:
    """(start, stop) of the parameters of a unit's body in the flat vectors: all but those of its shortcut."""
    shortcut = set(unit.shortcut.parameters())
    body = [parameter for parameter in unit.parameters() if parameter not in shortcut]
    start = min((int(parameter.storage_offset()) for parameter in body), default=0)
    return start, start + sum(parameter.numel() for parameter in body)
