"""The tables of runs as files, CSV and Parquet: rounds, values of evaluations, and numbers that methods have logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from scenarios.report.csv_files import csv_text
from scenarios.report.run_reader import RecordedRun, open_runs

OTHERS: tuple[Literal["evaluations", "logged"], ...] = ("evaluations", "logged")
"""Tables that few runs have"""


def csv_table(runs: Sequence[Path], path: Path) -> Path:
    """Write `rows` of these run folders as CSV; a missing accuracy or loss is an empty cell.

    Runs with a table of `OTHERS` have it written beside it.
    """
    opened = open_runs(runs)
    table = rows(opened)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = list(table[0]) if table else ["run", "method", "seed", "round"]
    # Not replaced as a whole, since it may be a pipe, whose reader may have seen enough.
    with suppress(BrokenPipeError), path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_text(head, (row.values() for row in table)))
    for companion, values in _beside(opened, path):
        with companion.open("w", encoding="utf-8", newline="") as file:
            file.write(csv_text(list(values[0]), (row.values() for row in values)))
    return path


def _beside(runs: Sequence[RecordedRun], path: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The files beside ``path`` for other tables, ``a.csv`` -> ``a-evaluations.csv``, with their rows.

    None for a table of which no run has a row, nor for a pipe, which has no place beside it.
    """
    for table in OTHERS if path.is_file() else ():
        if values := value_rows(runs, table):
            yield path.with_name(f"{path.stem}-{table}{path.suffix}"), values


def parquet_table(runs: Sequence[Path], path: Path) -> Path:
    """Write the tables of `csv_table` as Parquet."""
    import pyarrow
    import pyarrow.parquet

    opened = open_runs(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(opened)), path)
    for companion, values in _beside(opened, path):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), companion)
    return path


def rows(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """One row per run and round: the virtual columns of ``rounds``, with running totals of the bytes."""
    table = []
    for run in runs:
        head = {"run": run.folder.name, "method": run.method, "seed": run.scenario.get("seed")}
        for row, point in zip(run.rounds, run.trail, strict=True):
            totals = {"bytes_so_far": point.nbytes, "nominal_bytes_so_far": point.nominal_nbytes}
            table.append(head | row._asdict() | totals | {"group": run.group})
    return table


def value_rows(runs: Sequence[RecordedRun], table: Literal["evaluations", "logged"]) -> list[dict[str, Any]]:
    """One row per run and row of one of these tables."""
    return [
        {"run": run.folder.name, "method": run.method, "seed": run.scenario.get("seed"), **row._asdict()}
        for run in runs
        for row in getattr(run, table)
    ]
