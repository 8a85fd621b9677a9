"""torchvision's own files of a set, read and downloaded through torchvision's classes alone.

The CIFAR files are pickles: torchvision checks their MD5 before it opens them, and nothing here opens them itself.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets

from edge.data.folder import build_once
from edge.data.sets import DataError, DataSet, Decoded, Split


def read(row: DataSet, root: Path) -> Decoded:
    """Both splits from ``root``; DataError if torchvision refuses the files or they do not fit ``row``."""
    try:
        train, test = (_open(row, root, train=train, download=False) for train in (True, False))
    except Exception as error:  # damaged files surface as whatever torchvision's readers stumble over
        raise DataError(f"{root}: torchvision cannot read {row.name}: {error}") from error
    return Decoded(_split(row, root, train, "train"), _split(row, root, test, "test"), "")


def download(row: DataSet, cache: Path) -> None:
    """Fetch the set into ``cache / row.name``, complete or not at all; DataError if that fails."""

    def fill(folder: Path) -> None:
        try:
            # torchvision may print; standard output belongs to the command's answer.
            with contextlib.redirect_stdout(sys.stderr):
                _open(row, folder, train=True, download=True)
        except Exception as error:  # network, disk and checksum errors are all a download that failed
            raise DataError(f"torchvision could not download {row.name}: {error}") from error

    build_once(cache / row.name, fill)


def _open(row: DataSet, root: Path, *, train: bool, download: bool) -> Any:
    assert row.torchvision is not None, row.name
    return getattr(torchvision.datasets, row.torchvision)(str(root), train=train, download=download)


def _split(row: DataSet, root: Path, opened: Any, part: str) -> Split:
    channels, height, width = row.stored
    pixels = np.asarray(opened.data)  # (examples, height, width[, channels])
    labels = np.asarray(opened.targets, dtype=np.int64)
    if pixels.dtype != np.uint8 or pixels.shape[1:3] != (height, width) or pixels[0].size != channels * height * width:
        raise DataError(f"{root}: the {part} images of {row.name} are {pixels.dtype} {pixels.shape[1:]}")
    if len(labels) != len(pixels):
        raise DataError(f"{root}: {row.name} has {len(pixels)} {part} images and {len(labels)} labels")
    wrong = np.flatnonzero((labels < 0) | (labels >= row.classes))
    if wrong.size:
        raise DataError(f"{root}: {part} example {wrong[0]} of {row.name} has label {labels[wrong[0]]}")
    x = pixels.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)  # (examples, channels, height, width)
    return Split(np.ascontiguousarray(x), labels)
