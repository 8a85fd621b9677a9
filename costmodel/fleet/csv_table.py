"""CSV files with a header, cell by cell: every error names file, line and column. Knows no column's meaning."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from costmodel.arrays import Doubles
from costmodel.units import Parser, parser_of

LARGEST = 1e18
"""More of any unit than any trace needs"""
LARGEST_NBYTES = 64_000_000
"""Limit of a file; the largest known trace has 265 kB, and three figures for each of a million clients need half."""
MOST_CELLS = 10_000_000
"""Limit of a file, since an empty cell takes a byte of the file and a hundred bytes of memory."""
WITH_UNIT = re.compile(r"[-+]?[.\d].*[^\W\d_].*")
"""A text that begins like a number and has letters"""


@dataclass(frozen=True)
class CsvTable:
    """The cells of a file below its header."""

    path: Path
    column: Mapping[str, int]
    """Place of each column"""
    lines: Sequence[int]
    """Line of the file on which each row ends"""
    rows: Sequence[Sequence[str]]
    headings: Mapping[str, str] = field(default_factory=dict)
    """Column -> its name in the file, where that is another one"""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Column -> factor on its numbers, where the file has another unit"""
    has_decimal_commas: bool = False
    """Whether 2,5 is a number: cells are parted by semicolons or tabs then"""

    def error(self, row: int, column: str, reason: str) -> ValueError:
        """The error for one cell, naming file, line and column."""
        heading = self.headings.get(column, column)
        return ValueError(f"{self.path}, line {self.lines[row]}, column {heading}: {reason}")

    def texts(self, column: str) -> list[str]:
        """A column of labels; ValueError for an empty one."""
        texts = self.labels(column)
        for row, text in enumerate(texts):
            if not text:
                raise self.error(row, column, "the cell is empty")
        return texts

    def labels(self, column: str) -> list[str]:
        """A column of labels that may be empty."""
        place = self.column[column]
        return [cells[place].strip() for cells in self.rows]

    def distinct(self, column: str) -> list[str]:
        """A column of labels; ValueError for one that occurs twice."""
        labels, seen = self.texts(column), set[str]()
        for row, label in enumerate(labels):
            if label in seen:
                raise self.error(row, column, f"{label!r} is in an earlier row already")
            seen.add(label)
        return labels

    def numbers(self, column: str, *, positive: bool = False) -> Doubles:
        """(rows,) A column of finite numbers >= 0, or > 0; ValueError for the first that is not.

        A cell may have a unit of its own, such as 5 Mbit/s, where the column's name ends with an SI unit.
        """
        factor = self.factors.get(column, 1.0)
        numbers = [self.number(row, column, text, positive, factor) for row, text in enumerate(self.texts(column))]
        return np.array(numbers, np.float64)

    def number(
        self, row: int, column: str, text: str, positive: bool, factor: float = 1.0, parse: Parser | None = None
    ) -> float:
        """The number in one cell, as of `numbers`; ``factor``: on a number without a unit; ``parse``: reads texts with
        units, by default as the column's name says."""
        plain = text.replace(",", ".") if self.has_decimal_commas else text
        try:
            value = float(plain)
        except ValueError:
            parse = parse or parser_of(column)
            if parse is None or not WITH_UNIT.fullmatch(text):
                raise self.error(row, column, f"{text!r} is not a number") from None
            try:
                value, factor = parse(plain), 1.0
            except ValueError as error:
                raise self.error(row, column, str(error)) from None
        if not math.isfinite(value):
            raise self.error(row, column, f"{text} is not a finite number")
        if value < 0:
            raise self.error(row, column, f"{text} is negative")
        if value > LARGEST or 0 < value < 1 / LARGEST:
            raise self.error(row, column, f"{text} is out of range: {1 / LARGEST:g} to {LARGEST:g}")
        if positive and value == 0:
            raise self.error(row, column, "it must be more than 0")
        return value * factor


def parse_table(path: Path, raw: bytes) -> CsvTable:
    """The cells of a file's content; ValueError if it is no table with a header and rows of the header's length.

    Cells are parted by commas, or by semicolons or tabs where the header has no comma; numbers may have decimal commas
    then.
    """
    head = raw.split(b"\n", 1)[0]
    parting = next((each for each in ",;\t" if each.encode() in head), ",")
    text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True, delimiter=parting)
    lines, rows, count = [], [], 0
    try:
        for cells in reader:
            count += len(cells)
            if count > MOST_CELLS:
                raise ValueError(f"{path}, line {reader.line_num}: more than {MOST_CELLS:,} cells")
            if any(cell.strip() for cell in cells):  # spreadsheets write commas alone for empty rows
                lines.append(reader.line_num)
                rows.append(cells)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    except UnicodeDecodeError:  # raised for a buffer, so its position is not that in the file
        raise ValueError(f"{path}, line {_line_of_bad_text(raw)}: not UTF-8 text") from None
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    header = [name.strip() for name in rows[0]]
    seen = set[str]()
    for name in header:
        if name in seen:
            raise ValueError(f"{path}, line {lines[0]}: column {name!r} occurs twice")
        seen.add(name)
    for line, cells in zip(lines, rows, strict=True):
        if len(cells) != len(header):
            raise ValueError(f"{path}, line {line}: {len(cells)} cells below a header of {len(header)}")
    if len(rows) == 1:
        raise ValueError(f"{path}: there are no rows below the header")
    columns = {name: place for place, name in enumerate(header)}
    return CsvTable(path, columns, lines[1:], rows[1:], has_decimal_commas=parting != ",")


def _line_of_bad_text(raw: bytes) -> int:
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return raw[: error.start].count(10) + 1
    raise AssertionError("the file is UTF-8")
