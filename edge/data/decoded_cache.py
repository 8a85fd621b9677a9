"""`open_data`: a data set as memory-mapped arrays, decoded once for all processes and all runs.

    CACHE/data/v1/KEY/      train_x.npy, train_y.npy, test_x.npy ..., meta.json; KEY is a hash of the sources' bytes
    CACHE/data/v1/index/    one small file per set of source files: their stamp -> KEY
    CACHE/data/v1/hashes/   one small file per KEY: the hashes of its files, for other machines that lack the set
    CACHE/NAME/             torchvision's downloads
    CACHE/received/         what other machines have sent (`edge.data.content`)

KEY does not depend on paths, so copies share one decoded set. Hashing 50 MB at every start of every worker would cost
more than the start itself, so the index stores KEY for files of a path, length and time of change.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import inspect
import json
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.atomic_cache import build_once, text_once
from edge.data.content import META, array_file, content_sha256, received_folder, recorded_sha256
from edge.data.locate import OURS, DatasetFiles, locate, missing, reading, search_paths
from edge.data.registry import DATASETS, Data, DataError, DataSet, Decoded, Names, Split, dataset
from edge.data.source_files import opened
from edge.protocol.config import BOARDS, DataConfig

VERSION = "v1"
OFFICIAL = "of the row's files alone"
"""How torchvision's files are read; its own classes also took tensors that lay beside them"""
KEY_LETTERS = 32


def open_data(config: DataConfig, cache: Path, sha256: str = "") -> Data:
    """Find, decode if need be, and map a data set.

    ``sha256``: of its decoded content (`Data.sha256`), if that is known: a set whose files are found nowhere may be in
    the cache in this form. DataError if the set is missing, damaged, or the cache cannot be written.
    """
    data = _opened(config, cache, sha256)
    if config.partition.kind != BOARDS:  # it may have been decoded for a board
        for name, split in (("training", data.train), ("test", data.test)):
            if not len(split.y):
                raise DataError(f"{data.row.reader or data.source}: {name} examples of {data.row.name}: there are none")
    return data


def _opened(config: DataConfig, cache: Path, sha256: str) -> Data:
    row = dataset(config.name)
    searched = search_paths(config.root, cache)
    files = locate(row, searched)
    folder = _folder_of_content(row, sha256, cache) if files is None else None
    if folder is not None:
        return _map(_with_classes(row, folder), folder, row.source if row.content else "decoded before")
    if files is None:
        refusal = why_no_download(row, config)
        if refusal is not None:
            raise missing(row, searched, refusal)
        from edge.data import torchvision_files

        torchvision_files.download(row, cache)
        searched = search_paths(None, cache)
        files = locate(row, searched)
        if files is None:
            raise missing(row, searched, f"{cache / row.name} exists but is not complete; remove it and try again")
    decoded = _decoded_folder(files, cache / "data" / VERSION, config.partition.kind == BOARDS)
    return _map(files.row, decoded, files.title, f" in {files.folder}")


def found_row(config: DataConfig, cache: Path, sha256: str = "") -> DataSet:
    """The row of a set, with as many classes as there are where this depends on its files; ``sha256``: `open_data`."""
    row = dataset(config.name)
    if row.class_folders is None:
        return row
    files = locate(row, search_paths(config.root, cache))
    if files is not None:
        return files.row
    folder = _folder_of_content(row, sha256, cache)
    return row if folder is None else _with_classes(row, folder)


def is_there(config: DataConfig, cache: Path, sha256: str) -> bool:
    """Whether `open_data` would find the set, and download nothing; DataError for an unknown one."""
    row = dataset(config.name)
    is_located = locate(row, search_paths(config.root, cache)) is not None
    return is_located or _folder_of_content(row, sha256, cache) is not None


def replaced(cache: Path) -> list[tuple[Path, str]]:
    """(folder, SHA-256 of its content) of decoded sets that ship, whose files are there and now give another folder.

    The hash is empty where that has the same content. Their files, or the code that decodes them, have changed since;
    those of another ``data.root`` are among them.
    """
    base, found = cache / "data" / VERSION, []
    for row in DATASETS.values():
        files = locate(row, search_paths(None, cache))
        index = None if files is None else base / "index" / _stamp(files)
        if index is None or not index.is_file():
            continue
        now = index.read_text(errors="replace")
        if (base / now / META).is_file():
            content = recorded_sha256(base / now)
            others = sorted(base.glob(f"{glob.escape(row.name)}-{'[0-9a-f]' * KEY_LETTERS}"))
            hashes = {folder: recorded_sha256(folder) or "" for folder in others if folder.name != now}
            found += [(folder, "" if sha256 == content else sha256) for folder, sha256 in hashes.items()]
    return found


def _folder_of_content(row: DataSet, sha256: str, cache: Path) -> Path | None:
    """The folder of decoded examples of a set with this content, if the cache has one."""
    sha256 = row.content or sha256
    if not sha256:
        return None
    received = received_folder(cache, "data", sha256)
    if (received / META).is_file():
        return received
    decoded = sorted((cache / "data" / VERSION).glob(f"{glob.escape(row.name)}-*"))
    return next((folder for folder in decoded if recorded_sha256(folder) == sha256), None)


