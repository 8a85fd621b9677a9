"""Server optimizers: rules that make the next global model from the clients' mean.

The server steps along Δ = (the clients' mean) − θ, block by block, in float32; buffers are averaged. A scenario names
an optimizer as ``server`` and sets its hyperparameters in ``server_options``. It works in every round policy, with all
methods that make no server step of their own. An optimizer of your own needs no entry here: a scenario names its row as
``my_package.my_optimizer:ROW``.

``fedavgm``: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, https://arxiv.org/abs/1909.06335. ``fedadagrad``, ``fedadam`` and ``fedyogi``: Reddi et al.,
Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge.protocol.payload import Floats
from edge.protocol.plugins import OptionsRow, PluginOptions, find


class ServerOptimizer:
    """FedAvg's server step: the mean is the next model. Base of all others.

    Subclasses can customise by overriding ``step``; with internal state, also ``state`` and ``restore``.
    """

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """The next vector of one block, from the current one and the clients' mean."""
        return mean

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Vectors that the optimizer keeps between rounds, by name."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""


class MomentumOptions(PluginOptions):
    """m ← momentum·m + Δ; θ ← θ + lr·m; m starts at 0."""

    momentum: float = Field(default=0.4, ge=0, lt=1, title="β")
    """Factor on the last m. FedMLB's authors choose from {0.4, 0.6, 0.8}; 0 is no momentum."""
    lr: float = Field(default=1.0, gt=0, title="η_g")
    """Server step size."""


class Momentum(ServerOptimizer):
    """FedAvgM: server momentum."""

    def __init__(self, options: MomentumOptions) -> None:
        self.options = options
        self.m: dict[str, Floats] = {}

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """θ + lr·m; without momentum and with lr = 1 the mean itself, since θ + (mean − θ) is rounded twice."""
        momentum, lr = self.options.momentum, self.options.lr
        if momentum == 0 and lr == 1:
            return mean
        change = mean - current
        self.m[key] = momentum * self.m[key] + change if key in self.m else change
        return current + lr * self.m[key]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """m, by key."""
        return dict(self.m)

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.m = {key: np.asarray(vector, dtype=np.float32) for key, vector in state.items()}


class AdaptiveOptions(PluginOptions):
    """θ ← θ + lr·m/(√v + tau), with m ← beta1·m + (1 − beta1)·Δ.

    fedadam: v ← beta2·v + (1 − beta2)·Δ². fedyogi: v ← v − (1 − beta2)·Δ²·sign(v − Δ²). m starts at 0 and v at tau²,
    without bias correction. FedMLB's tables use FedADAM with a local learning rate of 0.01, which is ``train.lr`` and
    must be set in the scenario.
    """

    lr: float = Field(default=0.01, gt=0, title="η_g")
    """About the largest change of a parameter in one round."""
    beta1: float = Field(default=0.9, ge=0, lt=1, title="β1")
    """Decay of m; 0 is Δ alone."""
    beta2: float = Field(default=0.99, ge=0, lt=1, title="β2")
    """Decay of v; 0 is Δ² alone."""
    tau: float = Field(default=0.001, gt=0, title="τ")
    """Parameters whose changes are smaller than this take small steps; v starts at tau²."""


class FedAdagradOptions(PluginOptions):
    """θ ← θ + lr·m/(√v + tau), with m ← beta1·m + (1 − beta1)·Δ and v ← v + Δ²; m starts at 0 and v at tau²."""

    lr: float = Field(default=0.01, gt=0, title="η_g")
    """About the largest change of a parameter in the first round."""
    beta1: float = Field(default=0.0, ge=0, lt=1, title="β1")
    """Decay of m; 0 is Δ alone, as in the paper's experiments."""
    tau: float = Field(default=0.001, gt=0, title="τ")
    """Parameters whose changes are smaller than this take small steps; v starts at tau²."""


class Adaptive(ServerOptimizer):
    """A step size per parameter: Algorithm 2 but for v, which subclasses give in `second_moment`."""

    def __init__(self, options: AdaptiveOptions | FedAdagradOptions) -> None:
        self.options = options
        self.m: dict[str, Floats] = {}
        self.v: dict[str, Floats] = {}

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        """θ + lr·m/(√v + tau)."""
        lr, beta1, tau = self.options.lr, self.options.beta1, self.options.tau
        change = mean - current
        m, v = self.m.get(key, np.zeros_like(change)), self.v.get(key, np.full_like(change, tau**2))
        self.m[key] = m = np.float32(beta1) * m + np.float32(1 - beta1) * change
        self.v[key] = v = self.second_moment(v, np.square(change))
        step: Floats = np.divide(np.float32(lr) * m, np.sqrt(v) + np.float32(tau))
        return current + step

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """The next v, from the last one and Δ²."""
        raise NotImplementedError

    def state(self) -> dict[str, NDArray[np.generic]]:
        """m and v, by key."""
        moments = {"m": self.m, "v": self.v}
        return {f"{name}/{key}": vector for name, moment in moments.items() for key, vector in moment.items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        for name, moment in (("m/", self.m), ("v/", self.v)):
            moment.clear()
            for key, vector in state.items():
                if key.startswith(name):
                    moment[key.removeprefix(name)] = np.asarray(vector, dtype=np.float32)


class Adagrad(Adaptive):
    """FedAdagrad: v is the sum of all Δ²."""

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """v + Δ²."""
        return v + square


class Adam(Adaptive):
    """FedADAM: v is a moving average of Δ²."""

    def __init__(self, options: AdaptiveOptions) -> None:
        super().__init__(options)
        self.beta2 = options.beta2

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """beta2·v + (1 − beta2)·Δ²."""
        return np.float32(self.beta2) * v + np.float32(1 - self.beta2) * square


class Yogi(Adam):
    """FedYogi: FedADAM with a v that changes by at most (1 − beta2)·Δ², so that it decays slowly after a large Δ."""

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """v − (1 − beta2)·Δ²·sign(v − Δ²)."""
        change: Floats = square * np.sign(v - square)
        return v - np.float32(1 - self.beta2) * change


@dataclass(frozen=True)
class ServerOptimizerRow(OptionsRow):
    """One server optimizer."""

    neutral: str
    """Options that give FedAvg"""
    make: Callable[[Any], ServerOptimizer]
    """options -> optimizer"""


SERVER_OPTIMIZERS: dict[str, ServerOptimizerRow] = {
    row.name: row
    for row in (
        ServerOptimizerRow(
            "plain",
            "the clients' mean is the next model",
            "McMahan et al., AISTATS 2017",
            PluginOptions,
            "is FedAvg",
            lambda options: ServerOptimizer(),
        ),
        ServerOptimizerRow(
            "fedavgm",
            "server momentum",
            "Hsu, Qi and Brown, 2019",
            MomentumOptions,
            "momentum = 0 and lr = 1",
            Momentum,
        ),
        ServerOptimizerRow(
            "fedadagrad", "Adagrad on the server", "Reddi et al., ICLR 2021", FedAdagradOptions, "none", Adagrad
        ),
        ServerOptimizerRow(
            "fedadam",
            "Adam on the server; FedMLB's tables use train.lr = 0.01",
            "Reddi et al., ICLR 2021",
            AdaptiveOptions,
            "none",
            Adam,
        ),
        ServerOptimizerRow("fedyogi", "Yogi on the server", "Reddi et al., ICLR 2021", AdaptiveOptions, "none", Yogi),
    )
}


def server_optimizer(name: str) -> ServerOptimizerRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, SERVER_OPTIMIZERS, ServerOptimizerRow, "server optimizer")
