"""The types of data, and the table of the shipped data sets. Never opens a file, never imports torch.

A new set is one row here, or in a user's module, named as ``my_package.my_set:ROW``. Images in Parquet files, or of
torchvision, need nothing else; any other set names a reader module (see `DataSet.reader`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.protocol.plugins import find

ExampleKind = Literal["image", "features", "series", "tokens"]
"""Grey or colour images; rows of numbers; channels of numbers over time; sequences of token numbers."""


REAL, CONTINUED = "r", "t"
"""Before the number of real targets, in names of arrays; and in place of it"""
CHANNELS = (1, 3, 4)
"""Numbers of channels that images may have last"""
DIMENSIONS: dict[ExampleKind, int] = {"image": 3, "features": 1, "series": 2, "tokens": 1}
"""Of an example"""


class DataError(ValueError):
    """A data set is missing, damaged or different from its row."""


class PartitionError(DataError):
    """The examples cannot be partitioned among the clients as configured."""


class RealTargets(NamedTuple):
    """What targets are that are no classes."""

    numbers: int = 0
    """Of an example; 0: targets are classes"""
    window: int = 0
    """Steps at the front of an example that are the values of the target before its numbers; 0: it is no window"""
    season: int = 0
    """Steps after which a series is like itself, at most as many as the window has; 0: unknown"""
    overlap: int = 0
    """Windows of the same client after one that have values in common with it (`DataSet.overlap`)"""
    continues: bool = False
    """Whether the one number says how many tokens of an example are given, and the targets are those behind them"""

    @property
    def text(self) -> str:
        """As names of arrays have it: r2w8s4o9, or t for tokens that are to be continued."""
        if self.continues:
            return CONTINUED
        of_windows = f"w{self.window}s{self.season}" if self.window else ""
        return f"{REAL}{self.numbers}{of_windows}" + (f"o{self.overlap}" if self.overlap else "")

    @classmethod
    def parsed(cls, text: str) -> RealTargets:
        """Inverse of `text`; no real targets for a number of classes."""
        if text == CONTINUED:
            return NEXT_TOKENS
        if not text.startswith(REAL):
            return cls()
        numbers, *of_windows = map(int, re.split("[wso]", text[1:]))
        window, season, overlap = (*of_windows, 0, 0, 0)[:3]
        return cls(numbers, window, season, overlap)


OF_CLASSES = RealTargets()
NEXT_TOKENS = RealTargets(1, continues=True)


@dataclass(frozen=True)
class ClassFolders:
    """A set of images in folders, ``train/CLASS/`` and ``val/CLASS/``, each with the images of one class.

    They may have any size: each is scaled so that its shorter side is as long as `DataSet.stored` says, and its centre
    square is stored.
    """

    train_per_class: int | None = None
    """Training images of each class, the first by name; None: all."""
    seed: int = 0
    """Of the draw of classes where there are more than the row's."""


