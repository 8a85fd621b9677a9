"""Optimizers of local training, under the names that scenarios use as ``train.optimizer``. No torch.

A row says which vectors an optimizer keeps beside the weights, what a step costs, and names the function that moves the
weights. Options have the names and defaults of ``torch.optim``. An optimizer of your own needs no entry: a scenario
names its row as ``my_package.my_optimizer:ROW``, whose ``move`` is ``module:function`` of (weights, gradient, state,
steps, lr, options), which changes the first three in place: vectors (numbers,), and of ``state`` one by each of its
names; ``steps`` were made before.

A step reads weights and gradient and writes weights, 12 B a weight; it reads and writes each vector of its state, 8 B
more. Devices whose training was measured did so with SGD, so that what a step moves beyond `SGD_TRAFFIC`, or beyond
SGD's with momentum, comes on top of the row's figures (`costmodel.fleet.model_demand`). The FLOPs of a step are a
handful per weight; at 0.5 FLOP for each byte, no device computes them slower than it moves the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from edge.protocol.plugins import OptionsRow, PluginOptions, find

SGD = "sgd"
SGD_TRAFFIC, STATE_TRAFFIC = 12, 8
"""Bytes a weight that a step reads and writes: of weights and gradient, and of each vector of state"""
Beta = Annotated[float, Field(ge=0, lt=1)]
StatePolicy = Literal["reset", "keep", "send", "mean"]


@dataclass(frozen=True)
class OptimizerRow(OptionsRow):
    """One optimizer of local training."""

    move: str
    """``module:function`` that moves the weights; empty for SGD, which is `edge.training.sgd`"""
    state: Callable[[Any], Mapping[str, float]]
    """options -> the vectors that it keeps beside the weights, by torch's names, and the number that fills them before
    the first step"""
    flops: int
    """FLOPs of a step for each weight, without weight decay and options that are off by default"""
    lr: float
    """torch's default step size"""
    second: str | None = None
    """The vector of ``state`` that ``train.optimizer_state = "mean"`` sends as one number per block; None: it has none
    that says how large gradients are"""

    def traffic(self, options: Any) -> int:
        """Bytes a weight that a step reads and writes."""
        return SGD_TRAFFIC + STATE_TRAFFIC * len(self.state(options))


class AdamOptions(PluginOptions):
    """m ← β1·m + (1 − β1)·g; v ← β2·v + (1 − β2)·g²; θ ← θ − lr·m̂/(√v̂ + eps), with m̂ = m/(1 − β1^t), v̂ alike."""

    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), title="β1, β2")
    """Decays of m and of v."""
    eps: float = Field(default=1e-8, gt=0, title="ε")
    """Added to the root."""
    weight_decay: float = Field(default=0.0, ge=0, title="λ")
    """L2 decay, added to the gradient; 0 is none."""
    amsgrad: bool = False
    """Whether steps are divided by the largest v so far (Reddi, Kale and Kumar, ICLR 2018): one more vector."""


class AdamWOptions(AdamOptions):
    """As Adam, with θ ← (1 − lr·λ)·θ before the step, in place of a decay in the gradient."""

    weight_decay: float = Field(default=0.01, ge=0, title="λ")
    """Decay of the weights themselves; 0 is none, and Adam."""


class RMSpropOptions(PluginOptions):
    """v ← α·v + (1 − α)·g²; θ ← θ − lr·g/(√v + eps)."""

    alpha: Beta = Field(default=0.99, title="α")
    """Decay of v."""
    eps: float = Field(default=1e-8, gt=0, title="ε")
    """Added to the root."""
    weight_decay: float = Field(default=0.0, ge=0, title="λ")
    """L2 decay, added to the gradient; 0 is none."""
    momentum: Beta = Field(default=0.0, title="μ")
    """Momentum of the divided gradients: one more vector; 0 is none."""
    centered: bool = False
    """Whether v is the variance of gradients, without the square of their mean: one more vector."""


class AdagradOptions(PluginOptions):
    """s ← s + g²; θ ← θ − lr/(1 + t·lr_decay)·g/(√s + eps), with t steps before."""

    lr_decay: float = Field(default=0.0, ge=0, title="η")
    """Decay of the step size over steps; 0 is none."""
    weight_decay: float = Field(default=0.0, ge=0, title="λ")
    """L2 decay, added to the gradient; 0 is none."""
    initial_accumulator_value: float = Field(default=0.0, ge=0, title="τ")
    """What s begins with."""
    eps: float = Field(default=1e-10, gt=0, title="ε")
    """Added to the root."""


def _zeros(*names: str | None) -> dict[str, float]:
    return {name: 0.0 for name in names if name}


def _adam_state(options: AdamOptions) -> Mapping[str, float]:
    return _zeros("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if options.amsgrad else None)


def _rmsprop_state(options: RMSpropOptions) -> Mapping[str, float]:
    further = ("momentum_buffer" if options.momentum else None, "grad_avg" if options.centered else None)
    return _zeros("square_avg", *further)


OPTIMIZERS: dict[str, OptimizerRow] = {
    row.name: row
    for row in (
        OptimizerRow(
            SGD,
            "gradient descent, with train.momentum if that is above 0",
            "McMahan et al., AISTATS 2017",
            PluginOptions,
            "",
            lambda options: {},
            flops=2,
            lr=0.001,
        ),
        OptimizerRow(
            "adam",
            "running means of gradients, by the root of those of squares",
            "Kingma and Ba, ICLR 2015",
            AdamOptions,
            "edge.training.optimizers:adam",
            _adam_state,
            flops=14,
            lr=0.001,
            second="exp_avg_sq",
        ),
        OptimizerRow(
            "adamw",
            "Adam whose weight decay acts on the weights alone",
            "Loshchilov and Hutter, ICLR 2019",
            AdamWOptions,
            "edge.training.optimizers:adamw",
            _adam_state,
            flops=16,
            lr=0.001,
            second="exp_avg_sq",
        ),
        OptimizerRow(
            "rmsprop",
            "gradients, by the root of a running mean of their squares",
            "Tieleman and Hinton, 2012",
            RMSpropOptions,
            "edge.training.optimizers:rmsprop",
            _rmsprop_state,
            flops=9,
            lr=0.01,
            second="square_avg",
        ),
        OptimizerRow(
            "adagrad",
            "gradients, by the root of the sum of their squares",
            "Duchi, Hazan and Singer, JMLR 2011",
            AdagradOptions,
            "edge.training.optimizers:adagrad",
            lambda options: {"sum": options.initial_accumulator_value},
            flops=7,
            lr=0.01,
            second="sum",
        ),
    )
}


def optimizer(name: str) -> OptimizerRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, OPTIMIZERS, OptimizerRow, "optimizer")
