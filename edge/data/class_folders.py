"""Images in class folders, ``train/CLASS/*`` and ``val/CLASS/*``, of any size.

Classes are numbered in the order of their folders' names. An image is scaled until its shorter side is as long as the
set stores it, and its centre square is kept. So a test image is what resizing and a centre crop make of it; training
crops are taken from that square, and never from the ends of the longer side. Images are decoded one by one into the
cache's own files: ImageNet-200, at 196,608 bytes an image, takes 21.6 GB of disk, and no more memory than a few images.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from PIL import Image

from edge.data.locate import DatasetFiles
from edge.data.parquet_images import COLOUR_MODES, FORMATS, GREY_MODES
from edge.data.registry import DataError, DataSet, Decoded, Split

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif")
MOST_PIXELS = 100_000_000
"""Limit of one image: 300 MB while it is decoded"""


def listed(row: DataSet, dataset_files: DatasetFiles) -> list[list[Path]]:
    """The images of each class folder in the order of their names; of training, as many as the row says.

    DataError for a folder that cannot be read.
    """
    assert row.class_folders is not None
    train, test = _parts(dataset_files)
    most = row.class_folders.train_per_class
    return [*(_images(folder)[:most] for folder in train), *(_images(folder) for folder in test)]


def _parts(dataset_files: DatasetFiles) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Class folders of training, and of the test."""
    count = dataset_files.train_folders
    return dataset_files.files[:count], dataset_files.files[count:]


def _images(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error


def read(row: DataSet, dataset_files: DatasetFiles, array: Callable[[str], Path]) -> Decoded:
    """Both splits, whose images are in the files ``array("train_x")`` and ``array("test_x")``.

    DataError naming a file that is no image, a split without images, or a disk that is too small.
    """
    train, test = _parts(dataset_files)
    images, numbers = listed(row, dataset_files), {folder.name: number for number, folder in enumerate(train)}
    of_train, of_test = images[: len(train)], images[len(train) :]
    _check_disk(row, array("train_x").parent, sum(map(len, images)))
    y_train, y_test = ([numbers[folder.name] for folder in part] for part in (train, test))
    return Decoded(
        _split(row, dataset_files.folder, "train", of_train, y_train, array),
        _split(row, dataset_files.folder, "test", of_test, y_test, array),
        f"scaled to {row.stored[1]}x{row.stored[2]}",
    )


def _check_disk(row: DataSet, folder: Path, images: int) -> None:
    needed, free = images * int(np.prod(row.stored)), shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"data set {row.name}: {images:,} images take {needed / 1e9:.1f} GB in the cache; {folder.parent} has "
            f"{free / 1e9:.1f} GB"
        )


def _split(
    row: DataSet,
    root: Path,
    name: Literal["train", "test"],
    images: Sequence[Sequence[Path]],
    classes: Sequence[int],
    array: Callable[[str], Path],
) -> Split:
    files = [file for folder in images for file in folder]
    if not files:
        raise DataError(f"{root}: no {'training' if name == 'train' else 'test'} images in its class folders")
    x = open_memmap(array(f"{name}_x"), mode="w+", dtype=np.uint8, shape=(len(files), *row.stored))
    with ThreadPoolExecutor() as pool:  # Pillow decodes and scales without Python's lock
        for _ in pool.map(partial(_decode, row, x), range(len(files)), files):
            pass
    x.flush()
    return Split(x, np.repeat(np.array(classes, np.int64), [len(folder) for folder in images]))


def _decode(row: DataSet, x: NDArray[np.uint8], place: int, file: Path) -> None:
    x[place] = square(row, file)


def square(row: DataSet, file: Path) -> NDArray[np.uint8]:
    """An image file as (channels, side, side); DataError naming a file that the set does not support."""
    channels, side, _ = row.stored
    modes = GREY_MODES if channels == 1 else COLOUR_MODES
    try:
        with Image.open(file, formats=FORMATS) as image:
            unfit = _unsupported(image, modes)
            scaled = None if unfit else _centre(image.convert("L" if channels == 1 else "RGB"), side)
    except Exception as error:  # damaged bytes raise every kind of error in Pillow's decoders
        raise DataError(f"{file}: not a readable image: {str(error) or type(error).__name__}") from error
    if scaled is None:
        raise DataError(f"{file}: the image is {unfit}")
    return np.asarray(scaled).reshape(side, side, channels).transpose(2, 0, 1)


def _unsupported(image: Image.Image, modes: Sequence[str]) -> str:
    """The property of an image, not decoded yet, that is not supported; '' if there is none."""
    if image.mode not in modes:
        return f"of mode {image.mode}; choose {', '.join(modes)}"
    width, height = image.size
    return f"{width}x{height}; the most is {MOST_PIXELS:,} pixels" if width * height > MOST_PIXELS else ""


def _centre(image: Image.Image, side: int) -> Image.Image:
    """Scaled to a shorter side of ``side``, and the centre square of that; as torchvision's Resize and CenterCrop."""
    width, height = image.size
    shorter = min(width, height)
    scaled = int(side * width / shorter), int(side * height / shorter)
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (round((length - side) / 2) for length in scaled)
    return image.crop((left, top, left + side, top + side))
