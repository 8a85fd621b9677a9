"""Tables of values, and their texts: each column has one unit and one precision, and its best value is marked.

A medium has one renderer: Markdown, LaTeX and CSV are here, the terminal is in `terminal`, and pages have the macro
``shown`` of the template ``parts.html.j2``.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scenarios.report.columns import MISSING, Column, Quantity, widths
from scenarios.report.readings import Better, Reading
from scenarios.run.progress import Mean

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},  # which text fonts may lack
}

LATEX_COLUMN, LATEX_GAP = 48, 2
"""Characters of text at 10 pt that fit one of two columns (252 pt), and that the space between two cells takes"""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys; they are escaped."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet may run."""


@dataclass(frozen=True)
class Number:
    """A number of a cell, with half of its interval if it has one."""

    value: float | None
    half_width: float | None = None
    deviation: float | None = None
    """Sample deviation over seeds, for CSV files"""
    missing: str | None = None
    """Text in place of a value that is None, unless the column's"""
    mark: str = ""
    """Text behind it"""

    @classmethod
    def mean(cls, found: Mean | Mapping[str, Any], missing: str | None = None) -> Number:
        """A mean over seeds, or the fields of one: of `progress.spread`, which has no interval, too."""
        if isinstance(found, Mean):
            return cls(found.mean, found.half_width, found.deviation, missing)
        return cls(found["mean"], found.get("half_width"), found["deviation"], missing)


Cell = str | float | Number | None


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    heading: str
    quantity: Quantity | None = None
    """None: its cells are texts"""
    better: Better = None
    missing: str = MISSING
    sign: str = ""
    """``+``: numbers above 0 have a sign, too"""
    over: str = ""
    """Heading above this column and its neighbours with the same one"""
    unit_of: str = ""
    """Key, or else heading, of the column whose unit and decimals it shares"""
    is_left: bool = False
    """Whether its cells are aligned to the left, as those of the first column are"""
    key: str = ""
    """Its heading in CSV files, if it is another"""
    dispensable: int = 0
    """Order in which columns are left out on a terminal that is too narrow; 0: never"""

    @classmethod
    def of(cls, reading: Reading[Any], **changes: Any) -> TableColumn:
        """The column of a reading."""
        own = cls(reading.heading, reading.quantity, reading.better, reading.missing, key=reading.key)
        return replace(own, **changes)


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; numbers are in SI units, shares in [0, 1]."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    """A row that is shorter than the columns ends in empty cells"""
    notes: Sequence[str] = ()

    @property
    def header(self) -> list[str]:
        """The headings."""
        return [column.heading for column in self.columns]

    @property
    def spans(self) -> list[tuple[str, int]]:
        """(heading, number of columns) of the row above the header; empty if no column has one."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and column.over and spans[-1][0] == column.over:
                spans[-1] = (column.over, spans[-1][1] + 1)
            else:
                spans.append((column.over, 1))
        return spans if any(heading for heading, _ in spans) else []

    @cached_property
    def cells(self) -> list[list[tuple[str, bool]]]:
        """(text, is the best of its column) of every cell.

        A cell that reads as the best does is best, too: nothing that is shown tells them apart.
        """
        columns = [self._cells(index) for index in range(len(self.columns))]
        return [list(row) for row in zip(*columns, strict=True)] if self.rows else []

    @cached_property
    def units(self) -> list[str]:
        """The unit of every column; empty for texts and for numbers without one."""
        scales = [
            None if column.quantity is None else self._scale(index, column.quantity)
            for index, column in enumerate(self.columns)
        ]
        return ["" if scale is None else scale.unit for scale in scales]

    @property
    def has_intervals(self) -> bool:
        """Whether a cell is a mean with its interval; pages ask."""
        return any(isinstance(cell, Number) and cell.half_width is not None for row in self.rows for cell in row)

    @property
    def texts(self) -> list[list[str]]:
        """The text of every cell."""
        return [[text for text, _ in row] for row in self.cells]

    def chosen(self, columns: Iterable[int]) -> Table:
        """The table with these of its columns."""
        kept = list(columns)
        cells = [[row[index] if index < len(row) else "" for index in kept] for row in self.rows]
        return replace(self, columns=[self.columns[index] for index in kept], rows=cells)

    def _numbers(self, index: int) -> list[Number]:
        return [as_number(row[index]) for row in self.rows if index < len(row)]

    def _cells(self, index: int) -> list[tuple[str, bool]]:
        column = self.columns[index]
        scale = None if column.quantity is None else self._scale(index, column.quantity)
        texts = [_text(row[index] if index < len(row) else "", column, scale) for row in self.rows]
        known = [number.value for number in self._numbers(index) if number.value is not None]
        if column.better is None or len(self.rows) < 2 or not known:
            return [(text, False) for text in texts]
        best = max(known) if column.better == "max" else min(known)
        values = [as_number(row[index]).value if index < len(row) else None for row in self.rows]
        best_text = texts[values.index(best)]
        return [(text, text == best_text) for text in texts]

    def _scale(self, index: int, quantity: Quantity) -> Column:
        """Unit and decimals of a column, which those that share its unit take part in choosing."""
        lead = self.columns[index].unit_of
        names = [column.key or column.heading for column in self.columns]
        first = names.index(lead) if lead else index
        sharing = [place for place, column in enumerate(self.columns) if column.unit_of == names[first]]
        own = self._numbers(first)
        shared = [number for place in sharing if place != first for number in self._numbers(place)]
        return Column.of(
            quantity,
            [number.value for number in own],
            [number.half_width for number in (*own, *shared)],
            [number.value for number in shared],
        )


