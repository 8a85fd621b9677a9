"""Batches of one client's examples, as whole tensors: gathered, augmented and normalised at once.

The order of examples and the augmentation have random streams of their own, keyed by (seed, round, client), so that
no method and no worker can change them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from edge.config import TrainConfig
from edge.data.augment import Profile, prepare
from edge.data.sets import Split
from edge.local import Batch
from edge.streams import generator

Indices = NDArray[np.int64]


class LocalBatches:
    """Calling it goes over all local steps of a visit; each further call draws a new order (a further phase)."""

    def __init__(
        self,
        split: Split,
        indices: Indices,
        profile: Profile,
        train: TrainConfig,
        device: torch.device,
        key: tuple[int, int, int],
    ) -> None:
        self.split, self.indices, self.profile, self.config, self.device = split, indices, profile, train, device
        self.steps = train.plan(len(indices)).steps
        seed, round, client = key
        self.order = generator(seed, "batches", round, client)
        self.draws = generator(seed, "augment", round, client)

    def __call__(self) -> Iterator[Batch]:
        """(x, y) with x (batch, channels, height, width) float32 and y (batch,) int64, ``plan.steps`` times."""
        left = self.steps
        while left > 0:
            shuffled = self.indices[self.order.permutation(len(self.indices))]
            for chosen in _cut(shuffled, self.config.batch, self.config.drop_last):
                if left == 0:
                    return
                left -= 1
                yield fetch(self.split, chosen, self.profile, self.device, self.draws)


def fetch(
    split: Split, chosen: Indices, profile: Profile, device: torch.device, draws: np.random.Generator | None = None
) -> Batch:
    """The chosen examples as one batch; without ``draws`` as the test set is prepared."""
    images = torch.from_numpy(split.x[chosen]).to(device)
    labels = torch.from_numpy(np.asarray(split.y[chosen], dtype=np.int64)).to(device)
    return prepare(images, profile, draws), labels


def in_order(split: Split, indices: Indices, profile: Profile, device: torch.device, batch: int) -> Iterator[Batch]:
    """All given examples once, in order, without augmentation."""
    for chosen in _cut(indices, batch, drop_last=False):
        yield fetch(split, chosen, profile, device)


def _cut(indices: Indices, batch: int, drop_last: bool) -> Iterator[Indices]:
    stop = len(indices) // batch * batch if drop_last else len(indices)
    for start in range(0, stop, batch):
        yield indices[start : start + batch]