def arrays_sha256(decoded: Decoded) -> str:
    """The hash of arrays as decoded examples (`Data.sha256`)."""
    return content_sha256(_arrays(decoded))


def store_arrays(sha256: str, decoded: Decoded, cache: Path) -> None:
    """Have the arrays of a set in the cache; CacheError if it cannot be written."""
    build_once(received_folder(cache, "data", sha256), lambda folder: _write(decoded, folder))


def _with_classes(row: DataSet, folder: Path) -> DataSet:
    """The row with as many classes as there are, where that depends on the files; each class has training examples."""
    if row.class_folders is None:
        return row
    return replace(row, classes=int(np.load(array_file(folder, "train_y"), mmap_mode="r").max()) + 1)


def decoded_files(config: DataConfig, cache: Path, sha256: str) -> dict[str, tuple[Path, str]]:
    """File name -> (file, its SHA-256) of a set that `open_data` has opened here; DataError if it is gone."""
    folder = _folder_of_content(dataset(config.name), sha256, cache)
    if folder is None:
        raise DataError(f"data set {config.name}: the cache {cache} has it no more")

    def hashed(name: str) -> str:
        with (folder / name).open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    try:
        names = [f"{name}.npy" for name in json.loads((folder / META).read_text())["arrays"]]
        stats = {name: (folder / name).stat() for name in names}
        stamps = {name: f"{stat.st_size}|{stat.st_mtime_ns}" for name, stat in stats.items()}
        # To hash a large set takes seconds, so the hashes of arrays are kept.
        record = cache / "data" / VERSION / "hashes" / folder.name
        text = text_once(record, lambda: json.dumps({name: [stamps[name], hashed(name)] for name in names}))
        try:
            kept = {name: str(sha) for name, (stamp, sha) in json.loads(text).items() if stamp == stamps.get(name)}
        except (ValueError, TypeError, AttributeError):  # damaged, by a loss of power for instance
            kept = {}
        hashes = {name: kept.get(name) or hashed(name) for name in names} | {META: hashed(META)}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error}") from error
    return {name: (folder / name, digest) for name, digest in hashes.items()}


def why_no_download(row: DataSet, config: DataConfig) -> str | None:
    """The reason why a set that is found nowhere is not downloaded; None if it may be."""
    if row.content:
        return "its arrays are in no cache of this machine; give them in Python again, or resume the run that has them"
    if config.root is not None:
        return "data.root is named, so nothing else is tried"
    if row.torchvision is None:
        return f"torchvision does not offer {row.name}"
    return None if config.download else "data.download is false"


def _decoded_folder(files: DatasetFiles, base: Path, is_on_boards: bool) -> Path:
    """The folder of a set's decoded examples, which are decoded if need be."""
    index = base / "index" / _stamp(files)
    key = index.read_text(errors="replace") if index.is_file() else None
    if key and key.startswith(f"{files.row.name}-") and (base / key).is_dir():
        return base / key
    folder = build_once(base / _key(files), lambda folder: _write(_read(files, folder, is_on_boards), folder))
    if key not in (None, folder.name):  # damaged, by a loss of power for instance
        with suppress(OSError):
            index.unlink()
    text_once(index, lambda: folder.name)
    return folder


def _stamp(files: DatasetFiles) -> str:
    """A hash that changes whenever a source file is replaced, without reading the files.

    Of class folders, whenever an image comes, goes or gets another name.
    """
    digest = hashlib.sha256(_decoding(files).encode())
    for file in files.files:
        try:
            stat = file.stat()
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror}") from error
        digest.update(f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino};".encode())
    return digest.hexdigest()[:32]


def _key(files: DatasetFiles) -> str:
    """The name of a set's decoded examples: a hash of the files' names and bytes, and of what decodes them."""
    digest = hashlib.sha256(f"{files.kind}|{_decoding(files)}".encode())
    sources, is_folders = list(files.files), files.kind == "folders"
    most_nbytes = None
    if is_folders:
        from edge.data import class_folders
        from edge.data.images import MOST_FILE_NBYTES

        sources = [file for folder in class_folders.list_images(files.row, files.files) for file in folder]
        most_nbytes = MOST_FILE_NBYTES
    for file in sources:
        try:
            with opened(file, most_nbytes) as handle:
                name = str(file.relative_to(files.folder)) if is_folders else file.name
                digest.update(f"{name}|{hashlib.file_digest(handle, 'sha256').hexdigest()};".encode())
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error}") from error
    return f"{files.row.name}-{digest.hexdigest()[:KEY_LETTERS]}"


def _decoding(files: DatasetFiles) -> str:
    """All that decoded examples depend on beside the files: the row, who reads them, and the source of a user's own
    reader."""
    row = files.row
    if files.kind == "official":
        return f"{row!r}|{OFFICIAL}"
    if row.reader is None or row.reader.startswith(OURS):
        return repr(row)
    return f"{row!r}|{inspect.getsource(importlib.import_module(row.reader))}"


