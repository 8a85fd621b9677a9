"""Real targets as batches have them: in units, with the mean and standard deviation by which training standardises.

These are of a natural client's own training examples, where examples have natural clients; a client without training
examples has those of all. Without natural clients they are of all training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.data.registry import DataError, Split

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of targets."""

    mean: Floats
    """(clients + 1, numbers), or (1, numbers) without natural clients; the last are of all"""
    std: Floats

    def of(self, split: Split, chosen: NDArray[np.int64]) -> Floats:
        """(examples, 3, numbers): targets, means and standard deviations of these examples of a split."""
        whose = np.full(len(chosen), -1) if split.ids is None or len(self.mean) == 1 else split.ids[chosen]
        return np.stack([split.y[chosen], self.mean[whose], self.std[whose]], axis=1).astype(np.float32, copy=False)


def unscaled(numbers: int) -> TargetScale:
    """Targets that are trained on as they are."""
    return TargetScale(np.zeros((1, numbers), np.float32), np.ones((1, numbers), np.float32))


def fitted_scale(name: str, train: Split, clients: Sequence[str]) -> TargetScale:
    """Of these training examples; ``clients``: names, for messages. DataError for a client whose targets are all the
    same, since nothing can be learned of them."""
    parts = [train.y]
    if train.ids is not None:
        own = [train.y[train.ids == client] for client in range(int(train.ids.max(initial=-1)) + 1)]
        parts = [*(part if len(part) else train.y for part in own), train.y]
    mean = np.stack([part.mean(axis=0, dtype=np.float64) for part in parts])
    std = np.stack([part.std(axis=0, dtype=np.float64) for part in parts])
    # The scatter of float32 of a constant is its rounding.
    still = np.argwhere(std <= 1e-6 * np.abs(mean))
    if len(still):
        client, number = still[0].tolist()
        whose = f"the training targets of client {clients[client] if clients else client}"
        if client == len(parts) - 1:
            whose = "all training targets"
        which = f", number {number + 1} of them," if train.y.shape[1] > 1 else ""
        raise DataError(f"data set {name}: {whose}{which} are {mean[client, number]:g}; leave what is constant out")
    return TargetScale(mean.astype(np.float32), std.astype(np.float32))
