"""Data as people have them: a file, or a folder of files, as a data set of arrays (``data.file``).

    TABLE                        CSV, Parquet, Arrow or npz: a row for each example, or arrays x and y
    USERS.json                   LEAF: users, and x and y of each
    CLIENT.csv, CLIENT/*.csv     a table for each client
    CLASS/*.png                  images; CLIENT/CLASS/*.png those of each client
    train, test, validation      the first folder or file of such a name on a path says which part it is;
                                 train-00000-of-00002 is a shard
    CLIENT_train.csv, ..         where the names of all tables end in a part
    CLIENT/state.json            a data set of ``save_to_disk`` of Hugging Face, as partitions of Flower Datasets are

Folders that all files share, and hidden files, say nothing; of folders in folders a client has all names.
`own_tables` reads one file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.data import own_series, own_tables, own_text, tokenizers
from edge.data.arrays import Arrays, dataset
from edge.data.atomic_cache import text_once
from edge.data.content import received_folder
from edge.data.images import SUFFIXES as IMAGES
from edge.data.images import decoded
from edge.data.own_tables import PART_WORDS, Examples
from edge.data.registry import NEXT_TOKENS, DataError, RealTargets
from edge.protocol.config import FileReading, SeriesReading, TextReading

RULES = "2"
"""Raised when a file is read in another way than before"""
FORMS = (*own_tables.READERS, *IMAGES)
"""Ends of the names of files that are read"""
_SHARD = re.compile(r"[-_.]?\d+-of-\d+$")
_NAMED_PART = re.compile(rf"(?P<rest>.+)[-_. ](?P<part>{'|'.join(PART_WORDS)})", re.IGNORECASE)
_SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")
"""Files beside a saved data set's examples"""
SHOWN = 5
"""Names that a note lists"""


class Kept(NamedTuple):
    """A data set of files that is in the cache."""

    name: str
    """The value of ``data.name`` that stands for it"""
    clients: int
    """Clients that the files name; 0: none"""


@dataclass(frozen=True)
class PlacedFile:
    """A file, and what its path says of its examples; '' for what it does not say."""

    file: Path
    part: str = ""
    client: str = ""
    label: str = ""


def kept(path: Path, reading: FileReading, cache: Path, more: SeriesReading | TextReading | None = None) -> Kept:
    """Read a file or folder into the cache, unless it is there; ``more``: whether it holds series or texts, and how
    these are read. DataError for what is no data set."""
    sources = find(path, own_text.FORMS if isinstance(more, TextReading) else FORMS)
    stamp = hashlib.sha256(f"{RULES}|{path.name}|{reading!r}|{more!r}".encode())
    if isinstance(more, TextReading) and more.tokenizer not in (tokenizers.CHARACTERS, tokenizers.BYTES):
        _stamp(stamp, tokenizers.file_of(more.tokenizer))
    for source in sources:
        _stamp(stamp, source.file)
    entries = cache / "data" / "v1" / "own"

    @functools.cache
    def whole() -> Examples:
        return _whole(sources, reading)

    def made() -> str:
        if isinstance(more, TextReading):
            data = _texts(path, sources, more)
        else:
            data = _arrays(path, sources, reading, whole()) if more is None else _series(path, sources, more)
        return json.dumps([data.keep(cache), len(data.client_names)])

    def images_of() -> str:
        return json.dumps([] if more is not None else [*map(str, whole().images)])

    listed = text_once(entries / f"{stamp.hexdigest()[:32]}.files", images_of)
    for file in json.loads(listed):
        _stamp(stamp, Path(file))
    name, clients = json.loads(text_once(entries / stamp.hexdigest()[:32], made))
    if not received_folder(cache, "data", str(name).removesuffix("/ids").rpartition("/")[2]).is_dir():
        name, clients = json.loads(made())  # the cache was emptied
    return Kept(name, clients)


def _stamp(stamp: hashlib._Hash, file: Path) -> None:
    """Put in what differs when a file is another or has changed."""
    try:
        stat = file.stat()
    except FileNotFoundError:  # reading it says so
        return
    stamp.update(f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino};".encode())


