"""The roles of plays, each a client: the next character from the 80 before it.

S. Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097, after H. B. McMahan
et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

``shakespeare.parquet`` has a row for each role of each play: ``play``, ``role`` and ``text``, all speeches of the role
in the order of the play. The first 80 % of a role's characters are its training part, the others its test part. Every
character of a part but the first is an example: its class is the character, and its tokens are those of the characters
before it in the same part, 80 or fewer, padded at the end. LEAF leaves out the characters that have fewer before them;
no example of the test has a character of the training part.

``shakespeare-text`` has the same parts in pieces of 80 characters (`edge.data.pieces`), each a token behind the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.pieces import pieces
from edge.data.registry import DataError, DataSet, Decoded, Split

LETTERS = f"\n !\"&'(),-./{digits}:;?@{ascii_uppercase}]_{ascii_lowercase}{{"
"""Class of a character: its place here. Its token is one more, because 0 is padding. All 81 of the Gutenberg texts."""
TRAIN_FRACTION = 0.8
LEAST = 10
"""Characters of the shortest role, of which two are tested"""
MOST_NBYTES = 16 << 20
"""Limit of all texts together, of which each character makes an example of 80 tokens; the 580 roles of 34 plays have
4 MB"""
BATCH_ROWS = 256
COLUMNS = ("play", "role", "text")


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, role by role in the order of plays and roles; DataError for a file of other columns or letters."""
    (length,) = row.shape
    splits: dict[str, list[Split]] = {"train": [], "test": []}
    for client, ((play, role), text) in enumerate(sorted(_texts(files[0]).items())):
        tokens = encoded(text, f"{files[0]}: {role} of {play}")
        first = int(TRAIN_FRACTION * len(tokens))
        for name, part in (("train", tokens[:first]), ("test", tokens[first:])):
            x, y = pieces(part.astype(np.int32), length) if row.targets.continues else windows(part, length)
            splits[name].append(Split(x.astype(np.uint8), y, np.full(len(y), client)))
    train, test = (
        Split(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("x", "y", "ids")))
        for parts in splits.values()
    )
    return Decoded(train, test, "")


def encoded(text: str, place: str) -> NDArray[np.uint8]:
    """(characters,) tokens 1 .. 81; DataError, naming ``place``, for a text that is too short or has other letters."""
    if len(text) < LEAST:
        raise DataError(f"{place}: has {len(text)} characters, fewer than {LEAST}")
    others = sorted(set(text) - set(LETTERS))
    if others:
        raise DataError(f"{place}: has {others[0]!r}, which is none of the {len(LETTERS)} characters of the set")
    tokens = np.zeros(128, np.uint8)  # all letters are ASCII
    tokens[np.frombuffer(LETTERS.encode("ascii"), np.uint8)] = np.arange(1, len(LETTERS) + 1)
    return tokens[np.frombuffer(text.encode("ascii"), np.uint8)]


def windows(tokens: NDArray[np.uint8], length: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(characters - 1, length) tokens before each character but the first, 0 where there are none, and its class."""
    x = np.zeros((len(tokens) - 1, length), np.uint8)
    for count in range(1, min(length, len(tokens))):
        x[count - 1, :count] = tokens[:count]
    if len(tokens) > length:
        x[length - 1 :] = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)
    return x, tokens[1:].astype(np.int64) - 1


def _texts(file: Path) -> dict[tuple[str, str], str]:
    """(play, role) -> text; DataError for a file that is damaged or has other columns, or a role twice."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            missing = [name for name in COLUMNS if name not in parquet.schema_arrow.names]
            groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            nbytes = sum(group.total_byte_size for group in groups)
            if missing or nbytes > MOST_NBYTES:
                too_long = f"unpacks to {nbytes:,} bytes; the most is {MOST_NBYTES:,}"
                raise DataError(f"{file}: {f'no column {missing[0]}' if missing else too_long}")
        chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
        # A text of many rows takes its bytes once in a dictionary, or as no difference from the row before.
        by_row = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
        columns: list[list[Any]] = [[] for _ in COLUMNS]
        nbytes = 0
        with pq.ParquetFile(file, read_dictionary=[] if by_row else list(COLUMNS)) as parquet:
            for batch in parquet.iter_batches(1 if by_row else BATCH_ROWS, columns=list(COLUMNS)):
                for place, name in enumerate(COLUMNS):
                    nbytes += _nbytes(batch.column(name))
                    if nbytes > MOST_NBYTES:
                        raise DataError(f"{file}: its texts are longer than {MOST_NBYTES:,} bytes")
                    columns[place] += batch.column(name).to_pylist()
    except DataError:
        raise
    except Exception as error:  # damaged files raise every kind of error in Arrow and in Python
        raise DataError(f"{file}: not a readable Parquet file: {error}") from error
    texts: dict[tuple[str, str], str] = {}
    for number, (play, role, text) in enumerate(zip(*columns, strict=True)):
        if not all(isinstance(value, str) for value in (play, role, text)):
            raise DataError(f"{file}, row {number}: {', '.join(COLUMNS)} must be text")
        if (play, role) in texts:
            raise DataError(f"{file}, row {number}: {role} of {play} is there twice")
        texts[play, role] = text
    if not texts:
        raise DataError(f"{file}: there are no roles")
    return texts


def _nbytes(column: Any) -> int:
    """The bytes of a column's values, each as often as it is there; 0 for values that are no text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shared = isinstance(column, pa.DictionaryArray)
    values = column.dictionary if shared else column
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return 0
    lengths = pc.binary_length(values)
    return int(pc.sum(lengths.take(column.indices) if shared else lengths).as_py() or 0)
