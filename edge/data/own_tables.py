"""One file of examples as a user has it: a table (CSV, Parquet, Arrow), arrays (npz), LEAF's users (JSON), or images.

A column of each name is wanted for the label, and may be there for client and part; ``data.reading`` names others. All
further columns are features, a single one may hold images, lists, or the names of image files beside the table. Every
DataError names the file, and the line or row and the column.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge.data.arrays import UNKNOWN
from edge.data.images import SUFFIXES, decoded
from edge.data.registry import DataError, ExampleKind
from edge.data.source_files import opened
from edge.protocol.config import FileReading
from edge.protocol.spelling import nearest

LABELS = ("label", "labels", "target", "targets", "class", "y", "label_id", "fine_label")
CLIENTS = ("client", "clients", "client_id")
SPLITS = ("split",)
PART_WORDS = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
}  # fmt: skip
"""What people call a part -> the part"""
DELIMITERS = "\t;,"
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*")

_PART = "|".join(sorted(PART_WORDS, key=len, reverse=True))
_ARRAY_OF_PART = re.compile(
    rf"(?P<before>{_PART})(?:_|(?=[xy]$))(?P<rest>.+)|(?P<name>.+)(?:_|(?<=^[xy]))(?P<behind>{_PART})", re.IGNORECASE
)
_COUNTED = re.compile(r"0|[1-9][0-9]{0,17}")
"""Whole numbers in the one way in which they are written, so that none stands for two clients"""
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Columns that a table's writer adds to number its rows, or without a name"""

BY_PATH = "file or folder"
"""What says the client of examples whose file does not"""

Column = NDArray[Any] | list[Any]
"""Numbers (examples, ..), or a list of texts or of encoded images"""


@dataclass(frozen=True)
class Examples:
    """Examples of one file, or of several."""

    where: str
    x: NDArray[Any]
    labels: NDArray[Any]
    """(examples,) integers, or texts"""
    clients: NDArray[Any] | None
    """(examples,) integers or texts"""
    parts: NDArray[Any] | None
    """(examples,) train, test, validation, or ''"""
    kind: ExampleKind | None = None
    """None: as `edge.data.arrays.dataset` finds"""
    by_label: str = ""
    by: str = BY_PATH
    """What says the client"""
    columns: tuple[str, ...] = ()
    """Names of features"""
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Names of the classes 0, 1, .., if the file has any; ``labels`` are then among them"""
    images: tuple[Path, ...] = ()
    """Files of images that a table names"""


@dataclass(frozen=True)
class ColumnTable:
    """The columns of a file by name; ``lines``: of each example, None where rows are counted from 0."""

    file: Path
    columns: Mapping[str, Column]
    lines: Sequence[int] | None = None
    names: Mapping[str, Sequence[str]] | None = None
    """Column -> the labels of its classes"""

    def at(self, place: int) -> str:
        return f"{self.file}, " + (f"row {place}" if self.lines is None else f"line {self.lines[place]}")


def read(file: Path, reading: FileReading) -> Examples:
    """The examples of a file, by the form that its name says."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file}: is of no known form; {nearest(file.suffix, READERS)}")
    found = reader(file)
    return found if isinstance(found, Examples) else _of_table(found, reading)


def column_table(file: Path) -> ColumnTable:
    """The columns of a table; DataError for a file of another form."""
    reader = READERS.get(file.suffix.lower())
    found = None if reader is None else reader(file)
    if not isinstance(found, ColumnTable):
        raise DataError(f"{file}: is no table with columns; give CSV, Parquet or Arrow")
    return found


# --- forms ------------------------------------------------------------------------------------------------------------


