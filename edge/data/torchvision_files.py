"""torchvision's files of a set, read and downloaded through torchvision's classes alone.

The CIFAR files are pickles: torchvision checks their MD5 before it opens them, and nothing here opens them itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets

from edge.data.atomic_cache import build_once
from edge.data.registry import DataError, DataSet, Decoded, Split


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits; DataError if torchvision refuses the files or they do not fit ``row``."""
    root = files[0].parents[row.files[0].count("/")]
    kind = getattr(torchvision.datasets, str(row.torchvision))
    md5_of = dict([*getattr(kind, "train_list", ()), *getattr(kind, "test_list", ())])
    for file in files:
        _refuse_damaged(row, file, md5_of.get(file.name))
    try:
        train, test = (kind(str(root), train=train, download=False) for train in (True, False))
    except Exception as error:  # damaged files raise every kind of error in torchvision's readers
        raise DataError(f"{root}: torchvision cannot read {row.name}: {str(error) or type(error).__name__}") from error
    return Decoded(_split(row, root, train, "train"), _split(row, root, test, "test"), "")


def _refuse_damaged(row: DataSet, file: Path, md5: str | None) -> None:
    """DataError naming a damaged file, which torchvision's errors would not name."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    if md5 is not None and hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{file}: damaged: its {len(raw)} bytes have not the MD5 of {row.name}'s file")
    if not file.name.endswith("-ubyte"):
        return
    # LeCun's idx format: type 0x08 (unsigned bytes), the number of dimensions, the dimensions, the bytes.
    dimensions = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    begin = 4 + 4 * dimensions
    if not 1 <= dimensions <= 3 or len(raw) < begin:
        raise DataError(f"{file}: not an idx file of bytes")
    shape = struct.unpack(f">{dimensions}I", raw[4:begin])
    if 0 in shape:
        raise DataError(f"{file}: no examples")
    if len(raw) - begin != math.prod(shape):
        sides = " x ".join(map(str, shape))
        raise DataError(f"{file}: announces {sides} bytes, but {len(raw) - begin} follow")


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


def _split(row: DataSet, root: Path, opened: Any, part: str) -> Split:
    channels, height, width = row.stored
    pixels = np.asarray(opened.data)  # (examples, height, width[, channels])
    labels = np.asarray(opened.targets, dtype=np.int64)
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