def find(path: Path, forms: Sequence[str] = FORMS) -> list[PlacedFile]:
    """The files of a data set, in the order of their names; ``forms``: ends of these. DataError if there are none, or
    of several kinds."""
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        return [PlacedFile(path)]
    files = sorted(file for file in _files(path) if file.suffix.lower() in forms)
    if not files:
        texts = sorted({file.suffix.lower() for file in _files(path)} & {*own_text.FORMS})
        hint = f"; its {texts[0]} files are texts with data.text, such as data.text.length=64" if texts else ""
        raise DataError(f"{path}: has no file of a known form ({', '.join(forms)}){hint}")
    kinds = {"images" if file.suffix.lower() in IMAGES else file.suffix.lower(): file for file in files}
    if len(kinds) > 1:
        first, other = list(kinds.values())[:2]
        raise DataError(f"{path}: has files of several forms, such as {first.name} and {other.name}; keep one")
    common = _common([file.relative_to(path).parts[:-1] for file in files])
    sources = [_of_image(file, path, common) if "images" in kinds else _of_table(file, path, common) for file in files]
    if "images" not in kinds:
        sources = _parts_in_names(sources)
    if len({source.client for source in sources if source.client}) == 1 == len(files):
        return [replace(sources[0], client="")]
    return sources


