"""torchvision's files of a set: those of MNIST and CIFAR are read here, others by torchvision's classes.

What is read are the files of the row, and nothing that lies beside them: torchvision itself prefers tensors in
``processed/`` to the files that they were made of. The CIFAR files are pickles, of which only those that have the MD5
of the makers' are opened, and only arrays, numbers and texts come out of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import pickle
import re
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets
from numpy.typing import NDArray

from edge.data.atomic_cache import build_once
from edge.data.registry import DataError, DataSet, Decoded, Split
from edge.data.source_files import opened

IDX = re.compile(r"(train|t10k|test)-(images-idx3|labels-idx1)-ubyte")
MOST_EXAMPLES = 1_000_000
"""Of an idx file; MNIST has 60,000"""
MOST_BATCH_NBYTES = 512 << 20
"""Of a file of CIFAR, which has 155 MB at most"""
IN_PICKLES = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""(module, name) -> all that CIFAR's pickles name"""
LABELS = ("labels", "fine_labels")


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits; DataError naming a file that is damaged, or does not fit ``row``."""
    root = files[0].parents[row.files[0].count("/")]
    kind = getattr(torchvision.datasets, str(row.torchvision))
    if all(IDX.fullmatch(file.name) for file in files) and len(files) == 4:
        return _idx_splits(row, root, files)
    md5_of = dict([*getattr(kind, "train_list", ()), *getattr(kind, "test_list", ())])
    md5_of |= {meta["filename"]: meta["md5"]} if (meta := getattr(kind, "meta", None)) else {}
    contents = {file.name: _checked(row, file, md5_of[file.name]) for file in files if file.name in md5_of}
    if isinstance(kind, type) and issubclass(kind, torchvision.datasets.CIFAR10):
        parts = ([name for name, _ in listed] for listed in (kind.train_list, kind.test_list))
        train, test = (_batches(row, root, part, [contents[name] for name in names])
                       for part, names in zip(("train", "test"), parts, strict=True))  # fmt: skip
        return Decoded(train, test, "")
    with tempfile.TemporaryDirectory() as place:  # of these files alone
        for name, file in zip(row.files, files, strict=True):
            opened(file).close()
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place) / name).symlink_to(file.resolve())
        try:
            both = [kind(place, train=train, download=False) for train in (True, False)]
        except Exception as error:  # damaged files raise every kind of error in torchvision's readers
            why = str(error).replace(place, str(root)) or type(error).__name__
            raise DataError(f"{root}: torchvision cannot read {row.name}: {why}") from error
    splits = (_split(row, root, part, np.asarray(each.data), each.targets)
              for part, each in zip(("train", "test"), both, strict=True))  # fmt: skip
    return Decoded(*splits, "")


def _idx_splits(row: DataSet, root: Path, files: Sequence[Path]) -> Decoded:
    """Both splits of four idx files; all headers are read before the first image."""
    parts: dict[tuple[str, int], Path] = {}
    for file in files:
        part, kind = IDX.fullmatch(file.name).groups()  # type: ignore[union-attr]  # `read` has matched it
        parts["train" if part == "train" else "test", 3 if kind.startswith("images") else 1] = file
    for (_, dimensions), file in parts.items():
        _idx(row, file, dimensions, reads=False)
    train, test = (
        _split(row, root, part, _idx(row, parts[part, 3], 3), _idx(row, parts[part, 1], 1))
        for part in ("train", "test")
    )
    return Decoded(train, test, "")


def _idx(row: DataSet, file: Path, dimensions: int, reads: bool = True) -> NDArray[np.uint8]:
    """The bytes of a file in LeCun's idx format: type 0x08 (unsigned bytes), number of dimensions, these, the bytes.

    DataError that names the file for another number of dimensions, another size of images, or another length.
    """
    with opened(file) as handle:
        head = handle.read(4)
        found = head[3] if head[:3] == b"\0\0\x08" and len(head) == 4 else 0
        sizes = handle.read(4 * found)
        if not 1 <= found <= 3 or len(sizes) < 4 * found:
            raise DataError(f"{file}: not an idx file of bytes")
        shape = struct.unpack(f">{found}I", sizes)
        if 0 in shape:
            raise DataError(f"{file}: no examples")
        follow = file.stat().st_size - 4 - 4 * found
        if follow != math.prod(shape):
            raise DataError(f"{file}: announces {' x '.join(map(str, shape))} bytes, but {follow} follow")
        if found != dimensions or shape[1:] != (row.stored[1:] if dimensions == 3 else ()) or row.stored[0] != 1:
            sides = " x ".join(map(str, shape[1:])) or "one byte each"
            raise DataError(f"{file}: has examples of {sides}; {row.name} has {' x '.join(map(str, row.stored))}")
        if shape[0] > MOST_EXAMPLES:
            raise DataError(f"{file}: {shape[0]:,} examples; the most is {MOST_EXAMPLES:,}")
        content = np.frombuffer(handle.read(follow) if reads else b"", np.uint8)
    return content.reshape(shape) if reads else content


def _checked(row: DataSet, file: Path, md5: str) -> bytes:
    """The content of a file, which is then what its maker has published."""
    with opened(file, MOST_BATCH_NBYTES) as handle:
        raw = handle.read()
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{file}: damaged: its {len(raw)} bytes have not the MD5 of {row.name}'s file")
    return raw


class _Arrays(pickle.Unpickler):
    """Arrays, numbers and texts; pickle.UnpicklingError for anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in IN_PICKLES:
            raise pickle.UnpicklingError(f"names {module}.{name}")
        return IN_PICKLES[module, name]


