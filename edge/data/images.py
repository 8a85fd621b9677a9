"""Encoded images, from files that may be damaged or made to do harm, as arrays of pixels."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edge.data.registry import ClassFolders, DataError, DataSet
from edge.data.source_files import opened

MOST_NBYTES = 10_000_000
"""Limit of an encoded image, or of another file in an archive"""
MOST_FILE_NBYTES = 64_000_000
"""Limit of an encoded image in a file of its own: those of ImageNet have 16 MB at most"""
MOST_PIXELS = 100_000_000
"""Limit of an image that is scaled: 300 MB while it is decoded"""
MOST_SCALED = 16_000_000
"""Limit of its pixels when it is scaled, of which the centre is kept"""
LARGE_PIXELS = 16_000_000
"""Images of more are decoded one at a time"""
_large = threading.Lock()
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif")
"""Of files of images, in small letters"""
FORMATS = ("PNG", "JPEG", "BMP", "GIF")
GREY_MODES = ("L", "1", "P")
COLOUR_MODES = ("RGB", "L", "1", "P", "CMYK", "YCbCr")
"""Modes that 8 bits per channel can represent without loss: no transparency, no 16 bits, no colours made grey."""


def pixels(row: DataSet, where: str, encoded: bytes | None) -> NDArray[np.uint8]:
    """An encoded image as `decode` gives it."""
    if not encoded:
        raise DataError(f"{where}: the image is empty")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such sizes are errors
        return decode(row, where, BytesIO(encoded))


def measure(where: str, source: BinaryIO) -> tuple[tuple[int, int], bool]:
    """((width, height), whether it is in colour) of an encoded image; DataError naming ``where`` for what is none."""
    try:
        with Image.open(source, formats=FORMATS) as found:
            palette = found.mode == "P" and found.palette is not None and found.palette.mode != "L"
            return found.size, palette or found.mode not in GREY_MODES
    except Exception as error:  # damaged bytes raise every kind of error in Pillow's decoders
        text = str(error).partition(" <_io.")[0]  # Pillow adds a memory address
        raise DataError(f"{where}: not a readable image: {text or type(error).__name__}") from error


def decode(row: DataSet, where: str, source: BinaryIO) -> NDArray[np.uint8]:
    """An image as (channels, height, width) of what a set stores; DataError naming ``where`` if it does not fit.

    Its size is the set's. Only images of class folders may have any: they are scaled to a shorter side as long as the
    set's, of which the centre square is kept, as torchvision's Resize and CenterCrop do.
    """
    channels, height, width = row.stored
    modes, problem, image = GREY_MODES if channels == 1 else COLOUR_MODES, "", None
    try:
        with Image.open(source, formats=FORMATS) as found:  # reads no more than the size and the mode
            size = found.size
            if row.class_folders is None and size != (width, height):
                problem = f"{size[0]}x{size[1]}, {row.name} has {width}x{height}"
            elif found.mode not in modes:
                problem = f"of mode {found.mode}, {row.name} takes {', '.join(modes)}"
            elif row.class_folders is not None and size[0] * size[1] > MOST_PIXELS:
                problem = f"{size[0]}x{size[1]}; the most is {MOST_PIXELS:,} pixels"
            elif row.class_folders is not None and math.prod(_scaled(size, height)) > MOST_SCALED:
                wide, high = _scaled(size, height)
                problem = f"{size[0]}x{size[1]}, {wide}x{high} when it is scaled; the most is {MOST_SCALED:,} pixels"
            else:
                with _large if size[0] * size[1] > LARGE_PIXELS else nullcontext():
                    image = found.convert("L" if channels == 1 else "RGB")
                    if row.class_folders is not None:
                        image = _centre(image, height)
    except Exception as error:  # damaged bytes raise every kind of error in Pillow's decoders
        text = str(error).partition(" <_io.")[0]  # Pillow adds a memory address
        raise DataError(f"{where}: not a readable image: {text or type(error).__name__}") from error
    if image is None:
        raise DataError(f"{where}: the image is {problem}")
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def decode_all(row: DataSet, sources: Sequence[tuple[str, Path | BytesIO]], into: NDArray[np.uint8]) -> None:
    """Decode images, of files or in memory, into (images, channels, height, width); each comes with what names it in
    errors."""

    def fill(place: int, source: tuple[str, Path | BytesIO]) -> None:
        with _opened(source[1]) as handle:
            into[place] = decode(row, source[0], handle)

    with ThreadPoolExecutor() as pool:  # Pillow decodes and scales without Python's lock
        for _ in pool.map(fill, range(len(sources)), sources):
            pass


def decoded(sources: Sequence[tuple[str, Path | BytesIO]], side: int | None) -> NDArray[np.uint8]:
    """(images, channels, height, width) of a user's images, in colour if any is; ``side``: of the square that they are
    scaled to and cut. DataError naming two of different sizes without it."""
    sizes: list[tuple[int, int]] = []
    are_coloured = []
    for where, source in sources:
        with _opened(source) as handle:
            size, is_coloured = measure(where, handle)
        if side is None and sizes and size != sizes[0]:
            first, (width, height) = sources[0][0], sizes[0]
            differ = f"{where}: is {size[0]}x{size[1]}; {first} is {width}x{height}"
            raise DataError(f"{differ}: data.reading.side = 32 scales all to 32x32")
        sizes.append(size)
        are_coloured.append(is_coloured)
    width, height = sizes[0] if side is None else (side, side)
    shape = (3 if any(are_coloured) else 1, height, width)
    row = DataSet("images", "", 1, shape, shape, "plain", "", class_folders=None if side is None else ClassFolders())
    into = np.empty((len(sources), *shape), np.uint8)
    decode_all(row, sources, into)
    return into


def _opened(source: Path | BytesIO) -> AbstractContextManager[BinaryIO]:
    if isinstance(source, Path):
        return opened(source, MOST_FILE_NBYTES)
    return nullcontext(BytesIO(source.getbuffer()))


def _scaled(size: tuple[int, int], side: int) -> tuple[int, int]:
    """(width, height) of an image whose shorter side is made ``side`` long."""
    return int(side * size[0] / min(size)), int(side * size[1] / min(size))


def _centre(image: Image.Image, side: int) -> Image.Image:
    scaled = _scaled(image.size, side)
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (round((length - side) / 2) for length in scaled)
    return image.crop((left, top, left + side, top + side))