@dataclass(frozen=True)
class DataSet:
    """One row: the properties of a set, without its examples. Its text is a part of the key of decoded examples."""

    name: str
    title: str
    classes: int
    """With ``class_folders``, the most: `edge.data.locate.locate` says how many there are"""
    shape: tuple[int, ...]
    """An example as the model's input: (channels, height, width), (features,), (channels, length) or (length,)."""
    stored: tuple[int, ...]
    """An example as it is stored: of images, smaller than ``shape`` by a frame where the set is padded, and larger
    where models take a part of it."""
    profile: str
    """The default normalisation and augmentation, a name of `augment.PROFILES`."""
    source: str
    """Authors and year."""
    pixel_max: int = 255
    background: int = 0
    """Pixel value of padding: FEMNIST is dark ink on white paper."""
    id_column: str | None = None
    """The name of each example's natural client, a column of Parquet files; None if the set has no such clients."""
    torchvision: str | None = None
    """The class of ``torchvision.datasets`` that reads and downloads it."""
    files: tuple[str, ...] = ()
    """The files that this class needs below its root."""
    reader: str | None = None
    """A module with ``read(row, files) -> Decoded`` and ``files(places) -> tuple of paths, empty if absent``; sets with
    an ``archive`` do not need the latter."""
    kind: ExampleKind = "image"
    """image: uint8 pixels; features, series: float32; tokens: uint8, int32 or int64 in 0 .. vocabulary - 1, 0 for
    padding."""
    vocabulary: int | None = None
    """Number of different tokens, with the padding."""
    archive: str | None = None
    """The name of the authors' one file, which ``reader`` reads; of images, Parquet files are accepted too."""
    like: str = ""
    """The set whose files it reads, in folders of that name; by default its own"""
    counts: tuple[int, int] | None = None
    """Training and test examples of the whole set, where smaller copies are common."""
    class_folders: ClassFolders | None = None
    """Given if the set is a folder of class folders; its reader is `edge.data.class_folders`."""
    overlap: int = 0
    """How many examples of the same client after one share samples with it; only of sets in order of time."""
    overlap_within: Literal["class", "client"] = "class"
    """Whether these are counted among the examples of its class, or among all of its client"""
    content: str = ""
    """The hash of its decoded examples (`Data.sha256`), if they are arrays that were given in Python."""
    targets: RealTargets = OF_CLASSES
    """Of real targets, whose ``classes`` is 1"""

    def __post_init__(self) -> None:
        if self.kind == "image":
            check_channels(f"data set {self.name}: stored = {self.stored}", self.stored)
            return
        dimensions = DIMENSIONS[self.kind]
        if len(self.shape) != dimensions or self.stored != self.shape:
            many = f"{dimensions} dimension{'s' * (dimensions > 1)}"
            raise DataError(f"data set {self.name}: {self.kind} are of {many}, stored as the model takes them")
        if (self.kind == "tokens") != (self.vocabulary is not None):
            raise DataError(f"data set {self.name}: vocabulary belongs to tokens; it is {self.vocabulary}")
        if self.reader is None and not self.content:
            raise DataError(f"data set {self.name}: {self.kind} need a reader")

    @property
    def folder(self) -> str:
        """The name of the subfolder in which its files may be."""
        return self.like or self.name

    @property
    def numbers(self) -> int:
        """Numbers of a real target; 0: targets are classes."""
        return self.targets.numbers

    @property
    def target(self) -> Literal["class", "numbers", "tokens"]:
        """What a model has to foresee of an example."""
        return "tokens" if self.targets.continues else "numbers" if self.numbers else "class"

    @property
    def target_text(self) -> str:
        """The same in words: 10 classes, 2 real targets, or the next of 81 tokens."""
        if self.vocabulary is not None and self.targets.continues:
            return f"the next of {self.vocabulary - 1:,} tokens"
        if not self.numbers:
            return f"{self.classes} classes"
        return f"{self.numbers} real target{'s' * (self.numbers > 1)}"

    @property
    def validation_by(self) -> Literal["client", "stretch"]:
        """How validation examples are held out where a scenario does not say."""
        return "stretch" if self.overlap else "client"

    @property
    def pad(self) -> int:
        """Pixels added on each side for the model."""
        return max(0, self.shape[1] - self.stored[1]) // 2 if self.kind == "image" else 0

    @property
    def side(self) -> int:
        """Side of the square that models take of larger stored images; 0: they take all of an image."""
        return self.shape[1] if self.kind == "image" and self.shape[1] < self.stored[1] else 0

    @property
    def inputs(self) -> int:
        """The number that a model's first layer depends on: channels, features, or the size of the vocabulary."""
        return self.shape[0] if self.vocabulary is None else self.vocabulary

    def lacking(self, train: int, test: int) -> str:
        """The note for a copy with fewer examples, '' if it is whole."""
        if self.counts is None or self.counts == (train, test):
            return ""
        whole_train, whole_test = self.counts
        return f"a subset: {train:,} of {whole_train:,} training and {test:,} of {whole_test:,} test examples"


def check_channels(what: str, shape: tuple[int, ...]) -> None:
    """DataError for images of this shape (channels, height, width) that have their channels last."""
    if len(shape) == 3 and shape[2] in CHANNELS and min(shape[:2]) > max(CHANNELS):
        raise DataError(
            f"{what}: has its channels last; images are (channels, height, width), as np.moveaxis(x, -1, 1) makes them "
            "of examples"
        )