def _csv(file: Path) -> ColumnTable:
    """A text table with a header, separated by the most frequent of tab, semicolon and comma in its first line."""
    with opened(file) as handle:
        raw = handle.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{file}, line {line}: is no text in UTF-8; save it so") from None
    first = text.lstrip().partition("\n")[0]
    delimiter = max(reversed(DELIMITERS), key=first.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header: list[str] = []
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = [name.strip() for name in row]
                continue
            if len(row) != len(header):
                raise DataError(f"{file}, line {rows.line_num}: has {len(row)} cells, the header {len(header)}")
            cells.append(row)
            lines.append(rows.line_num)
    except csv.Error as error:
        raise DataError(f"{file}, line {rows.line_num}: {error}") from None
    if not cells:
        raise DataError(f"{file}: has no examples below a header")
    if all(_number(name, delimiter) is not None for name in header):
        raise DataError(f"{file}, line 1: has numbers alone; a header that names the columns is wanted")
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f"{file}, line 1: column {twice!r} is there twice")
    if delimiter != "," and any(_DECIMAL_COMMA.fullmatch(cell) for row in cells for cell in row):
        cells = [[cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in row] for row in cells]
    return ColumnTable(file, {name: [row[place].strip() for row in cells] for place, name in enumerate(header)}, lines)


def _number(text: str, delimiter: str) -> float | None:
    try:
        return _float(text.replace(",", ".") if delimiter != "," else text)
    except ValueError:
        return None


def _float(cell: Any) -> float:
    """A number; ValueError for others, among them 1_000, which is one in Python alone."""
    if isinstance(cell, str) and "_" in cell:
        raise ValueError(cell)
    return float(cell)


