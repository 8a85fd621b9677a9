"""The search for a data set's files. Reads file names only: never decodes, never downloads, never imports torch.

Order: ``data.root`` if it is set (and then nothing else), ``$FEDBR_DATA``, the user cache. In each of these folders a
set may be torchvision's files or its authors' archive, in the folder or in a subfolder of the set's name, class folders
(``train/CLASS/`` and ``val/CLASS/`` or ``test/CLASS/``) likewise, or ``NAME/train.parquet`` with ``NAME/test.parquet``
or ``NAME/val.parquet``. A download is the caller's last resort.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from edge.data.content import received_folder
from edge.data.registry import DataError, DataSet, dataset
from edge.protocol.home import expanded
from edge.protocol.plugins import error_text

ENVIRONMENT = "FEDBR_DATA"
OURS = "edge."
"""The modules of shipped readers begin with it."""


@dataclass(frozen=True)
class SearchPath:
    """A folder that may hold data sets."""

    label: str
    """The setting that names it."""
    folder: Path


@dataclass(frozen=True)
class DatasetFiles:
    """The files of a set, and the module that reads them."""

    row: DataSet
    """The set, with as many classes as there are class folders"""
    kind: Literal["official", "archive", "folders", "parquet", "reader"]
    files: tuple[Path, ...]
    """Of class folders, these: those of training, one for each class, then those of the test"""
    folder: Path
    """The folder in which they are, as the set's layout has them"""
    title: str
    """The files in words, without their folder"""
    reader: str
    """The module with their ``read``"""


def search_paths(root: str | None, cache: Path | None) -> list[SearchPath]:
    """The folders to search, in order; DataError for ``~`` without a home folder."""
    named = {"data.root": root} if root is not None else {f"${ENVIRONMENT}": os.environ.get(ENVIRONMENT) or None}
    paths = []
    for label, folder in named.items():
        if folder is not None:
            try:
                paths.append(SearchPath(label, expanded(folder)))
            except RuntimeError as error:
                raise DataError(f"{label} = {folder!r}: {error}") from None
    if root is None and cache is not None:
        paths.append(SearchPath("the user cache", cache))
    return paths


def check_root(row: DataSet, root: str | None) -> None:
    """DataError for a ``data.root`` that cannot have the set, naming the key."""
    if root is None:
        return
    search_paths(root, None)
    if row.content:
        raise DataError(f"data.root = {root!r}: {row.name} are arrays, which are found by their content; leave it out")
    comes_with = row.reader and getattr(importlib.import_module(row.reader), "COMES_WITH", None)
    if comes_with:
        raise DataError(f"data.root = {root!r}: {row.name} comes with {comes_with}; leave data.root out")


@contextmanager
def reading(row: DataSet, reader: str) -> Iterator[None]:
    """Turn an error of a user's reader into DataError, which names it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if reader.startswith(OURS):
            raise
        raise DataError(f"data set {row.name}: its reader {reader}: {error_text(error)}") from error


def locate(row: DataSet, searched: Sequence[SearchPath]) -> DatasetFiles | None:
    """The set's files in the first folder with all of them, or None; arrays, found by their content, have none."""
    if row.content:
        return None
    folders = [place.folder for place in searched]
    if row.reader is not None and row.archive is None:
        with reading(row, row.reader):
            files = importlib.import_module(row.reader).files(folders)
        return DatasetFiles(row, "reader", files, files[0].parent, row.source, row.reader) if files else None
    return next((form for folder in folders for form in _forms(row, folder)), None)


