"""Losses of local training, under the names that scenarios use as ``train.loss``. No torch.

A row says what a loss asks of targets and of the model's outputs, names the functions of both, and the metric by which
its runs are judged. A loss of your own needs no entry: a scenario names its row as ``my_package.my_loss:ROW``, whose
``each`` is ``module:function`` of (outputs, targets, options) -> (examples,), the loss of each example: with targets of
classes (examples,) int64 and outputs (examples, classes); with real targets (examples, numbers) and outputs (examples,
numbers, outputs of a number).

Real targets are standardised for training by mean and standard deviation of the client's own training examples, where
examples have natural clients, else of all; metrics are in their units. A loss whose targets are not ``scaled`` gets
them as they are.

Targets of ``tokens`` are (examples, length), `UNCOUNTED` where none is foreseen, and outputs (examples, length,
tokens); a batch's loss is the mean over tokens, and so is that of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from edge.protocol.plugins import OptionsRow, PluginOptions, find

CROSS_ENTROPY, NEXT_TOKEN = "cross-entropy", "next-token"
MOST_TOKENS = 8192
"""Of an example"""
UNCOUNTED = -100
"""The target of a place where no token is foreseen, as torch's cross-entropy ignores it"""
Target = Literal["class", "numbers", "input", "tokens"]
"""Classes; real numbers; the example itself, which the model has to give back; or each of its tokens behind the given
ones"""


@dataclass(frozen=True)
class LossRow(OptionsRow):
    """One loss of local training."""

    each: str
    """``module:function`` that gives the loss of each example"""
    target: Target
    score: str
    """The metric by which runs with this loss are judged: target, best round, patience"""
    outputs: Callable[[Any], int] = lambda options: 1
    """options -> outputs of the model for each number of a real target"""
    point: str | None = None
    """``module:function`` of (outputs, options) -> (examples, numbers), what the model foresees of a target, in its
    scale; None: its first output"""
    is_scaled: bool = True
    """Whether real targets are standardised for training"""

    @property
    def most_of_an_example(self) -> int:
        """The most losses that an example has."""
        return MOST_TOKENS if self.target == "tokens" else 1


class HuberOptions(PluginOptions):
    """e²/2 where |e| is at most delta, delta·(|e| − delta/2) beyond."""

    delta: float = Field(default=1.0, gt=0, title="δ")
    """Error, in standard deviations of targets, from which the loss is linear."""


class PinballOptions(PluginOptions):
    """q·e for an error e = y − ŷ of at least 0, (q − 1)·e below; the mean over quantiles."""

    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(0.1, 0.5, 0.9), min_length=1)
    """Quantiles that the model foresees, in ascending order; the one nearest to a half is its point forecast."""

    @field_validator("quantiles")
    @classmethod
    def _ascending(cls, quantiles: tuple[float, ...]) -> tuple[float, ...]:
        if list(quantiles) != sorted({*quantiles}):
            raise ValueError("must be different ones in ascending order")
        return quantiles

    @property
    def middle(self) -> int:
        """Index of the quantile that is nearest to a half."""
        return min(range(len(self.quantiles)), key=lambda place: math.fabs(self.quantiles[place] - 0.5))


_FUNCTIONS = "edge.training.losses"
LOSSES: dict[str, LossRow] = {
    row.name: row
    for row in (
        LossRow(
            CROSS_ENTROPY,
            "of the class, in nats",
            "McMahan et al., AISTATS 2017",
            PluginOptions,
            f"{_FUNCTIONS}:cross_entropy",
            "class",
            "accuracy",
        ),
        LossRow(
            "mse",
            "squared errors of real targets",
            "least squares",
            PluginOptions,
            f"{_FUNCTIONS}:mse",
            "numbers",
            "rmse",
        ),
        LossRow(
            "mae",
            "absolute errors of real targets",
            "least absolute deviations",
            PluginOptions,
            f"{_FUNCTIONS}:mae",
            "numbers",
            "mae",
        ),
        LossRow(
            "huber",
            "squared errors that grow linearly beyond delta",
            "Huber, Annals of Mathematical Statistics 1964",
            HuberOptions,
            f"{_FUNCTIONS}:huber",
            "numbers",
            "rmse",
        ),
        LossRow(
            "pinball",
            "quantiles of real targets",
            "Koenker and Bassett, Econometrica 1978",
            PinballOptions,
            f"{_FUNCTIONS}:pinball",
            "numbers",
            "pinball",
            outputs=lambda options: len(options.quantiles),
            point=f"{_FUNCTIONS}:median",
        ),
        LossRow(
            "gaussian-nll",
            "negative log-likelihood of a mean and a variance",
            "Nix and Weigend, ICNN 1994",
            PluginOptions,
            f"{_FUNCTIONS}:gaussian_nll",
            "numbers",
            "loss",
            outputs=lambda options: 2,
        ),
        LossRow(
            "bce",
            "binary cross-entropy of several labels, each 0 or 1",
            "logistic regression",
            PluginOptions,
            f"{_FUNCTIONS}:bce",
            "numbers",
            "f1",
            point=f"{_FUNCTIONS}:probability",
            is_scaled=False,
        ),
        LossRow(
            "reconstruction",
            "squared errors of the example that the model gives back",
            "Hinton and Salakhutdinov, Science 2006",
            PluginOptions,
            f"{_FUNCTIONS}:mse",
            "input",
            "rmse",
            is_scaled=False,
        ),
        LossRow(
            NEXT_TOKEN,
            "of each token from those before it, in nats a token",
            "Bengio et al., JMLR 2003",
            PluginOptions,
            f"{_FUNCTIONS}:cross_entropy",
            "tokens",
            "perplexity",
        ),
    )
}


def loss(name: str) -> LossRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, LOSSES, LossRow, "loss")
