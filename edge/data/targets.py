"""Real targets as batches have them: in units, with the mean and standard deviation by which training standardises, and
the error of the naive forecast in training, by which MASE divides.

These are of a natural client's own training examples, where examples have natural clients; a client without training
examples has those of all. Without natural clients they are of all training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.registry import DataError, DataSet, Split

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of targets, and the naive forecast's error."""

    mean: Floats
    """(clients + 1, numbers), or (1, numbers) without natural clients; the last are of all"""
    std: Floats
    naive: Floats
    """(clients + 1,), or (1,): the mean absolute error, on training windows, of the value one season before (or the
    last value) as forecast of the next one; NaN of targets that are not behind a window. R. Hyndman and A. Koehler,
    International Journal of Forecasting 22, 2006"""

    def of(self, split: Split, chosen: NDArray[np.int64]) -> Floats:
        """(examples, 4, numbers): targets, means, standard deviations and naive errors of these examples of a split."""
        whose = np.full(len(chosen), -1) if split.ids is None or len(self.mean) == 1 else split.ids[chosen]
        targets = split.y[chosen]
        naive = np.broadcast_to(self.naive[whose, None], targets.shape)
        return np.stack([targets, self.mean[whose], self.std[whose], naive], axis=1).astype(np.float32, copy=False)


def unscaled(numbers: int) -> TargetScale:
    """Targets that are trained on as they are."""
    nan = np.full(1, np.nan, np.float32)
    return TargetScale(np.zeros((1, numbers), np.float32), np.ones((1, numbers), np.float32), nan)


def fitted_scale(row: DataSet, train: Split, clients: Sequence[str]) -> TargetScale:
    """Of these training examples of a data set; ``clients``: names, for messages. DataError for a client whose targets
    are all the same, since nothing can be learned of them."""
    whole = np.ones(len(train.y), bool)
    those = [whole]
    if train.ids is not None:
        own = [train.ids == client for client in range(int(train.ids.max(initial=-1)) + 1)]
        those = [*(each if each.any() else whole for each in own), whole]
    parts = [train.y[each] for each in those]
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
        raise DataError(f"data set {row.name}: {whose}{which} are {mean[client, number]:g}; leave what is constant out")
    errors = (
        np.abs(train.y[:, 0] - naive_forecast(row, train.x)) if row.targets.window else np.full(len(train.y), np.nan)
    )
    naive = np.array([errors[each].mean(dtype=np.float64) for each in those])
    return TargetScale(mean.astype(np.float32), std.astype(np.float32), naive.astype(np.float32))


def naive_forecast(row: DataSet, x: NDArray[Any]) -> NDArray[np.float64]:
    """(examples,): the value one season before the first behind each window, without a season the last in it."""
    own = x.reshape(len(x), -1)[:, : row.targets.window]
    return own[:, row.targets.window - (row.targets.season or 1)].astype(np.float64)
