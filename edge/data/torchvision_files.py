"""torchvision's files of a set: MNIST's are read here, others by torchvision's classes.

What is read are the files of the row, and nothing that lies beside them: torchvision itself prefers tensors in
``processed/`` to the files that they were made of. The CIFAR files are pickles, which nothing here opens: torchvision
gets copies of those that have the MD5 of the makers', and checks that again before it opens them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
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


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits; DataError naming a file that is damaged, or does not fit ``row``."""
    root = files[0].parents[row.files[0].count("/")]
    kind: Any = getattr(torchvision.datasets, str(row.torchvision))
    parts = {("test" if match[1] != "train" else "train", 3 if match[2] == "images-idx3" else 1): file
             for file in files if (match := IDX.fullmatch(file.name)) is not None}  # fmt: skip
    if len(parts) == len(files) == 4:
        return _idx_splits(row, root, parts)
    md5_of = dict([*getattr(kind, "train_list", ()), *getattr(kind, "test_list", ())])
    md5_of |= {meta["filename"]: meta["md5"]} if (meta := getattr(kind, "meta", None)) else {}
    with tempfile.TemporaryDirectory() as place:  # of these files alone
        for name, file in zip(row.files, files, strict=True):
            own = Path(place) / name
            own.parent.mkdir(parents=True, exist_ok=True)
            if file.name in md5_of:
                own.write_bytes(_checked(row, file, md5_of[file.name]))
            else:
                opened(file).close()
                own.symlink_to(file.resolve())
        try:
            both = [kind(place, train=train, download=False) for train in (True, False)]
        except Exception as error:  # damaged files raise every kind of error in torchvision's readers
            why = str(error).replace(place, str(root)) or type(error).__name__
            raise DataError(f"{root}: torchvision cannot read {row.name}: {why}") from error
    train, test = (_split(row, root, part, np.asarray(each.data), each.targets)
                   for part, each in zip(("train", "test"), both, strict=True))  # fmt: skip
    return Decoded(train, test, "")


def _idx_splits(row: DataSet, root: Path, parts: Mapping[tuple[str, int], Path]) -> Decoded:
    """Both splits of idx files by split and dimensions; all headers are read before the first image."""
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
    """The content of a file; DataError unless it is what its maker has published."""
    with opened(file, MOST_BATCH_NBYTES) as handle:
        raw = handle.read()
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{file}: damaged: its {len(raw)} bytes have not the MD5 of {row.name}'s file")
    return raw


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
