"""Tiny-ImageNet from its own archive, tiny-imagenet-200.zip, which is never unpacked.

Classes are numbered in the order of their WordNet ids and training images come class by class, in the order of their
file names, as torchvision's ImageFolder gives them; so published partitions by index fit. The validation images, whose
classes are in a table of their own, are the test set: the classes of the archive's test images were never published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from edge.data.parquet_images import MOST_NBYTES, pixels
from edge.data.registry import DataError, DataSet, Decoded, Split

ROOT = "tiny-imagenet-200"
TRAINING = re.compile(rf"{ROOT}/train/(\w+)/images/[^/]+\.JPEG")

ANNOTATIONS = "val/val_annotations.txt"

Member = tuple[str, str]
"""Name in the archive, and WordNet id of its class."""


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits; DataError naming the archive, and the member if there is one, if anything does not fit ``row``."""
    (file,) = files
    try:
        with ZipFile(file) as archive:
            classes = {wnid: number for number, wnid in enumerate(sorted(_text(archive, "wnids.txt").split()))}
            if len(classes) != row.classes:
                raise DataError(f"{file}: wnids.txt names {len(classes)} classes, {row.name} has {row.classes}")
            found = map(TRAINING.fullmatch, archive.namelist())
            train = _split(row, file, archive, classes, [(match[0], match[1]) for match in found if match])
            return Decoded(train, _split(row, file, archive, classes, _validation(file, archive)), "JPEG images")
    except DataError:
        raise
    except Exception as error:  # a damaged archive raises every kind of error, by where the damage is
        raise DataError(f"{file}: not {row.title}'s archive, or damaged: {error}") from error


def _text(archive: ZipFile, name: str) -> str:
    return _bytes(archive, f"{ROOT}/{name}").decode()


def _bytes(archive: ZipFile, name: str) -> bytes:
    """A member, unless it would unpack to far more than any of the set's; its header may lie about that."""
    member = archive.getinfo(name)
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # those that cannot be unpacked bit by bit
        raise DataError(f"{archive.filename}, {name}: must be stored or deflated, as {ROOT}.zip's members are")
    if member.file_size > MOST_NBYTES:
        raise DataError(f"{archive.filename}, {name}: is {member.file_size:,} bytes long; the most is {MOST_NBYTES:,}")
    with archive.open(member) as file:
        return file.read(MOST_NBYTES + 1)  # cut at the length that the header says, which the checksum must fit


def _validation(file: Path, archive: ZipFile) -> list[Member]:
    members = []
    for number, line in enumerate(_text(archive, ANNOTATIONS).splitlines(), start=1):
        name, wnid, *_box = (*line.split("\t"), "", "")
        if not name or not wnid:
            raise DataError(f"{file}, {ROOT}/{ANNOTATIONS}, line {number}: must name an image and its class")
        members.append((f"{ROOT}/val/images/{name}", wnid))
    return members


def _split(row: DataSet, file: Path, archive: ZipFile, classes: Mapping[str, int], members: Sequence[Member]) -> Split:
    if not members:
        raise DataError(f"{file}: no examples")
    x = np.empty((len(members), *row.stored), np.uint8)
    y = np.empty(len(members), np.int64)
    for place, (name, wnid) in enumerate(sorted(members)):
        if wnid not in classes:
            raise DataError(f"{file}, {name}: class {wnid} is not in wnids.txt")
        x[place], y[place] = pixels(row, f"{file}, {name}", _bytes(archive, name)), classes[wnid]
    return Split(x, y)
