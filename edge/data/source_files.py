"""Files of data sets, which may come from anyone: a file is opened only if it is one, and no larger than it may be."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from edge.data.registry import DataError

FREE_NBYTES, MOST_TIMES = 16_000_000, 8
"""A file may be so long, or so many times as long as what it has on the disk"""
MOST_PIECES = 10_000
"""Of a file between its holes; one of more is not measured further"""
FREE_PIXELS, MOST_PIXELS_PER_BYTE = 256_000_000, 100
"""Images may decode to so many pixels, or to so many per byte of their file: those of known sets have 1 to 4"""


def opened(file: Path, most_nbytes: int | None = None) -> io.BufferedReader:
    """A file, open for reading; links are followed.

    DataError that names it for a device, a pipe or a folder, for a file of more bytes than the most, and for one that
    is mostly holes: those take no room, and would be read as zeros without end.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would have us wait for its writer
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise DataError(f"{file}: is a device, a pipe or a folder, not a file")
        long = "" if most_nbytes is None or found.st_size <= most_nbytes else f"; the most is {most_nbytes:,}"
        kept = found.st_size
        if not long and found.st_size > max(FREE_NBYTES, 512 * found.st_blocks):
            kept = _data_nbytes(descriptor, found.st_size)
            long = f", of which {kept:,} are on the disk" if found.st_size > max(FREE_NBYTES, MOST_TIMES * kept) else ""
        if long:
            os.close(descriptor)
            raise DataError(f"{file}: is {found.st_size:,} bytes long{long}")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return os.fdopen(descriptor, "rb")


def _data_nbytes(descriptor: int, nbytes: int) -> int:
    """The bytes of a file that lie in no hole; disks that compress have fewer blocks than these."""
    total, end = 0, 0
    for _ in range(MOST_PIECES):
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # there is no more
            break
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        total += end - begin
        if end >= nbytes:
            break
    else:
        total = nbytes
    os.lseek(descriptor, 0, os.SEEK_SET)
    return total


def refuse_many(file: Path, images: int, pixels: int) -> None:
    """DataError for more images of so many pixels, all channels together, than can be in a file of its length."""
    nbytes = file.stat().st_size
    if images * pixels > max(FREE_PIXELS, MOST_PIXELS_PER_BYTE * nbytes):
        raise DataError(f"{file}: {images:,} images cannot be in a file of {nbytes:,} bytes")