def as_number(cell: Cell) -> Number:
    """A cell as a number, without a value if it is a text."""
    return cell if isinstance(cell, Number) else Number(None if isinstance(cell, str) else cell)


def _text(cell: Cell, column: TableColumn, scale: Column | None) -> str:
    if isinstance(cell, str):
        return cell
    number = as_number(cell)
    missing = column.missing if number.missing is None else number.missing
    if number.value is None or math.isnan(number.value):
        return missing
    assert scale is not None, f"column {column.heading!r} holds numbers and has no quantity"
    return scale.text(number.value, number.half_width, missing, column.sign) + number.mark


def of_texts(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> Table:
    """A table of texts."""
    return Table(title, list(map(TableColumn, header)), rows, notes)


def of_readings(heading: str, shown: Sequence[Reading[Any]], runs: Mapping[str, Any], title: str = "") -> Table:
    """A row of readings per run, which its name heads."""
    columns = [TableColumn(heading), *map(TableColumn.of, shown)]
    return Table(title, columns, [[name, *(each.value(run) for each in shown)] for name, run in runs.items()])


# --- files --------------------------------------------------------------------------------------------------------


def markdown(tables: Iterable[Table]) -> str:
    """The tables as Markdown."""

    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    lines: list[str] = []
    for table in tables:
        rule = ["---", *("---" if column.is_left else "---:" for column in table.columns[1:])]
        lines += [f"## {table.title[:1].upper()}{table.title[1:]}", "", row(table.header), row(rule)]
        lines += [row(f"**{text}**" if best else text for text, best in cells) for cells in table.cells]
        lines += ["", *(line for note in table.notes for line in (note, ""))]
    return "\n".join(lines)


def latex(tables: Iterable[Table]) -> str:
    """The tables as LaTeX, for the packages booktabs and graphicx.

    Units are in the headings. A table that is wider than a column of a page with two goes across both, and one that is
    wider than these is made smaller.
    """
    lines: list[str] = []
    labels: Counter[str] = Counter()
    for table in tables:
        alignment = "".join("l" if column.is_left else "r" for column in table.columns[1:])
        caption = escaped(". ".join([table.title, *table.notes]))
        label = "tab:" + (re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-") or "table")
        labels[label] += 1
        if labels[label] > 1:
            label += f"-{labels[label]}"
        heads = [
            f"{column.heading} ({unit})" if unit else column.heading
            for column, unit in zip(table.columns, table.units, strict=True)
        ]
        rows = [
            [(_without_unit(text, unit), best) for (text, best), unit in zip(cells, table.units, strict=True)]
            for cells in table.cells
        ]
        width = sum(widths([heads, *([text for text, _ in cells] for cells in rows)])) + LATEX_GAP * (len(heads) - 1)
        kind = "table" if width <= LATEX_COLUMN else "table*"
        fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
        lines += [rf"\begin{{{kind}}}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{{label}}}", fit]
        lines += [rf"\begin{{tabular}}{{l{alignment}}}", r"\toprule", *_latex_spans(table)]
        lines += [_latex_row((head, False) for head in heads), r"\midrule", *map(_latex_row, rows)]
        lines += [r"\bottomrule", r"\end{tabular}}", rf"\end{{{kind}}}", ""]
    return "\n".join(lines)


def _without_unit(text: str, unit: str) -> str:
    """The text of a number without the unit, which may have a mark behind it."""
    return re.sub(rf"(?<=[\d)]) {re.escape(unit)}(?!\w)", "", text) if unit else text


def _latex_row(cells: Iterable[tuple[str, bool]]) -> str:
    texts = (rf"\textbf{{{escaped(text)}}}" if best else escaped(text) for text, best in cells)
    return f"{' & '.join(texts)} \\\\"


def _latex_spans(table: Table) -> list[str]:
    """The row above the headings, and the rules under its texts."""
    cells, rules, first = [], [], 1
    for heading, count in table.spans:
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(heading)}}}" if heading else "")
        if heading:
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [f"{' & '.join(cells)} \\\\", " ".join(rules)] if cells else []


def escaped(text: str) -> str:
    """A text for LaTeX."""
    return re.sub(r"[\\~^±&%$#_{}<>|]", lambda found: LATEX[found[0]], text)


def numbers(table: Table) -> str:
    """A table as CSV, its numbers in SI units; a missing one is an empty cell."""
    return csv_text(*amounts(table))


def amounts(table: Table) -> tuple[list[str], list[list[Any]]]:
    """(header, rows) of numbers in SI units, None for a missing one.

    Columns of which a cell is a `Number` have four columns: mean, deviation, and the ends of the interval.
    """
    head: list[str] = []
    cells: list[list[Any]] = [[] for _ in table.rows]
    for index, column in enumerate(table.columns):
        name, own = column.key or column.heading, [row[index] if index < len(row) else None for row in table.rows]
        spread = any(isinstance(cell, Number) for cell in own)
        head += [f"{name}_{part}" for part in ("mean", "deviation", "low", "high")] if spread else [name]
        for row, cell in zip(cells, own, strict=True):
            number = as_number(cell)
            value, half = number.value, number.half_width
            ends = [None, None] if value is None or half is None else [value - half, value + half]
            row.extend([value, number.deviation, *ends] if spread else [cell])
    return head, cells


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as CSV; None is an empty cell. Texts that a spreadsheet would take for a formula are marked as text."""

    def safe(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        text = CONTROL.sub(lambda found: ascii(found[0])[1:-1], cell)
        return f"'{text}" if text.startswith(FORMULAS) else text

    file = io.StringIO()
    csv.writer(file).writerows(map(safe, row) for row in (head, *rows))
    return file.getvalue()
