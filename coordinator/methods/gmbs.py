"""GMBS: a greedy bandit per client that chooses the number of downloaded global blocks.

Zeng et al., Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge Distillation (FedBR),
section III. For client k, number of blocks m in 1..M-1 and round t, with d_k the deviation of the client's data from
the overall distribution, Δζ_L the fall of the local loss, and t'_{k,c}, t'_{k,b} normalised compute and communication
times:

    Eq. 5    r_{k,m} = d_k · Δζ_L / exp(t'_{k,c} + t'_{k,b})
    Eq. 6    p_{k,m} ← λ · r_{k,m} + (1 − λ) · p_{k,m}           for the m that was used
    Eq. 7    V_{k,m} = p_{k,m} + √(ln(t+1)) / (n_{k,m} + 1)       n_{k,m}: how often m was chosen for k

and the choice is argmax_m V_{k,m}, ties broken at random (at t = 0 all values are 0: the choice is uniform).
Choices and rewards are in the ledger table ``choices``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.records.schema import MethodTable
from edge.protocol.options.fedbr import Bonus, Normalise


class ChoiceRow(NamedTuple):
    """The choice for one visit, and its reward (Eq. 5-7)."""

    round: int
    client: int
    alpha: int
    full: int
    value: float
    """V of the chosen alpha when the visit began (Eq. 7)"""
    deviation: float
    loss_drop: float
    compute_share: float
    """Normalised compute time t'_{k,c}"""
    communication_share: float
    """Normalised communication time t'_{k,b}"""
    reward: float


CHOICES = MethodTable("choices", ChoiceRow, reports={"drop": "loss_drop"})


class Gmbs:
    """The bandit's state: ``p`` and ``n``, each (clients, choices); choice m is column m - 1.

    ``memory`` is λ of Eq. 6: 1 keeps only the latest reward, 0 learns nothing.
    """

    def __init__(self, clients: int, choices: int, memory: float, bonus: Bonus = "printed") -> None:
        self.memory = memory
        self.bonus = bonus
        self.p = np.zeros((clients, choices))
        self.n = np.zeros((clients, choices), dtype=np.int64)

    def values(self, client: int, t: int) -> NDArray[np.float64]:
        """V of every choice (Eq. 7). ``bonus = "root"``: √(ln(t+1)/(n+1)) instead of the printed form."""
        log_t, counts = math.log(t + 1), self.n[client] + 1.0
        bonus = np.sqrt(log_t / counts) if self.bonus == "root" else math.sqrt(log_t) / counts
        values: NDArray[np.float64] = self.p[client] + bonus
        return values

    def choose(self, client: int, t: int, rng: np.random.Generator) -> int:
        """argmax of V, 1-based; ``rng`` breaks ties."""
        values = self.values(client, t)
        best = np.flatnonzero(values == values.max())
        return int(rng.choice(best)) + 1

    def started(self, client: int, m: int) -> None:
        """Count a visit with m blocks."""
        self.n[client, m - 1] += 1

    def learn(self, client: int, m: int, reward: float) -> None:
        """Eq. 6."""
        old = self.p[client, m - 1]
        self.p[client, m - 1] = self.memory * reward + (1 - self.memory) * old


def reward(deviation: float, drop: float, compute: float, communication: float) -> float:
    """Eq. 5. ``drop`` keeps its sign: a rising loss gives a negative reward."""
    return deviation * drop / math.exp(compute + communication)


def normalise(seconds: NDArray[np.float64], kind: Normalise) -> NDArray[np.float64]:
    """Normalised times of one round's clients; all 0 if the divisor is 0."""
    if kind == "min-max":
        span = seconds.max() - seconds.min()
        return (seconds - seconds.min()) / span if span > 0 else np.zeros_like(seconds)
    if kind == "z-score":
        deviation = seconds.std()
        return (seconds - seconds.mean()) / deviation if deviation > 0 else np.zeros_like(seconds)
    divisor = seconds.max() if kind == "max" else seconds.mean()
    return seconds / divisor if divisor > 0 else np.zeros_like(seconds)