def _batches(row: DataSet, root: Path, part: str, contents: Sequence[bytes]) -> Split:
    """A split of CIFAR's files, whose rows are images channel by channel."""
    try:
        tables = [_Arrays(io.BytesIO(content), encoding="latin1").load() for content in contents]
        pixels = np.concatenate([np.asarray(table["data"], np.uint8) for table in tables])
        labels = [label for table in tables for label in next(table[key] for key in LABELS if key in table)]
        images = pixels.reshape(-1, *row.stored).transpose(0, 2, 3, 1)  # (examples, height, width, channels)
    except Exception as error:  # a pickle may be anything
        raise DataError(f"{root}: cannot read the {part} files of {row.name}: {error}") from error
    return _split(row, root, part, images, labels)


def download(row: DataSet, cache: Path) -> None:
    """Fetch the set into ``cache / row.name``, complete or not at all; DataError if that fails."""

    def fill(folder: Path) -> None:
        try:
            # torchvision may print; standard output is for the command's result.
            with contextlib.redirect_stdout(sys.stderr):
                getattr(torchvision.datasets, str(row.torchvision))(str(folder), train=True, download=True)
        except Exception as error:  # errors of network, disk and checksums
            raise DataError(f"torchvision could not download {row.name}: {' '.join(str(error).split())}") from error

    build_once(cache / row.name, fill)


def _split(row: DataSet, root: Path, part: str, pixels: NDArray[Any], targets: Any) -> Split:
    """A split of images (examples, height, width[, channels]); DataError if they do not fit ``row``."""
    channels, height, width = row.stored
    labels = np.asarray(targets, dtype=np.int64)
    if (
        pixels.dtype != np.uint8
        or pixels.shape[1:3] != (height, width)
        or math.prod(pixels.shape[1:]) != channels * height * width
    ):
        raise DataError(f"{root}: the {part} images of {row.name} are {pixels.dtype} {pixels.shape[1:]}")
    if len(labels) != len(pixels):
        raise DataError(f"{root}: {row.name} has {len(pixels)} {part} images and {len(labels)} labels")
    wrong = np.flatnonzero((labels < 0) | (labels >= row.classes))
    if wrong.size:
        raise DataError(f"{root}: {part} example {wrong[0]} of {row.name} has label {labels[wrong[0]]}")
    x = pixels.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)  # (examples, channels, height, width)
    return Split(np.ascontiguousarray(x), labels)
