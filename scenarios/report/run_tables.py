"""The tables of runs as files: CSV and Parquet, one row per run and round, and one per value of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scenarios.report.csv_files import csv_text
from scenarios.report.run_reader import evaluation_rows, open_runs, rows


def csv_table(runs: Sequence[Path], path: Path) -> Path:
    """Write `rows` of these run folders as CSV; a missing accuracy or loss is an empty cell.

    Runs with a table ``evaluations`` have it written beside it (`evaluations_path`).
    """
    table = rows(open_runs(runs))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = list(table[0]) if table else ["run", "method", "seed", "round"]
    # Not replaced as a whole, since it may be a pipe, whose reader may have seen enough.
    with suppress(BrokenPipeError), path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_text(head, (row.values() for row in table)))
    values = _evaluations_beside(runs, path)
    if values:
        companion = evaluations_path(path)
        with companion.open("w", encoding="utf-8", newline="") as file:
            file.write(csv_text(list(values[0]), (row.values() for row in values)))
    return path


def evaluations_path(path: Path) -> Path:
    """The file beside ``path`` for the table ``evaluations``: ``a.csv`` -> ``a-evaluations.csv``."""
    return path.with_name(f"{path.stem}-evaluations{path.suffix}")


def _evaluations_beside(runs: Sequence[Path], path: Path) -> list[dict[str, Any]]:
    """The rows for `evaluations_path`; empty if no run has any, and for a pipe, which has no place beside it."""
    return evaluation_rows(open_runs(runs)) if path.is_file() else []


def parquet_table(runs: Sequence[Path], path: Path) -> Path:
    """Write the tables of `csv_table` as Parquet."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(open_runs(runs))), path)
    values = _evaluations_beside(runs, path)
    if values:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), evaluations_path(path))
    return path