def _forms(row: DataSet, root: Path) -> Iterator[DatasetFiles]:
    """All forms of a set in a folder: the authors' files first, whose images are as published."""
    titles = {"official": f"torchvision's {row.torchvision} files", "archive": str(row.archive)}
    readers = {"official": "edge.data.torchvision_files", "archive": str(row.reader)}
    names: dict[Literal["official", "archive"], tuple[str, ...]] = {
        "official": row.files,
        "archive": () if row.archive is None else (row.archive,),
    }
    for kind in names:
        for folder in (root, root / row.folder):
            files = tuple(folder / name for name in names[kind])
            if files and all(map(is_file, files)):
                yield DatasetFiles(row, kind, files, folder, titles[kind], readers[kind])
    folders = (root / row.name,) if row.id_column is not None else (root / row.name, root)
    for folder in folders if row.class_folders is not None else ():
        classes, files = _class_folders(row, folder)
        if files:
            counted = replace(row, classes=classes)
            yield DatasetFiles(counted, "folders", files, folder, f"{classes} class folders", "edge.data.class_folders")
    folder = root / row.name
    for name in ("test", "val") if row.kind == "image" else ():
        files = (folder / "train.parquet", folder / f"{name}.parquet")
        if all(map(is_file, files)):
            yield DatasetFiles(row, "parquet", files, folder, "Parquet", "edge.data.parquet_images")


def _class_folders(row: DataSet, folder: Path) -> tuple[int, tuple[Path, ...]]:
    """Number of classes, and their folders of training and of the test; none without a test.

    At most as many classes as the row has; those of a larger set are drawn. Of a set with natural clients, a folder for
    each client and class: CLIENT/CLASS.
    """
    assert row.class_folders is not None
    if row.id_column is not None:
        of_clients = [folder / client / name for client in _folders(folder) for name in _folders(folder / client)]
        names = sorted({path.name for path in of_clients})
        return len(names), tuple(of_clients) if len(names) <= row.classes else ()
    names = _folders(folder / "train")
    if not names:
        return 0, ()
    if len(names) > row.classes:
        # As in class-incremental learning on ImageNet: the first of the classes, by name, in a shuffled order.
        drawn = np.random.RandomState(row.class_folders.seed).permutation(len(names))[: row.classes]
        names = [names[place] for place in sorted(drawn.tolist())]
    for test in ("val", "test"):
        tested = [folder / test / name for name in names if (folder / test / name).is_dir()]
        if tested:
            return len(names), (*(folder / "train" / name for name in names), *tested)
    return 0, ()


def _folders(folder: Path) -> list[str]:
    """The names of the folders in one, in order; none if it is not there, or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def find_data(name: str, root: str | None = None, cache: Path | None = None) -> str | None:
    """The description of a set's files, or None without files; DataError as of `dataset` and `search_paths`."""
    row = dataset(name)
    if row.content and cache is not None and received_folder(cache, "data", row.content).is_dir():
        return row.source
    files = locate(row, search_paths(root, cache))
    return None if files is None else f"{files.title} in {files.folder}"


def missing(row: DataSet, searched: Sequence[SearchPath], why_no_download: str) -> DataError:
    """The error that lists the searched folders and explains how to get the set."""
    looked = [f"{place.label} ({place.folder})" for place in searched]
    if not any(place.label in ("data.root", f"${ENVIRONMENT}") for place in searched):
        looked.append(f"${ENVIRONMENT} is not set")
    return DataError(
        f"data set {row.name} not found. Looked in: {', '.join(looked)}. To get it: {to_have(row)}. "
        f"Not downloaded: {why_no_download}."
    )


def to_have(row: DataSet) -> str:
    """How a user who has a set's files makes them known."""
    layout = f"{row.name}/train.parquet and {row.name}/test.parquet"
    if row.reader is not None and row.archive is None:
        layout = getattr(importlib.import_module(row.reader), "LAYOUT", "the files that its reader looks for")
    if row.files:
        layout += f", or torchvision's files ({row.files[0].split('/')[0]}/)"
    if row.class_folders:
        layout = f"{row.name}/train/CLASS/ and {row.name}/val/CLASS/, folders of images,"
        if row.id_column is not None:
            layout = f"{row.name}/CLIENT/CLASS/, folders of images of at most {row.classes} classes,"
    if row.archive:
        layout = f"{layout}, or {row.archive} as it is," if row.kind == "image" else f"{row.folder}/{row.archive}"
    return f"put {layout} below a folder and name that folder as data.root or in ${ENVIRONMENT}"


def is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that the system rejects, such as a very long one."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; False for a name that the system rejects."""
    try:
        return path.is_dir()
    except OSError:
        return False