def _arrow(file: Path) -> ColumnTable:
    """A Parquet file, or an Arrow file or stream, as ``save_to_disk`` of Hugging Face writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(file):
        pass  # it is a file, and no larger than it may be
    try:
        if file.suffix.lower() == ".parquet":
            table = pq.ParquetFile(file).read()
        else:
            with pa.memory_map(str(file)) as source:
                try:
                    table = pa.ipc.open_stream(source).read_all()
                except pa.ArrowInvalid:
                    table = pa.ipc.open_file(source).read_all()
        columns = {name: _of_arrow(file, name, table.column(name)) for name in table.column_names}
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = about.get("info", {}).get("features", {}).items()
    except DataError:
        raise
    except Exception as error:  # damaged files raise every kind of error in Arrow
        raise DataError(f"{file}: cannot be read: {error}") from None
    if not len(table):
        raise DataError(f"{file}: has no examples")
    names: dict[str, Sequence[str]] = {}
    for name, feature in features:
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            names[name] = [str(each) for each in feature["names"]]
    return ColumnTable(file, columns, names=names)


def _of_arrow(file: Path, name: str, column: Any) -> Column:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        numbers: NDArray[Any] = column.to_numpy()
        return numbers.astype(np.int64) if pa.types.is_boolean(kind) and not column.null_count else numbers
    values: list[Any] = column.to_pylist()
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return [None if value is None else value["bytes"] for value in values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _stacked(f"{file}, column {name}", values)
    return ["" if value is None else value if isinstance(value, bytes) else str(value) for value in values]


def _stacked(where: str, values: Sequence[Any]) -> NDArray[Any]:
    """Lists of the same shape as one array of numbers."""
    rows: list[NDArray[Any]] = []
    for place, value in enumerate(values):
        try:
            row = np.asarray(value)
        except ValueError:
            row = np.empty(0, object)
        if row.dtype.kind not in "biuf" or (rows and row.shape != rows[0].shape):
            first = f", the first of shape {rows[0].shape}" if rows else ""
            found = f"example {place} is of {row.dtype} and shape {row.shape}{first}"
            raise DataError(f"{where}: {found}; lists are of numbers, each as long as the others")
        rows.append(row)
    return np.stack(rows)


def _npz(file: Path) -> ColumnTable:
    """Arrays ``x`` and ``y``, perhaps ``x_test``, ``y_test`` and the ``clients`` of both."""
    try:
        with opened(file) as source:
            if not zipfile.is_zipfile(source):
                raise DataError(f"{file}: is no archive of arrays; numpy.savez makes one")
            source.seek(0)
            with np.load(source, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except Exception as error:  # damaged files raise every kind of error in zipfile, zlib and numpy
        objects = (
            "holds Python objects; save x and y as arrays" if "pickle" in str(error) else f"cannot be read: {error}"
        )
        raise DataError(f"{file}: {objects}") from None
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        part, rest = _part_of(name)
        parts.setdefault(part, {})[rest] = array
    if set(parts) <= {""}:
        _check_lengths(file, arrays)
        return ColumnTable(file, arrays)
    if unmarked := parts.pop("", {}):  # x and x_test
        parts = {"train": {**unmarked, **parts.pop("train", {})}, **parts}
    first, known = next(iter(parts.items()))
    for part, own in parts.items():
        _check_lengths(file, own)
        for name in sorted(own.keys() ^ known.keys()):
            lacks, has = (part, first) if name in known else (first, part)
            raise DataError(f"{file}: has the array {name} of the {has} part, but none of the {lacks} part")
        for name, array in own.items():
            if array.shape[1:] != known[name].shape[1:]:
                shapes = f"{array.shape[1:]} in the {part} part, of {known[name].shape[1:]} in the {first} part"
                raise DataError(f"{file}: {name} has examples of shape {shapes}")
    columns = {name: np.concatenate([own[name] for own in parts.values()]) for name in known}
    counts = [len(next(iter(own.values()))) for own in parts.values()]
    return ColumnTable(file, columns | {"split": np.repeat(list(parts), counts).tolist()})


def _part_of(name: str) -> tuple[str, str]:
    """The part that the name of an array says, as x_train, test_images and trainX do, and the name without it."""
    match = _ARRAY_OF_PART.fullmatch(name)
    if match is None or (part := PART_WORDS.get((match["before"] or match["behind"]).lower())) is None:
        return "", name
    return part, match["rest"] or match["name"]


def _check_lengths(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values():
        raise DataError(f"{file}: has arrays of shapes {shapes}; each has a row for each example")
    if 0 in {shape[0] for shape in shapes.values()}:
        raise DataError(f"{file}: has no examples")


def _leaf(file: Path) -> Examples:
    """LEAF: ``users``, and ``user_data`` of each with ``x`` and ``y``; texts as x are tokens by character.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """
    try:
        with opened(file) as source:
            found = json.load(source)
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: is no JSON: {error}") from None
    data = found.get("user_data") if isinstance(found, dict) else None
    listed = found.get("users", list(data)) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(listed, list):
        raise DataError(f'{file}: is not of LEAF, {{"users": [..], "user_data": {{USER: {{"x": [..], "y": [..]}}}}}}')
    listed = dict.fromkeys(map(str, listed))
    for user in listed:
        if user not in data:
            raise DataError(f"{file}, user {user}: is among users, but not in user_data")
    users = {}
    for user, own in data.items():
        if user not in listed:
            raise DataError(f"{file}, user {user}: is in user_data, but not among users")
        x, y = (own.get(name) for name in "xy") if isinstance(own, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list):
            raise DataError(f"{file}, user {user}: has no lists x and y")
        if len(x) != len(y):
            raise DataError(f"{file}, user {user}: has {len(x)} examples in x and {len(y)} labels in y")
        if (place := next((place for place, each in enumerate(y) if each is None or each != each), None)) is not None:
            raise DataError(f"{file}, user {user}: the label of example {place} is missing")
        users[user] = x, y
    xs = [each for x, _ in users.values() for each in x]
    ys = [each for _, y in users.values() for each in y]
    who = [user for user, (x, _) in users.items() for _ in x]
    if not xs:
        raise DataError(f"{file}: has no examples")
    notes: tuple[str, ...] = ()
    kind: ExampleKind | None = None
    if isinstance(xs[0], str):
        x, kind = _characters(file, xs), "tokens"
        notes = ("texts are tokens: the code of each character, 0 behind the end",)
    else:
        x = _stacked(f"{file}, x", xs)
        kind = "features" if x.ndim == 2 else None
    labels = np.array([str(each) for each in ys]) if isinstance(ys[0], str) else _stacked(f"{file}, y", ys)
    return Examples(str(file), x, labels, np.array(who), None, kind, "y", "users", notes=notes)


def _characters(file: Path, texts: Sequence[Any]) -> NDArray[np.int64]:
    """(texts, longest) the code of each character, at most 127 others as 127; 0 behind the end of shorter texts."""
    length = max(map(len, texts))
    tokens = np.zeros((len(texts), length), np.int64)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{file}, x: example {place} is no text, as the first is")
        tokens[place, : len(text)] = np.minimum(
            np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32), 127
        )
    return tokens


READERS: Mapping[str, Callable[[Path], ColumnTable | Examples]] = {
    ".csv": _csv, ".tsv": _csv, ".parquet": _arrow, ".arrow": _arrow, ".npz": _npz, ".json": _leaf,
}  # fmt: skip


# --- columns ----------------------------------------------------------------------------------------------------------


def _of_table(table: ColumnTable, reading: FileReading) -> Examples:
    """The examples of a table, whose columns are known by name."""
    label = _column(table, "label", reading.label, LABELS)
    assert label is not None
    client = _column(table, "client", reading.client, CLIENTS)
    split = _column(table, "split", reading.split, SPLITS)
    taken = {label, client, split}
    unnamed = [name for name in table.columns if name not in taken and _INDEX.fullmatch(name)]
    others = [name for name in table.columns if name not in taken and name not in unnamed]
    for name in reading.features or ():
        if name not in table.columns:
            raise DataError(f"{table.file}: data.reading.features: has no column {name!r}; {nearest(name, others)}")
    features = list(reading.features or others)
    whole = [name for name in features if not _is_flat(table, name)]
    kind: ExampleKind | None = None
    images: list[Path] = []
    if whole:
        if len(whole) > 1:
            raise DataError(f"{table.file}: columns {', '.join(whole)} hold examples each; say data.reading.features")
        images = _image_files(table, whole[0])
        x, kind = _whole(table, whole[0], images, reading)
        unused = [name for name in others if name != whole[0]]
        features = []
    elif not features:
        raise DataError(f"{table.file}: has no column of features beside {', '.join(filter(None, taken))}")
    else:
        x, kind = np.stack([_numbers(table, name, reading) for name in features], axis=1), "features"
        unused = [name for name in others if name not in features]
    unused += [name or "a column without a name" for name in unnamed if name not in features]
    alike = "" if reading.features else ", ".join(name for name in features if name.lower() in LABELS)
    notes = (f"{alike} is among the features; data.reading.label names another label",) if alike else ()
    return Examples(
        str(table.file),
        x,
        _labels(table, label),
        None if client is None else _texts(table, client),
        None if split is None else _parts(table, split),
        kind,
        f"column {label}",
        f"column {client}" if client else BY_PATH,
        tuple(features),
        tuple(unused),
        notes,
        classes=tuple((table.names or {}).get(label, ())),
        images=tuple(images),
    )


def _column(
    table: ColumnTable, role: Literal["label", "client", "split"], named: str | None, known: Sequence[str]
) -> str | None:
    """The column that ``data.reading`` names for something, or that has one of the known names."""
    if named is not None:
        if named not in table.columns:
            columns = nearest(named, table.columns)
            raise DataError(f"{table.file}: data.reading.{role}: has no column {named!r}; {columns}")
        return named
    found = next((name for known_name in known for name in table.columns if name.lower() == known_name), None)
    if found is None and role == "label":
        columns = ", ".join(table.columns)
        raise DataError(f"{table.file}: which column is the {role}? Say data.reading.{role}; it has {columns}")
    return found


def _is_flat(table: ColumnTable, name: str) -> bool:
    """Whether a column has one number of each example."""
    column = table.columns[name]
    if isinstance(column, np.ndarray):
        return column.ndim == 1
    first = _first(column)
    is_name = isinstance(first, str) and first.lower().endswith(SUFFIXES)
    return not (isinstance(first, bytes) or is_name)


def _first(column: Sequence[Any]) -> Any:
    """The first value that is there."""
    return next((value for value in column if value not in ("", None)), None)


def _image_files(table: ColumnTable, name: str) -> list[Path]:
    """The files that a column names; empty if it holds the examples themselves."""
    column = table.columns[name]
    files: list[Path] = []
    if isinstance(column, np.ndarray) or isinstance(_first(column), bytes):
        return files
    for place, value in enumerate(column):
        if not value:
            raise DataError(f"{table.at(place)}, column {name}: the image is missing")
        file = table.file.parent / value
        if not file.is_file():
            raise DataError(f"{table.at(place)}, column {name}: no such file: {file}")
        files.append(file)
    return files


def _whole(
    table: ColumnTable, name: str, images: Sequence[Path], reading: FileReading
) -> tuple[NDArray[Any], ExampleKind | None]:
    """The column whose each value is an example."""
    column = table.columns[name]
    if isinstance(column, np.ndarray):
        return column, None
    if isinstance(_first(column), bytes):
        for place, value in enumerate(column):
            if not value:
                raise DataError(f"{table.at(place)}, column {name}: the image is missing")
        encoded = [(f"{table.at(place)}, column {name}", io.BytesIO(value)) for place, value in enumerate(column)]
        return decoded(encoded, reading.side), "image"
    return decoded([(str(file), file) for file in images], reading.side), "image"


def _numbers(table: ColumnTable, name: str, reading: FileReading) -> NDArray[np.float64]:
    """A column of numbers, NaN where one is missing and may be."""
    column = table.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
    else:
        numbers = np.empty(len(column))
        for place, cell in enumerate(column):
            try:
                numbers[place] = np.nan if str(cell).lower() in UNKNOWN else _float(cell)
            except ValueError:
                others = "data.reading.features names the columns that are numbers"
                raise DataError(
                    f"{table.at(place)}, column {name}: {str(cell)[:40]!r} is no number; {others}"
                ) from None
    if reading.missing == "refuse" and not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        rule = "data.reading.missing = drop leaves such examples out, mean fills in that of the client"
        raise DataError(f"{table.at(place)}, column {name}: {str(column[place])!r} is no number; {rule}")
    return numbers


def _labels(table: ColumnTable, name: str) -> NDArray[Any]:
    """Integers, or texts; those of a column whose classes have names are these."""
    column = table.columns[name]
    is_text = not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf"
    names = (table.names or {}).get(name)
    cells = _cells(table, name)
    for place, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and cell.lower() in UNKNOWN) or cell != cell:
            raise DataError(f"{table.at(place)}, column {name}: the label is missing")
        if names is not None and not (isinstance(cell, int) and 0 <= cell < len(names)):
            raise DataError(f"{table.at(place)}, column {name}: {cell!r} is no class of 0 .. {len(names) - 1}")
    if names is not None:
        return np.array([names[cell] for cell in cells])
    return np.array([str(cell) for cell in cells]) if is_text else np.ravel(column)


def _texts(table: ColumnTable, name: str) -> NDArray[Any]:
    """The client of each example."""
    cells = _cells(table, name)
    for place, cell in enumerate(cells):
        if cell in ("", None) or cell != cell:
            raise DataError(f"{table.at(place)}, column {name}: the client is missing")
    texts = [str(cell) for cell in cells]
    return np.array(list(map(int, texts))) if all(map(_COUNTED.fullmatch, texts)) else np.array(texts)


def _cells(table: ColumnTable, name: str) -> list[Any]:
    """The one value of each example in a column of labels or clients; DataError where there are several."""
    column = table.columns[name]
    if not isinstance(column, np.ndarray):
        return [cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell for cell in column]
    if column.size != len(column):
        one_hot = "; numpy.argmax(y, axis=1) makes classes of rows with a single 1"
        raise DataError(f"{table.file}, column {name}: has {column.shape[1:]} values of each example, not one{one_hot}")
    cells: list[Any] = column.reshape(-1).tolist()
    return [cell.decode(errors="backslashreplace") for cell in cells] if column.dtype.kind == "S" else cells


def _parts(table: ColumnTable, name: str) -> NDArray[Any]:
    cells = [str(cell).lower() for cell in table.columns[name]]
    for place, cell in enumerate(cells):
        if cell not in PART_WORDS:
            raise DataError(f"{table.at(place)}, column {name}: {cell!r} is no part; {nearest(cell, PART_WORDS)}")
    return np.array([PART_WORDS[cell] for cell in cells])


# --- several files ----------------------------------------------------------------------------------------------------


def joined(each: Sequence[Examples]) -> Examples:
    """The examples of several files as one; DataError naming two that do not fit."""
    first = each[0]
    for other in each[1:]:
        if other.columns != first.columns:
            raise DataError(
                f"{other.where}: has the columns {', '.join(other.columns)}; {first.where} has "
                f"{', '.join(first.columns)}"
            )
        if other.x.shape[1:] != first.x.shape[1:] and first.kind != "tokens":
            raise DataError(
                f"{other.where}: has examples of shape {other.x.shape[1:]}, {first.where} of {first.x.shape[1:]}"
            )
        for what in ("clients", "parts"):
            if (getattr(other, what) is None) != (getattr(first, what) is None):
                has, lacks = (first, other) if getattr(other, what) is None else (other, first)
                raise DataError(f"{lacks.where}: does not say the {what[:-1]} of its examples; {has.where} does")
    if len(each) == 1:
        return first
    length = max(one.x.shape[1] for one in each)
    xs = [np.pad(one.x, ((0, 0), (0, length - one.x.shape[1]))) if first.kind == "tokens" else one.x for one in each]

    def all_of(what: str) -> NDArray[Any] | None:
        arrays = [getattr(one, what) for one in each]
        if arrays[0] is None:
            return None
        if len({array.dtype.kind == "U" for array in arrays}) > 1:  # of texts and numbers
            arrays = [np.array([str(value) for value in array.tolist()]) for array in arrays]
        return np.concatenate(arrays)

    labels = all_of("labels")
    assert labels is not None
    notes = tuple(dict.fromkeys(note for one in each for note in one.notes))
    return Examples(
        first.where, np.concatenate(xs), labels, all_of("clients"), all_of("parts"), first.kind, first.by_label,
        first.by, first.columns, first.unused, notes, first.classes,
        tuple(image for one in each for image in one.images),
    )  # fmt: skip


def labels(given: NDArray[Any], classes: Any) -> tuple[NDArray[Any], Any]:
    """Labels and classes as `edge.data.arrays.dataset` takes them: integers from 0 on as they are, others as texts.

    Other numbers are classes in their own order.
    """
    texts = [str(cell) for cell in given]
    cells = [label_value(text) for text in texts]
    if classes is not None and not isinstance(classes, int):
        known = set(map(str, classes))
        texts = [text if text in known else str(cell) for text, cell in zip(texts, cells, strict=True)]
        return np.array(texts), classes
    names: list[str] | None = None
    numbers = [cell for cell in cells if not isinstance(cell, str) and cell == cell]
    if len(numbers) == len(cells):
        whole = [number for number in numbers if isinstance(number, int)]
        is_counted = 0 in whole or (classes is not None and max(whole, default=0) < classes)
        if len(whole) == len(cells) and min(whole) >= 0 and is_counted:
            return np.array(whole, np.int64), classes
        names, texts = [str(number) for number in sorted(set(numbers))], list(map(str, numbers))
    if classes is not None and classes != len(set(texts)):
        raise DataError(f"data.reading.classes = {classes}: there are {len(set(texts))} labels, which are not 0, 1, ..")
    return np.array(texts), names


def real_targets(given: NDArray[Any], path: Path) -> NDArray[np.float64]:
    """Labels as real numbers; DataError that names the first example without one."""
    numbers = np.empty(len(given))
    for place, cell in enumerate(given.tolist()):
        value = label_value(str(cell))
        if isinstance(value, str) or not math.isfinite(value):
            where = f"{path}: example {place + 1}: its target is {cell!r}, no number"
            raise DataError(f"{where}; leave it out, or say data.reading.targets = class")
        numbers[place] = value
    return numbers


def label_value(text: str) -> int | float | str:
    """A label as the number that it is, a whole one if it can be, or the text."""
    if text.lstrip("+-").isdecimal() and text.isascii():
        return int(text)
    try:
        number = _float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
