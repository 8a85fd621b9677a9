"""Batches as whole tensors: examples gathered, augmented and normalised at once.

The order of examples and the augmentation have their own random streams, keyed by (seed, round, client), so that no
method and no worker can change them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edge.data.augment import Profile, prepare, to_device
from edge.data.registry import Split
from edge.data.targets import TargetScale
from edge.protocol.config import TrainConfig
from edge.protocol.losses import UNCOUNTED, Target
from edge.protocol.payload import ITEM_NBYTES
from edge.protocol.rng import keyed_generator
from edge.training.client_update import Batch

Indices = NDArray[np.int64]

TOKEN_NBYTES = 8
MOST_PREPARED_NBYTES = 64 << 20
"""Limit of a client's examples as tensors that are prepared once a visit instead of batch by batch."""


@dataclass(frozen=True)
class Loader:
    """One split of a data set, and the preparation of its examples as tensors."""

    split: Split
    profile: Profile
    device: torch.device
    memory_format: torch.memory_format = torch.contiguous_format
    resident: bool = False
    """Whether all examples are on the device, as they are stored, from the first batch on; for splits that are read
    repeatedly on a GPU."""
    scale: TargetScale | None = None
    """Of real targets; None: targets are classes"""
    target: Target = "class"
    """Of ``train.loss``"""

    def fetch(self, chosen: Indices, draws: np.random.Generator | None = None) -> Batch:
        """(x, y) with x as `prepare` returns it, unaugmented without ``draws``; y (batch,) int64, of real targets
        (batch, 4, numbers) float32 (`TargetScale.of`), of tokens (batch, length) int64."""
        targets = self.split.labels[chosen] if self.scale is None else self.scale.of(self.split, chosen)
        labels = to_device(np.asarray(targets), self.device)
        if self.resident:
            # A partition's indices are in a file that is mapped for reading, which torch has no tensors for.
            stored = self._examples[to_device(chosen.copy(), self.device)]
        else:
            stored = to_device(self.split.x[chosen], self.device)
        ids = None
        if self.profile.by_client:
            assert self.split.ids is not None
            ids = to_device(np.asarray(self.split.ids[chosen]), self.device)
        x = prepare(stored, self.profile, draws, ids)
        # Only images have a memory format.
        x = x.contiguous(memory_format=self.memory_format) if x.dim() == 4 else x.contiguous()
        if self.target == "tokens":
            return x, next_tokens(x, to_device(self.split.y[chosen], self.device))
        if self.target == "input":
            own = x.flatten(1)
            scale = torch.zeros_like(own), torch.ones_like(own), torch.full_like(own, torch.nan)
            labels = torch.stack((own, *scale), dim=1)
        return x, labels

    @cached_property
    def _examples(self) -> Tensor:
        return torch.tensor(self.split.x, device=self.device)

    @property
    def example_nbytes(self) -> int:
        """Bytes of one prepared example."""
        first, *sides = self.split.x.shape[1:]
        numbers: int = first * math.prod((self.profile.side or side) + 2 * self.profile.pad for side in sides)
        return numbers * (TOKEN_NBYTES if self.profile.kind == "tokens" else ITEM_NBYTES)

    def in_order(self, indices: Indices, batch: int) -> Iterator[Batch]:
        """All examples of ``indices`` once, in order, without augmentation."""
        for chosen in cut(indices, batch):
            yield self.fetch(chosen)


class LocalBatches:
    """The batches of all local steps of a visit; each call is a further phase with a new order."""

    def __init__(
        self,
        loader: Loader,
        indices: Indices,
        train: TrainConfig,
        key: tuple[int, int, int],
        purposes: tuple[str, str] = ("batches", "augment"),
    ) -> None:
        """``key`` is (seed, round, client); ``purposes``: of the random streams of orders and of augmentation."""
        self.loader, self.indices, self.config = loader, indices, train
        self.plan = train.plan(len(indices))
        self.key, self.purposes = key, purposes
        self.order = self._generator(purposes[0])

    def _generator(self, purpose: str) -> np.random.Generator:
        seed, round, client = self.key
        return keyed_generator(seed, purpose, round, client)

    @cached_property
    def draws(self) -> np.random.Generator | None:
        """The random stream of augmentation; None without any."""
        return self._generator(self.purposes[1]) if self.loader.profile.varies else None

    def phase(self, purpose: str, epochs: int | None) -> LocalBatches:
        """The batches of a further phase, with random streams of its own (`VisitContext.phase`)."""
        train = self.config if epochs is None else replace(self.config, local_epochs=epochs, local_steps=None)
        order, augment = (f"{stream}: {purpose}" for stream in self.purposes)
        return LocalBatches(self.loader, self.indices, train, self.key, (order, augment))

    def __call__(self) -> Iterator[Batch]:
        """``plan.steps`` batches, in a freshly drawn order for each local epoch."""
        left = self.plan.steps
        while left > 0:
            shuffled = self.order.permutation(len(self.indices))
            for chosen in cut(shuffled, self.config.batch, self.config.drop_last):
                if left == 0:
                    return
                left -= 1
                yield self._batch(chosen)

    def _batch(self, chosen: Indices) -> Batch:
        """``chosen``: positions among the client's examples."""
        if self._prepared is None:
            return self.loader.fetch(self.indices[chosen], self.draws)
        (x, y), positions = self._prepared, torch.from_numpy(chosen)
        if not x.is_contiguous():  # channels_last, which index_select does not preserve
            return x.permute(0, 2, 3, 1).index_select(0, positions).permute(0, 3, 1, 2), y.index_select(0, positions)
        return x.index_select(0, positions), y.index_select(0, positions)

    @cached_property
    def _prepared(self) -> Batch | None:
        """All of the client's examples, if they repeat without augmentation and fit into `MOST_PREPARED_NBYTES`."""
        nbytes = self.indices.size * self.loader.example_nbytes
        fits = self.loader.device.type == "cpu" and nbytes <= MOST_PREPARED_NBYTES
        repeats = self.plan.samples > len(self.indices) and not self.loader.profile.varies
        return self.loader.fetch(self.indices) if fits and repeats else None


class PoissonBatches(LocalBatches):
    """Batches of DP-SGD: each example is in each with the probability of a batch's share, for itself."""

    def __call__(self) -> Iterator[Batch]:
        """``plan.steps`` batches, of ``batch`` examples on average, perhaps of none."""
        count = len(self.indices)
        for _ in range(self.plan.steps):
            yield self._batch(np.flatnonzero(self.order.random(count) < self.config.batch / count))

    def phase(self, purpose: str, epochs: int | None) -> LocalBatches:
        found = super().phase(purpose, epochs)
        return PoissonBatches(found.loader, found.indices, found.config, found.key, found.purposes)


def next_tokens(x: Tensor, given: Tensor) -> Tensor:
    """The class of the token behind each place, (batch, length) int64, `UNCOUNTED` where it is padding or given.

    ``x``: (batch, length) tokens, 0 for padding; ``given``: (batch, 1) tokens at the front that are not foreseen.
    """
    behind = F.pad(x[:, 1:], (0, 1))
    place = torch.arange(1, x.shape[1] + 1, device=x.device)
    return torch.where((behind != 0) & (place >= given), behind - 1, UNCOUNTED)


def cut(indices: Indices, batch: int, drop_last: bool = False) -> Iterator[Indices]:
    """Consecutive pieces of ``batch`` indices; the last may be shorter, or is left out."""
    stop = len(indices) // batch * batch if drop_last else len(indices)
    for start in range(0, stop, batch):
        yield indices[start : start + batch]