@dataclass(frozen=True)
class Split:
    """The examples of one split."""

    x: NDArray[Any]
    """(examples, channels, height, width) uint8, (examples, features) or (examples, channels, length) float32, or
    (examples, length) uint8, int32 or int64"""
    y: NDArray[Any]
    """(examples,) int64 classes; (examples, numbers) float32 real targets; or (examples, 1) float32, how many
    tokens are given before those that are foreseen"""
    ids: NDArray[Any] | None = None
    """(examples,) natural clients: ints in the cache, ints or text in the source; None if the set has none."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(examples,) classes; of real targets, one class for all."""
        return self.y if self.y.ndim == 1 else np.zeros(len(self.y), np.int64)


@dataclass(frozen=True)
class Names:
    """The names of natural clients 0, 1, .. and of classes; empty where numbers are all that is known."""

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decoded:
    """The result of a reader."""

    train: Split
    test: Split
    form: str
    """The encoding of the source, for the report: lossy images affect accuracy."""
    names: Names = Names()
    notes: tuple[str, ...] = ()
    """What was done to the examples, in words"""


@dataclass(frozen=True)
class Data:
    """An opened data set: arrays mapped from the cache, read-only."""

    row: DataSet
    train: Split
    test: Split
    sha256: str
    """The hash of the decoded arrays, equal for equal examples from different files."""
    source: str
    """The description of its files, for the report."""
    names: Names = Names()
    notes: tuple[str, ...] = ()
    """As of `Decoded`"""


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
        reader="edge.data.scikit_learn",
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
    DataSet(
        "imagenet200",
        "200 classes of ImageNet",
        200,
        shape=(3, 224, 224),
        stored=(3, 256, 256),
        profile="fedalign-imagenet200",
        source="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, 2015; classes and number of "
        "images as in FedAlign; validation images are the test set",
        counts=(100_000, 10_000),
        class_folders=ClassFolders(500, seed=1993),
    ),
    DataSet(
        "breast-cancer",
        "Breast tumours, 30 measured features",
        2,
        shape=(30,),
        stored=(30,),
        profile="standardise",
        source="Wolberg, Mangasarian and Street, Breast Cancer Wisconsin (Diagnostic), 1995; comes with scikit-learn",
        reader="edge.data.scikit_learn",
        kind="features",
    ),
    DataSet(
        "python-topics",
        "Passages of Python's documentation, by topic",
        10,
        shape=(20,),
        stored=(20,),
        profile="plain",
        source="Python Software Foundation, help topics of the running version of Python, which they come with",
        reader="edge.data.python_topics",
        kind="tokens",
        vocabulary=1024,
    ),
    DataSet(
        "parking",
        "Occupancy of 30 car parks, the next hour from four",
        1,
        shape=(8,),
        stored=(8,),
        profile="standardise-client",
        source="Stolfi, Alba and Yao, Parking Birmingham, UCI Machine Learning Repository, 2019",
        id_column="SystemCodeNumber",
        reader="edge.data.sensors",
        archive="parking.csv",
        kind="features",
        overlap=9,
        overlap_within="client",
        targets=RealTargets(2, 8),
    ),
    DataSet(
        "wind",
        "Wind at 12 Irish stations, the next day from 14",
        1,
        shape=(14,),
        stored=(14,),
        profile="standardise-client",
        source="Haslett and Raftery, Applied Statistics 38, 1989",
        id_column="station",
        reader="edge.data.sensors",
        archive="wind.csv",
        kind="features",
        overlap=14,
        overlap_within="client",
        targets=RealTargets(1, 14),
    ),
    DataSet(
        "synthetic",
        "Synthetic(1, 1) of FedProx, drawn, 30 clients",
        10,
        shape=(60,),
        stored=(60,),
        profile="plain",
        source="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, drawn anew by its recipe",
        id_column="client",
        reader="edge.data.synthetic",
        kind="features",
    ),
    *(
        DataSet(
            name,
            f"HAPT, {activities} of 30 people",
            classes,
            shape=(6, 128),
            stored=(6, 128),
            profile="standardise",
            source="Reyes-Ortiz et al., Smartphone-Based Recognition of Human Activities and Postural Transitions, "
            "2015",
            id_column="user",
            reader="edge.data.hapt",
            kind="series",
            overlap=1,
        )
        for name, activities, classes in (
            ("hapt", "6 activities", 6),
            ("hapt-transitions", "6 activities and 6 transitions", 12),
        )
    ),
    DataSet(
        "shakespeare",
        "Roles of Shakespeare's plays (LEAF)",
        81,
        shape=(80,),
        stored=(80,),
        profile="plain",
        source="Caldas et al., LEAF, 2018, task and clients; the plays are Project Gutenberg's texts",
        id_column="role",
        reader="edge.data.shakespeare",
        archive="shakespeare.parquet",
        kind="tokens",
        vocabulary=82,
        overlap=80,
        overlap_within="client",
    ),
    DataSet(
        "shakespeare-text",
        "The same roles, every character foreseen",
        1,
        shape=(80,),
        stored=(80,),
        profile="plain",
        source="the files of shakespeare",
        like="shakespeare",
        id_column="role",
        reader="edge.data.shakespeare",
        archive="shakespeare.parquet",
        kind="tokens",
        vocabulary=82,
        targets=NEXT_TOKENS,
    ),
)

DATASETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


_ARRAYS = re.compile(
    r"([\w-]{1,40})/(image|features|series|tokens)-(\d{1,9})/(\d{1,7}(?:x\d{1,7}){0,2})/(\d{1,7}|t|r\d{1,7}(?:w\d{1,7}s\d{1,7}(?:o\d{1,7})?)?)/([0-9a-f]{64})"
    r"(/ids)?"
)
"""``NAME/KIND-NUMBER/SHAPE/TARGETS/HASH``, with the number of classes, `REAL` and that of real targets, or `CONTINUED`,
and `IDS` behind it if they say whose each example is: all that the row of arrays depends on, so that it needs no
file"""
IDS = "/ids"
GIVEN = "arrays"


def arrays_row(
    name: str,
    kind: ExampleKind,
    number: int,
    shape: tuple[int, ...],
    classes: int,
    sha256: str,
    has_ids: bool = False,
    targets: RealTargets = OF_CLASSES,
) -> DataSet:
    """The row of arrays; ``number``: the largest pixel, or that of the tokens; ``has_ids``: whether they say which
    client made each example. DataError for an impossible one."""
    if re.fullmatch(r"[\w-]{1,40}", name) is None:
        raise DataError(f"name = {name!r}: must be of letters, digits, - and _, at most 40")
    if 0 in (*shape, classes) or len(shape) != DIMENSIONS[kind]:
        raise DataError(f"data set {name}: examples of shape {shape} and {classes} classes are no {kind}")
    return DataSet(
        name,
        f"{name}, {GIVEN} of your own",
        classes,
        shape,
        stored=shape,
        profile="standardise" if kind in ("features", "series") else "plain",
        source=GIVEN,
        pixel_max=max(1, number) if kind == "image" else 255,
        kind=kind,
        vocabulary=number if kind == "tokens" else None,
        content=sha256,
        id_column="ids" if has_ids else None,
        targets=targets,
        overlap=targets.overlap,
        overlap_within="client" if targets.overlap else "class",
    )


def arrays_name(row: DataSet) -> str:
    """The name under which `dataset` finds the row of arrays."""
    number = {"image": row.pixel_max, "tokens": row.vocabulary}.get(row.kind, 0)
    ids = IDS if row.id_column else ""
    targets = row.targets.text if row.numbers else row.classes
    return f"{row.name}/{row.kind}-{number}/{'x'.join(map(str, row.stored))}/{targets}/{row.content}{ids}"


def is_arrays(name: str) -> bool:
    """Whether a name is one of `arrays_name`."""
    return _ARRAYS.fullmatch(name) is not None


def dataset(name: str) -> DataSet:
    """The row of a set, by name, as ``module:ROW`` or of arrays; DataError with the nearest name if there is none."""
    if (match := _ARRAYS.fullmatch(name)) is not None:
        own, kind, number, sizes, targets, sha256, ids = match.groups()
        shape, real = tuple(map(int, sizes.split("x"))), RealTargets.parsed(targets)
        classes = 1 if real.numbers else int(targets)
        return arrays_row(own, kind, int(number), shape, classes, sha256, bool(ids), real)  # type: ignore[arg-type]  # the kind
    try:
        return find(name, DATASETS, DataSet, "data set")
    except ValueError as error:
        raise DataError(f"data.name: {error}") from None
