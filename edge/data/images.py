"""Hugging Face style Parquet: one row per example, with the encoded image, the class and perhaps the client's id.

The image is ``img`` or ``image``, a struct with ``bytes``; the class is ``label`` or ``fine_label``. Whatever does not
fit the set's row is refused with the file and the row's number, counted from 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from edge.data.sets import DataError, DataSet, Decoded, Split

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
BATCH_ROWS = 2000
FORMATS = ("PNG", "JPEG", "BMP", "GIF")
GREY_MODES = ("L", "1", "P")
COLOUR_MODES = ("RGB", "L", "1", "P", "CMYK", "YCbCr")
"""What loses nothing that a set's 8 bits per channel can hold: no transparency, no 16 bits, no colours made grey."""


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Decode both splits; DataError naming file and row if anything does not fit ``row``."""
    train, test = files
    form = ", ".join(sorted({_form(train), _form(test)}))
    return Decoded(read_split(row, train), read_split(row, test), form)


def read_split(row: DataSet, file: Path) -> Split:
    """Decode one file: x (examples, channels, height, width) uint8, y int64, ids as the file has them."""
    xs, ys, ids = [], [], []
    start = 0
    for table in _tables(file, row.id_column):
        encoded = _encoded(file, table)
        xs.append(np.stack([pixels(row, f"{file}, row {start + i}", image) for i, image in enumerate(encoded)]))
        ys.append(_labels(row, file, table, start))
        if row.id_column is not None:
            ids.append(_ids(file, table.column(row.id_column), start))
        start += len(table)
    if start == 0:
        raise DataError(f"{file}: no examples")
    return Split(np.concatenate(xs), np.concatenate(ys), np.concatenate(ids) if ids else None)


def _tables(file: Path, id_column: str | None) -> Iterator[pa.Table]:
    """The needed columns, some rows at a time, so that the encoded file is never held whole."""
    start = 0
    try:
        with pq.ParquetFile(file) as parquet:
            names = set(parquet.schema_arrow.names)
            columns = [_column(file, names, IMAGE_COLUMNS), _column(file, names, LABEL_COLUMNS)]
            if id_column is not None:
                columns.append(_column(file, names, (id_column,)))
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield pa.Table.from_batches([batch])
                start += len(batch)
    except DataError:
        raise
    except Exception as error:  # by where the damage is, Arrow's errors, or Python's of what Arrow made of it
        where = f"{file}, row {start} or after" if start else f"{file}"
        raise DataError(f"{where}: not a readable Parquet file: {error}") from error


def _column(file: Path, names: set[str], wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise DataError(f"{file}: no column {' or '.join(wanted)}; it has {', '.join(sorted(names))}")


def _encoded(file: Path, table: pa.Table) -> list[bytes | None]:
    name = _column(file, set(table.column_names), IMAGE_COLUMNS)
    kind = table.schema.field(name).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _is_bytes(kind.field("bytes").type)):
        raise DataError(f"{file}: column {name} must be a struct with binary `bytes`, not {kind}")
    encoded: list[bytes | None] = pc.struct_field(table.column(name), "bytes").to_pylist()
    return encoded


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def pixels(row: DataSet, where: str, encoded: bytes | None) -> NDArray[np.uint8]:
    """An encoded image as (channels, height, width); DataError, naming ``where`` it is, if it does not fit ``row``."""
    if not encoded:
        raise DataError(f"{where}: the image is empty")
    channels, height, width = row.stored
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # of sizes that are refused in any case
            image = Image.open(BytesIO(encoded), formats=FORMATS)  # reads no more than the size and the mode
        with image:
            unfit = _unfit(row, image)
            array = None if unfit else np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except Exception as error:  # damaged bytes raise every kind of error in Pillow's decoders
        raise DataError(f"{where}: not a readable image: {_plain(error)}") from error
    if array is None:
        raise DataError(f"{where}: the image is {unfit}")
    return array.reshape(height, width, channels).transpose(2, 0, 1)


def _unfit(row: DataSet, image: Image.Image) -> str:
    """What is wrong with an image that has not been decoded yet, '' if nothing is."""
    channels, height, width = row.stored
    if image.size != (width, height):
        return f"{image.size[0]}x{image.size[1]}, {row.name} has {width}x{height}"
    modes = GREY_MODES if channels == 1 else COLOUR_MODES
    if image.mode not in modes:
        return f"of mode {image.mode}, {row.name} takes {', '.join(modes)}"
    return ""


def _plain(error: Exception) -> str:
    """An error's text without the place in memory that Pillow adds to it."""
    return str(error).partition(" <_io.")[0] or type(error).__name__


def _labels(row: DataSet, file: Path, table: pa.Table, start: int) -> NDArray[np.int64]:
    name = _column(file, set(table.column_names), LABEL_COLUMNS)
    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise DataError(f"{file}: column {name} must hold integers, not {column.type}")
    _refuse_null(file, column, name, start)
    labels: NDArray[np.int64] = column.to_numpy()
    wrong = np.flatnonzero((labels < 0) | (labels >= row.classes))
    if wrong.size:
        first = int(wrong[0])
        raise DataError(f"{file}, row {start + first}: {name} is {labels[first]}, {row.name} has 0..{row.classes - 1}")
    return labels.astype(np.int64)


def _ids(file: Path, column: pa.ChunkedArray, start: int) -> NDArray[Any]:
    if not (pa.types.is_integer(column.type) or _is_text(column.type)):
        raise DataError(f"{file}: the column of clients' ids must hold integers or text, not {column.type}")
    _refuse_null(file, column, "the client's id", start)
    return np.array(column.to_pylist())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _refuse_null(file: Path, column: pa.ChunkedArray, name: str, start: int) -> None:
    if column.null_count:
        first = column.is_null().to_pylist().index(True)
        raise DataError(f"{file}, row {start + first}: {name} is missing")


def _form(file: Path) -> str:
    """How the first image of a file is encoded: a lossy copy of a set must say so."""
    for table in _tables(file, None):
        first = _encoded(file, table.slice(0, 1))[0]
        if first:
            return "JPEG images" if first.startswith(b"\xff\xd8") else "lossless images"
    return "no images"
