"""What a data set is, and the table of those that ship. Never opens a file, never imports torch.

A new set is one row here, or in a module of its own named as ``my_package.my_set:ROW``. A set that comes as Parquet
or that torchvision can read needs nothing else; any other names a reader module (see `DataSet.reader`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.protocol.spelling import nearest


class DataError(ValueError):
    """A data set is missing, damaged or not what its row says."""


class PartitionError(DataError):
    """The examples cannot be shared among the clients as asked."""


@dataclass(frozen=True)
class DataSet:
    """One row: what a set is, without its pixels."""

    name: str
    title: str
    classes: int
    shape: tuple[int, int, int]
    """(channels, height, width) as a model sees an example."""
    stored: tuple[int, int, int]
    """(channels, height, width) as an example is stored; smaller than ``shape`` by a frame where the set is padded."""
    profile: str
    """Normalisation and augmentation by default, a name of `augment.PROFILES`."""
    source: str
    """Who made it, and when."""
    pixel_max: int = 255
    background: int = 0
    """Pixel value of an empty place, shown by padding: FEMNIST is dark ink on white paper."""
    id_column: str | None = None
    """Parquet column with each example's natural client, if the set has one."""
    torchvision: str | None = None
    """Class of ``torchvision.datasets`` that reads and downloads it."""
    files: tuple[str, ...] = ()
    """The files that class needs below its root."""
    reader: str | None = None
    """Module with ``read(row, files) -> Decoded`` and ``files(places) -> tuple of paths, empty if absent``; the latter
    is not needed beside an ``archive``."""
    # No parts of repr, by which decoded sets are found again: they change nothing in them.
    archive: str | None = field(default=None, repr=False)
    """Name of the one file that its makers hand out, which ``reader`` reads; as Parquet, the set is known too."""
    counts: tuple[int, int] | None = field(default=None, repr=False)
    """Training and test examples of the whole set, where copies with fewer go round."""

    @property
    def pad(self) -> int:
        """Pixels added on each side for the model."""
        return (self.shape[1] - self.stored[1]) // 2

    def lacking(self, train: int, test: int) -> str:
        """What a copy with so many examples must say of itself, '' if it is whole."""
        if self.counts is None or self.counts == (train, test):
            return ""
        whole_train, whole_test = self.counts
        return f"a subset: {train:,} of {whole_train:,} training and {test:,} of {whole_test:,} test examples"

    @property
    def natural_ids(self) -> bool:
        """Whether the examples come with the clients that made them."""
        return self.id_column is not None


@dataclass(frozen=True)
class Split:
    """The examples of one split."""

    x: NDArray[np.uint8]
    """(examples, channels, height, width)"""
    y: NDArray[np.int64]
    """(examples,) classes"""
    ids: NDArray[Any] | None = None
    """(examples,) natural clients: ints once stored, whatever the source had before; None if the set has none."""


@dataclass(frozen=True)
class Decoded:
    """What a reader returns."""

    train: Split
    test: Split
    form: str
    """How the source held it, for people: lossy images matter beside an accuracy."""


@dataclass(frozen=True)
class Data:
    """An opened data set: arrays mapped from the cache, read-only."""

    row: DataSet
    train: Split
    test: Split
    sha256: str
    """Of the decoded arrays, so that equal pixels hash alike whatever file they came from."""
    source: str
    """Where it came from, for people."""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.row.classes


_CIFAR10_FILES = tuple(
    f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
)
_MNIST_FILES = tuple(
    f"MNIST/raw/{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)

_ROWS = (
    DataSet(
        "digits",
        "Handwritten digits, 8x8",
        10,
        shape=(1, 8, 8),
        stored=(1, 8, 8),
        profile="digits",
        source="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998; comes with scikit-learn",
        pixel_max=16,
        reader="edge.data.digits",
    ),
    DataSet(
        "mnist",
        "MNIST handwritten digits",
        10,
        shape=(1, 32, 32),
        stored=(1, 28, 28),
        profile="mnist",
        source="LeCun, Cortes and Burges, 1998",
        torchvision="MNIST",
        files=_MNIST_FILES,
    ),
    DataSet(
        "femnist",
        "FEMNIST characters by writer (LEAF)",
        62,
        shape=(1, 32, 32),
        stored=(1, 28, 28),
        profile="femnist",
        source="Caldas et al., LEAF, 2018, from NIST Special Database 19",
        background=255,
        id_column="writer_id",
    ),
    DataSet(
        "cifar10",
        "CIFAR-10",
        10,
        shape=(3, 32, 32),
        stored=(3, 32, 32),
        profile="fedmlb-cifar",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        torchvision="CIFAR10",
        files=(*_CIFAR10_FILES, "cifar-10-batches-py/batches.meta"),
    ),
    DataSet(
        "cifar100",
        "CIFAR-100",
        100,
        shape=(3, 32, 32),
        stored=(3, 32, 32),
        profile="fedmlb-cifar",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        torchvision="CIFAR100",
        files=("cifar-100-python/train", "cifar-100-python/test", "cifar-100-python/meta"),
    ),
    DataSet(
        "tinyimagenet",
        "Tiny-ImageNet",
        200,
        shape=(3, 64, 64),
        stored=(3, 64, 64),
        profile="fedmlb-tinyimagenet",
        source="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015; validation images are the test set",
        reader="edge.data.tinyimagenet",
        archive="tiny-imagenet-200.zip",
        counts=(100_000, 10_000),
    ),
)

DATASETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


def dataset(name: str) -> DataSet:
    """The row of a set, by name or as ``module:ROW``; DataError with the nearest name if there is none."""
    if name in DATASETS:
        return DATASETS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise DataError(f"data.name: unknown data set {name!r}; {nearest(name, DATASETS)}")
    try:
        row = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's own may raise anything
        raise DataError(f"data.name: cannot load {name!r}: {type(error).__name__}: {error}") from error
    if not isinstance(row, DataSet):
        raise DataError(f"data.name: {name!r} is not a DataSet row")
    return row
