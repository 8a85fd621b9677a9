"""Tiny-ImageNet from its own archive, tiny-imagenet-200.zip, which is never unpacked.

Classes are numbered in the order of their WordNet ids, and training images are ordered by class and file name, as in
torchvision's ImageFolder, so that published partitions by index fit. The validation images, whose classes are in a
separate table, are the test set: the classes of the archive's test images were never published.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from edge.data.images import MOST_NBYTES, pixels
from edge.data.registry import DataError, DataSet, Decoded, Split
from edge.data.source_files import opened, refuse_many

ROOT = "tiny-imagenet-200"
TRAINING = re.compile(rf"{ROOT}/train/(\w+)/images/[^/]+\.JPEG")
ANNOTATIONS = f"{ROOT}/val/val_annotations.txt"
MOST_TEXT_NBYTES = 2_000_000
"""Limit of a text that is read as lines; the annotations have 0.4 MB"""

Member = tuple[str, str]
"""(name in the archive, WordNet id of its class)"""


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits; DataError naming the archive, and the member of an error, if the archive does not fit ``row``."""
    (file,) = files
    try:
        with opened(file) as source, ZipFile(source) as archive:
            wnids = sorted(_bytes(file, archive, f"{ROOT}/wnids.txt", MOST_TEXT_NBYTES).decode().split())
            classes = {wnid: number for number, wnid in enumerate(wnids)}
            if len(classes) != row.classes:
                raise DataError(f"{file}: wnids.txt names {len(classes)} classes, {row.name} has {row.classes}")
            matches = map(TRAINING.fullmatch, archive.namelist())
            train = _split(row, file, archive, classes, [(match[0], match[1]) for match in matches if match])
            validation = []
            lines = _bytes(file, archive, ANNOTATIONS, MOST_TEXT_NBYTES).decode().splitlines()
            for number, line in enumerate(lines, start=1):
                name, wnid, *_box = (*line.split("\t"), "", "")
                if not name or not wnid:
                    raise DataError(f"{file}, {ANNOTATIONS}, line {number}: must name an image and its class")
                validation.append((f"{ROOT}/val/images/{name}", wnid))
            return Decoded(train, _split(row, file, archive, classes, validation), "JPEG images")
    except DataError:
        raise
    except Exception as error:  # damaged archives raise every kind of error
        raise DataError(f"{file}: not {row.title}'s archive, or damaged: {error}") from error


def _bytes(file: Path, archive: ZipFile, name: str, most_nbytes: int = MOST_NBYTES) -> bytes:
    """The bytes of a member; DataError if it is longer than any of the set's, even if its header is wrong."""
    member = archive.getinfo(name)
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # others cannot be unpacked in parts
        raise DataError(f"{file}, {name}: must be stored or deflated, as {ROOT}.zip's members are")
    if member.file_size > most_nbytes:
        raise DataError(f"{file}, {name}: is {member.file_size:,} bytes long; the most is {most_nbytes:,}")
    with archive.open(member) as content:
        return content.read(most_nbytes + 1)  # at most the header's length, which the checksum covers


def _split(row: DataSet, file: Path, archive: ZipFile, classes: Mapping[str, int], members: Sequence[Member]) -> Split:
    if not members:
        raise DataError(f"{file}: no examples")
    refuse_many(file, len(members), math.prod(row.stored))  # one image may be named again and again
    x = np.empty((len(members), *row.stored), np.uint8)
    y = np.empty(len(members), np.int64)
    for place, (name, wnid) in enumerate(sorted(members)):
        if wnid not in classes:
            raise DataError(f"{file}, {name}: class {wnid} is not in wnids.txt")
        x[place], y[place] = pixels(row, f"{file}, {name}", _bytes(file, archive, name)), classes[wnid]
    return Split(x, y)
