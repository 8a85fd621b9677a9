"""The loss of a run on outputs and targets as batches have them, and what the model foresees in units of the data.

Batches have classes as (examples,) int64. Real targets are (examples, 4, numbers) float32: the targets in units, mean
and standard deviation by which training standardises them, and the error of the naive forecast (`edge.data.targets`).
Tokens that are foreseen are (examples, length) int64, `UNCOUNTED` elsewhere.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import TrainConfig
from edge.protocol.losses import UNCOUNTED
from edge.training.blocks import load_dotted

TARGET, MEAN, STD, NAIVE = range(4)
"""Rows of real targets"""


class Criterion:
    """``train.loss``. `__call__` is the mean loss of a batch, which steps go down."""

    def __init__(self, train: TrainConfig) -> None:
        """ValueError for a function that cannot be loaded."""
        self.row, self.options = train.loss_row
        self._each = load_dotted(self.row.each)
        self._point = None if self.row.point is None else load_dotted(self.row.point)
        self.is_of_classes = self.row.target == "class"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """A scalar."""
        return self.each(outputs, y).mean()

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum over the examples; a scalar."""
        return self.each(outputs, y).sum()

    def count(self, y: Tensor) -> int:
        """How many losses `total` adds up: one for each example."""
        return len(y)

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(examples,). ValueError for a loss of a user's own of another shape."""
        if self.is_of_classes:
            losses = self._each(outputs, y, self.options)
        else:
            losses = self._each(self._by_number(outputs, y), (y[:, TARGET] - y[:, MEAN]) / y[:, STD], self.options)
        if not isinstance(losses, Tensor) or losses.shape != (len(y),):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(f"train.loss: {self.row.each} gives {got} for {len(y)} examples, not one number for each")
        return losses

    def _by_number(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.view(len(outputs), y.shape[-1], -1)

    def foreseen(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(examples, numbers): the point forecast of real targets, in their units."""
        by_number = self._by_number(outputs, y)
        point = by_number[..., 0] if self._point is None else self._point(by_number, self.options)
        return point * y[:, STD] + y[:, MEAN]

    def outputs_in_units(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(examples, numbers, outputs of a number): outputs that are numbers like the target, in its units."""
        return self._by_number(outputs, y) * y[:, STD, :, None] + y[:, MEAN, :, None]


class CrossEntropy(Criterion):
    """The loss of classifiers, by torch's one function for the mean of a batch, whose bits are not those of a mean of
    single losses."""

    def __init__(self) -> None:
        super().__init__(TrainConfig())

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """A scalar."""
        return F.cross_entropy(outputs, y)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """A scalar."""
        return F.cross_entropy(outputs, y, reduction="sum")


class NextToken(Criterion):
    """The loss of language models: means are over all tokens of a batch, whatever example they are of."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """A scalar, of outputs (examples, length, tokens)."""
        return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=UNCOUNTED)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """A scalar."""
        return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=UNCOUNTED, reduction="sum")

    def count(self, y: Tensor) -> int:
        """The tokens that are foreseen."""
        return int((y != UNCOUNTED).sum())

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(examples,): the mean over an example's tokens."""
        losses = F.cross_entropy(outputs.transpose(1, 2), y, ignore_index=UNCOUNTED, reduction="none")
        return losses.sum(1) / (y != UNCOUNTED).sum(1)


def criterion(train: TrainConfig) -> Criterion:
    """That of ``train.loss``."""
    if train.is_cross_entropy:
        return CrossEntropy()
    return NextToken(train) if train.loss_row[0].target == "tokens" else Criterion(train)
