"""CSV files. Text cells that a spreadsheet would take for a formula are marked as text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys; they are escaped."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet may run."""


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text).writerows([_safe(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()


def _safe(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = CONTROL.sub(lambda found: ascii(found[0])[1:-1], cell)
    return f"'{text}" if text.startswith(FORMULAS) else text
