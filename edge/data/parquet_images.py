"""Hugging Face style Parquet: one row per example, with the encoded image, the class and perhaps the client's id.

The image is ``img`` or ``image``, a struct with ``bytes``; the class is ``label`` or ``fine_label``. An example that
does not fit the set's row is an error with the file and the row's number, counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edge.data.images import MOST_NBYTES, pixels
from edge.data.registry import DataError, DataSet, Decoded, Split
from edge.data.source_files import refuse_many

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
BATCH_ROWS = 2000
MOST_ID_NBYTES = 1000
FREE_NBYTES, MOST_TIMES = 16_000_000, 20
"""A column may unpack to so many bytes, or to so many times its bytes in the file: images hardly compress again"""


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Decode both splits; DataError naming file and row for an example that does not fit ``row``."""
    train, test = files
    form = ", ".join(sorted({_form(row, train), _form(row, test)}))
    return Decoded(read_split(row, train), read_split(row, test), form)


def read_split(row: DataSet, file: Path) -> Split:
    """Decode one file: x (examples, channels, height, width) uint8, y int64, ids as the file has them."""
    xs, ys, ids = [], [], []
    start = 0
    for table in _tables(row, file, row.id_column):
        xs.append(np.stack([pixels(row, where, image) for where, image in _encoded(file, table, start)]))
        ys.append(_labels(row, file, table, start))
        if row.id_column is not None:
            ids.append(_ids(file, table.column(row.id_column), start))
        start += len(table)
    if start == 0:
        raise DataError(f"{file}: no examples")
    return Split(np.concatenate(xs), np.concatenate(ys), np.concatenate(ids) if ids else None)


def _tables(row: DataSet, file: Path, id_column: str | None) -> Iterator[pa.Table]:
    """The needed columns, some rows at a time, so that the encoded file is never in memory as a whole.

    Images and ids are Arrow dictionaries: equal values of many rows take the memory of one.
    """
    start = 0
    try:
        with pq.ParquetFile(file) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
        columns = _columns(file, schema, id_column)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema in columns]
        _refuse_bomb(row, file, metadata.num_rows, chunks)
        # Values stored as differences from the row before cannot be read as a dictionary, but row by row.
        by_row = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
        shared = [] if by_row else [column for column in columns if column not in LABEL_COLUMNS]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=shared) as parquet:
            for group in range(metadata.num_row_groups):  # each has its own dictionaries
                for batch in parquet.iter_batches(1 if by_row else BATCH_ROWS, row_groups=[group], columns=columns):
                    yield pa.Table.from_batches([batch])
                    start += len(batch)
    except DataError:
        raise
    except Exception as error:  # damaged files raise every kind of error in Arrow and in Python
        where = f"{file}, row {start} or after" if start else f"{file}"
        raise DataError(f"{where}: not a readable Parquet file: {error}") from error


def _refuse_bomb(row: DataSet, file: Path, rows: int, chunks: Sequence[Any]) -> None:
    """DataError for data far larger than its file, by the file's metadata, before anything is unpacked."""
    file_nbytes = file.stat().st_size
    for chunk in chunks:
        packed, unpacked = min(chunk.total_compressed_size, file_nbytes), chunk.total_uncompressed_size
        if unpacked > max(FREE_NBYTES, MOST_TIMES * packed):
            raise DataError(
                f"{file}: column {chunk.path_in_schema} would unpack from {packed:,} to {unpacked:,} bytes; "
                f"the most is {MOST_TIMES} times as many"
            )
    refuse_many(file, rows, math.prod(row.stored))


def _columns(file: Path, schema: pa.Schema, id_column: str | None) -> list[str]:
    """The paths of the columns that are read; other fields of the image's struct, such as file names, are not."""
    types = pa.types
    image = _column(file, schema.names, IMAGE_COLUMNS)
    kind = schema.field(image).type
    field = kind.field("bytes").type if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else None
    if field is None or not (types.is_binary(field) or types.is_large_binary(field)):
        raise DataError(f"{file}: column {image} must be a struct with binary `bytes`, not {kind}")
    columns = [f"{image}.bytes", _column(file, schema.names, LABEL_COLUMNS)]
    if id_column is not None:
        columns.append(_column(file, schema.names, (id_column,)))
        kind = schema.field(id_column).type
        if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
            raise DataError(f"{file}: the column of clients' ids must hold integers or text, not {kind}")
    return columns


def _column(file: Path, names: Sequence[str], candidates: Sequence[str]) -> str:
    for name in candidates:
        if name in names:
            return name
    raise DataError(f"{file}: no column {' or '.join(candidates)}; it has {', '.join(sorted(names))}")


def _encoded(file: Path, table: pa.Table, start: int) -> Iterator[tuple[str, bytes | None]]:
    """(file and row, encoded image) one by one; DataError, before the first, for an image that is too long."""
    column = pc.struct_field(table.column(_column(file, table.column_names, IMAGE_COLUMNS)), "bytes")
    _refuse_long(file, column, start, "the image", MOST_NBYTES)
    for place, image in enumerate(column, start):
        yield f"{file}, row {place}", image.as_py()


def _refuse_long(file: Path, column: pa.ChunkedArray, start: int, name: str, most: int) -> None:
    """DataError for the first text or bytes of a column that is too long, before any becomes a Python object."""
    for chunk in column.chunks:
        shared = isinstance(chunk, pa.DictionaryArray)
        lengths = pc.binary_length(chunk.dictionary if shared else chunk)
        if (pc.max(lengths).as_py() or 0) > most:
            by_row = pc.fill_null(lengths.take(chunk.indices) if shared else lengths, 0).to_numpy()
            for place in np.flatnonzero(by_row > most)[:1].tolist():
                raise DataError(
                    f"{file}, row {start + place}: {name} is {by_row[place]:,} bytes long; the most is {most:,}"
                )
        start += len(chunk)


def _labels(row: DataSet, file: Path, table: pa.Table, start: int) -> NDArray[np.int64]:
    name = _column(file, table.column_names, LABEL_COLUMNS)
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
    _refuse_null(file, column, "the client's id", start)
    if not pa.types.is_integer(column.type):
        _refuse_long(file, column, start, "the client's id", MOST_ID_NBYTES)
    return np.array(column.to_pylist())


def _refuse_null(file: Path, column: pa.ChunkedArray, name: str, start: int) -> None:
    if column.null_count:
        first = column.is_null().to_pylist().index(True)
        raise DataError(f"{file}, row {start + first}: {name} is missing")


def _form(row: DataSet, file: Path) -> str:
    """The encoding of a file's first image, since a lossy copy of a set must be reported."""
    for table in _tables(row, file, None):
        first = next(_encoded(file, table, 0))[1]
        if first:
            return "JPEG images" if first.startswith(b"\xff\xd8") else "lossless images"
    return "no images"
