"""Images in class folders, ``train/CLASS/*`` and ``val/CLASS/*``, of any size.

Of a set with natural clients (``id_column``), in ``CLIENT/CLASS/*``: every fifth image of each folder, in the order of
names, is a test image.

Classes are numbered in the order of their folders' names. An image is scaled until its shorter side is as long as the
set stores it, and its centre square is kept. So a test image is what resizing and a centre crop make of it; training
crops are taken from that square, and never from the ends of the longer side. Images are decoded one by one into the
cache's own files: ImageNet-200, at 196,608 bytes an image, takes 21.6 GB of disk, and no more memory than a few images.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from edge.data.content import array_file
from edge.data.images import SUFFIXES, decode_all
from edge.data.registry import DataError, DataSet, Decoded, Split

TEST_EVERY = 5


def list_images(row: DataSet, folders: Sequence[Path]) -> list[list[Path]]:
    """The images of each class folder in the order of their names; of training, as many as the row says.

    ``folders``: those of training, one for each class, then those of the test. DataError for one that cannot be read.
    """
    assert row.class_folders is not None
    images = []
    for place, folder in enumerate(folders):
        try:
            files = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != "."]
        except OSError as error:
            raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
        is_training = place < row.classes or row.id_column is not None
        images.append(sorted(files)[: row.class_folders.train_per_class if is_training else None])
    return images


def read(row: DataSet, folders: Sequence[Path], target: Path) -> Decoded:
    """Both splits, whose images are in the array files of ``target``; ``folders``: as of `list_images`.

    DataError naming a file that is no image, a split without images, or a disk that is too small.
    """
    images = list_images(row, folders)
    count = sum(map(len, images))
    needed, free = count * int(np.prod(row.stored)), shutil.disk_usage(target).free
    if needed > free:
        raise DataError(
            f"data set {row.name}: {count:,} images take {needed / 1e9:.1f} GB in the cache; {target.parent} has "
            f"{free / 1e9:.1f} GB"
        )
    names = sorted({folder.name for folder in folders})
    classes = {name: number for number, name in enumerate(names)}
    if row.id_column is not None:
        parts = [file for folder in images for place, file in enumerate(folder) if place % TEST_EVERY != TEST_EVERY - 1]
        tested = [file for folder in images for file in folder[TEST_EVERY - 1 :: TEST_EVERY]]
    else:
        halves = images[: row.classes], images[row.classes :]
        parts, tested = ([file for folder in half for file in folder] for half in halves)

    def split(name: str, title: str, files: Sequence[Path]) -> Split:
        if not files:
            raise DataError(f"{folders[0].parents[1]}: no {title} images in its class folders")
        x = open_memmap(array_file(target, f"{name}_x"), mode="w+", dtype=np.uint8, shape=(len(files), *row.stored))

        decode_all(row, [(str(file), file) for file in files], x)
        x.flush()
        y = np.array([classes[file.parent.name] for file in files], np.int64)
        clients = np.array([file.parents[1].name for file in files])
        return Split(x, y, None if row.id_column is None else clients)

    train = split("train", "training", parts)
    return Decoded(train, split("test", "test", tested), f"scaled to {row.stored[1]}x{row.stored[2]}")