def _files(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """The files in a folder and those below it, but for hidden ones and what the Hub's library keeps beside them.

    Links to folders are followed, but for one to a folder that holds it.
    """
    own = folder.resolve()
    if own in above:
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SAVED:
            continue
        if entry.is_dir():
            yield from _files(entry, above | {own})
        elif not (entry.name.startswith("cache-") and entry.suffix.lower() == ".arrow"):
            yield entry


def _unread(path: Path) -> str:
    """The files of a folder that are of no known form, by the end of their names; '' without any."""
    if not path.is_dir():
        return ""
    ends = Counter(file.suffix.lower() or file.name for file in _files(path) if file.suffix.lower() not in FORMS)
    return _some([f"{count} {end}" for end, count in sorted(ends.items())])


def _common(folders: Sequence[Sequence[str]]) -> int:
    """How many folders all paths begin with; those that say a part are not among them."""
    count = 0
    for names in zip(*folders, strict=False):
        if len(set(names)) > 1 or names[0].lower() in PART_WORDS:
            break
        count += 1
    return count


def _without_part(names: Sequence[str]) -> tuple[str, list[str]]:
    """The part that one of these folders says, and the others."""
    place = next((place for place, name in enumerate(names) if name.lower() in PART_WORDS), None)
    if place is None:
        return "", list(names)
    return PART_WORDS[names[place].lower()], [*names[:place], *names[place + 1 :]]


def _of_image(file: Path, top: Path, common: int) -> PlacedFile:
    part, folders = _without_part(file.relative_to(top).parts[:-1])
    if not 1 <= len(folders) <= 2 + common:
        wanted = "images are in CLASS/ or CLIENT/CLASS/, perhaps in train/ and test/"
        raise DataError(f"{file}: {wanted}; this one is in {'/'.join(folders) or 'no folder'}")
    return PlacedFile(file, part, folders[-2] if len(folders) > 1 + common else "", folders[-1])


def _of_table(file: Path, top: Path, common: int) -> PlacedFile:
    part, folders = _without_part(file.relative_to(top).parts[common:-1])
    stem = _SHARD.sub("", file.stem)
    own = PART_WORDS.get(stem.lower(), "")
    named = not own and stem == file.stem and file.suffix.lower() != ".json"
    client = "/".join(folders) if folders else file.stem if named else ""
    return PlacedFile(file, part or own, client)


def _parts_in_names(sources: list[PlacedFile]) -> list[PlacedFile]:
    """Tables as they are, unless the names of all say parts, of which one is training: ann_train.csv, ann_test.csv."""
    matches = [_NAMED_PART.fullmatch(_SHARD.sub("", source.file.stem)) for source in sources]
    found = [(PART_WORDS[match["part"].lower()], match["rest"]) for match in matches if match]
    parts = {part for part, _ in found}
    is_said = any(source.part for source in sources)
    if len(found) < len(sources) or is_said or len(parts) < 2 or "train" not in parts:
        return sources
    several = len({rest for _, rest in found}) > 1
    placed = []
    for source, (part, rest) in zip(sources, found, strict=True):
        of_folder = source.client if source.client != source.file.stem else ""
        placed.append(replace(source, part=part, client=of_folder or (rest if several else "")))
    return placed


def read(path: Path, sources: Sequence[PlacedFile], reading: FileReading) -> Arrays:
    """The data set of these files; DataError naming file, line and column of what does not fit."""
    return _arrays(path, sources, reading, _whole(sources, reading))


def _whole(sources: Sequence[PlacedFile], reading: FileReading) -> Examples:
    if sources[0].file.suffix.lower() in IMAGES:
        return _images(sources, reading)
    return own_tables.joined([_placed(own_tables.read(source.file, reading), source) for source in sources])


def _series(path: Path, sources: Sequence[PlacedFile], series: SeriesReading) -> Arrays:
    """Windows of the series in these tables."""
    counts = own_series.Counts()
    devices = own_series.read_devices([(source.file, source.client) for source in sources], series, counts)
    train, test, names = own_series.windows(str(path), devices, series, counts)
    x, x_test = (split.x if series.kind == "series" else split.x.reshape(len(split.x), -1) for split in (train, test))
    owners, owners_test = (np.array(names)[split.ids] for split in (train, test))
    data = dataset(
        x, train.y, x_test, test.y, clients=owners, clients_test=owners_test, kind=series.kind, targets="numbers",
        name=_name(path), form=f"read from {path.name}",
    )  # fmt: skip
    overlap = -(-(series.window + series.horizon) // series.every) - 1
    targets = RealTargets(series.horizon, series.window, series.season or 0, overlap)
    row = replace(data.row, targets=targets, overlap=overlap, overlap_within="client")
    return replace(data, row=row, decoded=replace(data.decoded, notes=(*counts.notes(series), *data.notes)))


def _texts(path: Path, sources: Sequence[PlacedFile], reading: TextReading) -> Arrays:
    """Pieces of these texts."""
    found = own_text.read(sources, reading)
    several = len({*found.clients[0].tolist(), *found.clients[1].tolist()}) > 1
    owners = found.clients if several else (None, None)
    data = dataset(
        found.x[0], found.given[0], found.x[1], found.given[1], clients=owners[0], clients_test=owners[1],
        kind="tokens", targets="numbers", name=_name(path), form=f"read from {path.name}",
    )  # fmt: skip
    row = replace(data.row, targets=NEXT_TOKENS, vocabulary=found.vocabulary)
    return replace(data, row=row, decoded=replace(data.decoded, notes=(*found.notes, *data.notes)))


def _name(path: Path) -> str:
    return re.sub(r"[^\w-]", "-", path.stem)[:40] or "data"


def _arrays(path: Path, sources: Sequence[PlacedFile], reading: FileReading, whole: Examples) -> Arrays:
    is_real = reading.targets == "numbers"
    if is_real:
        labels, classes = own_tables.real_targets(whole.labels, path), None
    else:
        labels, classes = own_tables.labels(whole.labels, reading.classes or whole.classes or None)
    notes = list(_notes(path, sources, whole))
    found = [] if is_real else np.unique(whole.labels).astype(str).tolist()
    if len({isinstance(own_tables.label_value(text), str) for text in found}) > 1:
        notes.append(f"some labels are numbers and some are texts: {_some(found)}")
    is_test, note = _is_test(whole.parts)
    if note:
        notes.append(note)
    name = _name(path)
    about: dict[str, Any] = {
        "kind": reading.kind or whole.kind,
        "classes": classes,
        "targets": reading.targets,
        "missing": reading.missing,
        "name": name,
        "form": f"read from {path.name}",
    }
    if unread := _unread(path):
        notes.append(f"{path.name}: files that are not read: {unread}")
    x, clients = _shaped(whole.x, reading, notes), whole.clients
    try:
        if is_test is None:
            whose = "each client's examples" if clients is not None else "the examples of each class"
            notes.append(f"{reading.test:.3g} of {whose} are the test set (data.reading.test)")
            data = dataset(x, labels, clients=clients, test=reading.test, **about)
        else:
            own = [None if clients is None else clients[part] for part in (~is_test, is_test)]
            data = dataset(x[~is_test], labels[~is_test], x[is_test], labels[is_test],
                           clients=own[0], clients_test=own[1], **about)  # fmt: skip
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if reading.missing == "drop" and clients is not None:
        gone = len(np.unique(clients)) - len(np.unique(np.concatenate([data.train.ids, data.test.ids])))
        if gone:
            notes.append(f"{_count(gone, 'client')} without an example with all numbers left out")
    if data.row.kind == "tokens" and (reading.kind or whole.kind) is None:
        notes.append("rows of whole numbers are taken as tokens; data.reading.kind = features takes them as numbers")
    return replace(data, decoded=replace(data.decoded, notes=(*notes, *data.notes)))


def _placed(examples: Examples, source: PlacedFile) -> Examples:
    """Examples with what the path of their file says, where the file says nothing."""
    count = len(examples.labels)
    clients = examples.clients
    if clients is None and source.client:
        clients = np.full(count, source.client)
    parts = np.full(count, source.part) if source.part and examples.parts is None else examples.parts
    return replace(examples, clients=clients, parts=parts)


def _images(sources: Sequence[PlacedFile], reading: FileReading) -> Examples:
    for source in sources:
        if bool(source.client) != bool(sources[0].client):
            inner, outer = (source, sources[0]) if source.client else (sources[0], source)
            raise DataError(
                f"{inner.file}: is in a folder of a client and a class, {outer.file} in one of a class alone"
            )
        if not source.label:
            raise DataError(f"{source.file}: is a single image; give the folder whose folders are the classes")
    clients, parts = (np.array([getattr(source, key) for source in sources]) for key in ("client", "part"))
    return Examples(
        str(sources[0].file.parent),
        decoded([(str(source.file), source.file) for source in sources], reading.side),
        np.array([source.label for source in sources]),
        clients if clients.astype(bool).all() else None,
        parts if parts.astype(bool).any() else None,
        "image",
        "the folder of each class",
        "the folder of each client",
    )


def _is_test(parts: NDArray[Any] | None) -> tuple[NDArray[np.bool_] | None, str]:
    """Which examples are the test set's, None where no file is one; and what validation examples are."""
    if parts is None or set(np.unique(parts).tolist()) <= {"", "train"}:
        return None, ""
    if "test" in parts and "validation" in parts:
        note = "validation examples are among those of training; data.validation holds some of each client's out"
    else:
        note = "" if "test" in parts else "the validation examples are the test set"
    is_test: NDArray[np.bool_] = np.isin(parts, ["test"] if "test" in parts else ["validation"])
    return is_test, note


def _shaped(x: NDArray[Any], reading: FileReading, notes: list[str]) -> NDArray[Any]:
    """Examples of ``data.reading.shape``, which pixels from 0 to 1 need to be images."""
    shape = x.shape[1:] if reading.shape is None else reading.shape
    if np.prod(shape) != np.prod(x.shape[1:]):
        raise DataError(f"data.reading.shape = {list(shape)}: an example has {np.prod(x.shape[1:])} numbers")
    shaped = x.reshape(len(x), *shape)
    if reading.kind != "image" or shaped.dtype.kind != "f":
        return shaped
    factor = 255 if shaped.max(initial=0) <= 1 else 1
    pixels: NDArray[Any] = np.rint(shaped * factor)
    if (
        pixels.min(initial=0) < 0
        or pixels.max(initial=0) > 255
        or np.abs(pixels - shaped * factor).max(initial=0) > 0.1
    ):
        raise DataError("data.reading.kind = image: pixels are whole numbers from 0 to 255, or such numbers over 255")
    if factor > 1:
        notes.append("pixels from 0 to 1 are taken 255 times")
    return pixels.astype(np.uint8)


def _notes(path: Path, sources: Sequence[PlacedFile], whole: Examples) -> Iterator[str]:
    """What was understood."""
    files = f" in {len(sources)} files" if len(sources) > 1 else ""
    known = "" if whole.clients is None else f", {_count(len(np.unique(whole.clients)), 'client')} by {whole.by}"
    columns = f", features {_some(whole.columns)}" if whole.columns else ""
    yield f"{path.name}: {_count(len(whole.labels), 'example')}{files}, classes by {whole.by_label}{known}{columns}"
    if whole.unused:
        yield f"{path.name}: not used: {_some(whole.unused)}"
    yield from whole.notes


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", .. ({len(names)})" if len(names) > SHOWN else "")
