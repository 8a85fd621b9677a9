"""How finely updates are quantised, round by round and client by client: DAdaQuant.

Hönig, Zhao and Mullins, DAdaQuant: Doubly-adaptive quantization for communication-efficient Federated Learning, ICML
2022, https://proceedings.mlr.press/v162/honig22a.html, sections 3.4 to 3.6.

* q_t, the level of round t: begins with q_min and doubles, up to q_max, when training has converged at it: when the
  running average of the loss, ψ times the last one and 1 - ψ times the loss of the round, has not fallen within φ
  rounds; then it stays for at least φ rounds.
* q_i, the level of client i in a round: max(1, round(√(a/b) w_i^(2/3))), a = Σ w_j^(2/3), b = Σ w_j²/q_t², over the
  round's cohort with weights w. These need the least Σ q_i of all that give the error of the same q_t for every client
  (Theorem 1). The client with the largest weight may get a level above q_t.

The loss of a round is the mean of what its clients report, with their weights. The paper's is that of the model that
they receive, which takes a pass of its own over their examples; ours is the mean loss of their local steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import LevelsConfig

MOST_LEVELS = 32767
"""Of a ``quantize``"""


def client_levels(level: int, weights: Mapping[int, float]) -> dict[int, int]:
    """client -> its level in a cohort with these aggregation weights, whose sum does not matter; Theorem 1.

    Clients without any weight have the level 1.
    """
    a, b = sum(w ** (2 / 3) for w in weights.values()), sum(w**2 for w in weights.values()) / level**2
    scale = math.sqrt(a / b) if b > 0 else 0.0
    return {client: min(max(1, round(scale * w ** (2 / 3))), MOST_LEVELS) for client, w in weights.items()}


class LevelSchedule:
    """The levels of a run with rounds; ``most``: q_max, those of the stage."""

    def __init__(self, config: LevelsConfig, most: int, rounds: int) -> None:
        self.config, self.most = config, most
        self.patience = config.patience or max(1, rounds // 10)
        self.level = config.least if config.by_round else most
        """q_t of the next round"""
        self.average: float | None = None
        """The running average of the loss; None before the first"""
        self.window: list[float] = []
        """It, after each of the last rounds at this level, φ at most"""

    def of_cohort(self, weights: Mapping[int, float]) -> dict[int, int]:
        """client -> its level in the next round, with these aggregation weights."""
        return client_levels(self.level, weights) if self.config.by_client else dict.fromkeys(weights, self.level)

    def learn(self, losses: Mapping[int, float], weights: Mapping[int, float]) -> None:
        """client -> the loss that it has reported in a round; a round without any changes nothing."""
        total = sum(weight for client, weight in weights.items() if client in losses)
        if not self.config.by_round or total <= 0:
            return
        loss = sum(weights[client] * own for client, own in losses.items()) / total
        psi = self.config.momentum
        self.average = loss if self.average is None else psi * self.average + (1 - psi) * loss
        self.window = [*self.window, self.average][-self.patience :]
        if len(self.window) == self.patience and self.window[-1] >= self.window[0]:
            self.level, self.window = min(2 * self.level, self.most), []

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The level, the average and its window."""
        average = [] if self.average is None else [self.average]
        return {"level": np.array([self.level]), "average": np.array(average), "window": np.array(self.window)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""
        self.level = int(state["level"][0])
        self.average = next(iter(state["average"].tolist()), None)
        self.window = state["window"].tolist()