def _read(files: DatasetFiles, folder: Path, is_on_boards: bool) -> Decoded:
    """The examples, on boards perhaps training or test examples alone.

    ``folder``: where those of class folders are written at once, in the place of their arrays.
    """
    row, reader = files.row, files.reader
    with reading(row, reader):
        # Each reader imports a heavy library, which a filled cache does not need.
        module, more = importlib.import_module(reader), (folder,) if files.kind == "folders" else ()
        decoded: Decoded = module.read(row, files.files, *more)
        if row.kind != "image" or not reader.startswith(OURS):
            for name, split in (("training", decoded.train), ("test", decoded.test)):
                check_examples(row, f"{reader}: {name} examples of {row.name}", split, is_on_boards)
    return decoded


def check_examples(row: DataSet, what: str, split: Split, may_be_empty: bool = False) -> None:
    """DataError unless there are examples, and as the row says."""
    x, y = split.x, split.y
    types = {"image": ("uint8",), "tokens": ("int32", "int64", "uint8")}.get(row.kind, ("float32",))
    if not len(y) and not may_be_empty:
        raise DataError(f"{what}: there are none")
    if x.ndim and len(x) != len(y):
        raise DataError(f"{what}: y has {len(y)} examples, x {len(x)}")
    if x.shape != (len(y), *row.stored) or x.dtype.name not in types:
        raise DataError(f"{what}: x is {x.dtype} of shape {x.shape}, not {types[0]} of {(len(y), *row.stored)}")
    if row.numbers:
        _check_numbers(row, what, y)
    elif y.dtype != np.int64 or y.ndim != 1 or not (y.min(initial=0) >= 0 and y.max(initial=0) < row.classes):
        held = f"{y.min()} .. {y.max()}" if y.ndim == 1 and y.dtype.kind in "iuf" and y.size else f"shape {y.shape}"
        kind = "" if y.dtype == np.int64 else f", {y.dtype}"
        raise DataError(f"{what}: y must hold int64 classes 0 .. {row.classes - 1}; it holds {held}{kind}")
    if row.kind in ("features", "series") and not np.isfinite(x).all():
        wrong = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))[0]
        raise DataError(f"{what}: example {wrong} has NaN or infinite numbers")
    if row.vocabulary is not None and x.size and not (x.min() >= 0 and x.max() < row.vocabulary):
        raise DataError(f"{what}: tokens {x.min()} .. {x.max()} are not within 0 .. {row.vocabulary - 1}")


def _check_numbers(row: DataSet, what: str, y: NDArray[Any]) -> None:
    if y.dtype != np.float32 or y.shape[1:] != (row.numbers,):
        raise DataError(f"{what}: y is {y.dtype} of shape {y.shape}, not float32 of {(len(y), row.numbers)}")
    if not np.isfinite(y).all():
        wrong = np.flatnonzero(~np.isfinite(y).all(axis=1))[0]
        raise DataError(f"{what}: the target of example {wrong} is NaN or infinite; leave the example out")


def _arrays(decoded: Decoded) -> dict[str, NDArray[Any]]:
    """Name -> array, in the order in which they are hashed; natural ids as 0, 1, 2 ..., the same in both splits."""
    arrays: dict[str, NDArray[Any]] = {}
    splits = {"train": decoded.train, "test": decoded.test}
    ids = [split.ids for split in splits.values() if split.ids is not None]
    for name, split in splits.items():
        arrays[f"{name}_x"], arrays[f"{name}_y"] = split.x, split.y
        if split.ids is not None and len(ids) == 2:
            arrays[f"{name}_ids"] = np.searchsorted(np.unique(np.concatenate(ids)), split.ids).astype(np.int64)
    arrays |= {f"{what}_names": np.array(names) for what, names in vars(decoded.names).items() if names}
    return arrays


def _write(decoded: Decoded, folder: Path) -> None:
    arrays = _arrays(decoded)
    for name, array in arrays.items():
        if not array_file(folder, name).exists():
            np.save(array_file(folder, name), array, allow_pickle=False)
    meta = {"sha256": content_sha256(arrays), "form": decoded.form, "arrays": list(arrays)}
    if decoded.notes:
        meta["notes"] = list(decoded.notes)
    (folder / META).write_text(json.dumps(meta))


def _map(row: DataSet, folder: Path, title: str, place: str = "") -> Data:
    """The arrays of a folder. The description of their source is ``title``, their encoding and ``place``."""
    try:
        meta = json.loads((folder / META).read_text())
        # Plain arrays over the mapped file: indexing np.memmap itself costs more per batch.
        arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in meta["arrays"]}
        train, test = (Split(arrays[f"{s}_x"], arrays[f"{s}_y"], arrays.get(f"{s}_ids")) for s in ("train", "test"))
        form = "; ".join(part for part in (meta["form"], row.lacking(len(train.y), len(test.y))) if part)
        names = Names(*(tuple(arrays.get(f"{each.name}_names", np.array(())).tolist()) for each in fields(Names)))
        source = f"{title}{form and f' ({form})'}{place}"
        return Data(row, train, test, meta["sha256"], source, names, tuple(map(str, meta.get("notes", ()))))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{folder}: the decoded set is damaged ({error}); remove this folder and run again") from error
