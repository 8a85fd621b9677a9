"""The tables of a run's ledger as `pyarrow.Table`, with the ledger's columns. Nothing is written.

Rounds are counted as in the ledger: 0 is the first. Units are in the names: ``_s`` seconds of the virtual clock,
``bytes``, ``flops``, ``joules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow

from coordinator.records.schema import (
    TABLES,
    EvaluationRow,
    LoggedRow,
    RoundRow,
    VisitRow,
    column_types,
)
from scenarios.run.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas

TYPES = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
TRANSFERS = {
    **dict.fromkeys(("visit", "round", "client"), "INTEGER"),
    **dict.fromkeys(("direction", "slot", "key"), "TEXT"),
    "nbytes": "INTEGER",
}
"""Columns of the view ``transfers``, whose types SQLite does not know"""
CHOICES = {"round": "INTEGER", "client": "INTEGER"}
"""Columns of the empty table of a method that has none of its own"""


def rounds(run: RunFolder) -> pyarrow.Table:
    """One row per committed round: the fields of `coordinator.records.schema.RoundRow`."""
    return _filled(column_types(RoundRow), run.rounds)


def visits(run: RunFolder) -> pyarrow.Table:
    """One row per visit of a client: the fields of `coordinator.records.schema.VisitRow`."""
    return _table(run, "visits", column_types(VisitRow), "visit")


def transfers(run: RunFolder) -> pyarrow.Table:
    """One row per visit, direction (``down``, ``up``) and block: visit, round, client, direction, slot, key, nbytes."""
    return _table(run, "transfers", TRANSFERS, "visit, direction, slot")


def evaluations(run: RunFolder) -> pyarrow.Table:
    """One row per value of an evaluation: the fields of `coordinator.records.schema.EvaluationRow`.

    Empty for a run that evaluated nothing but the accuracy and loss of the global model, which ``rounds`` has.
    """
    return _filled(column_types(EvaluationRow), run.evaluations)


def logged(run: RunFolder) -> pyarrow.Table:
    """One row per number that the method has logged: the fields of `coordinator.records.schema.LoggedRow`."""
    return _filled(column_types(LoggedRow), run.logged)


def choices(run: RunFolder) -> pyarrow.Table:
    """The method's own table, such as the choices of FedBR's bandit; empty for a method that has none."""
    own = [row["name"] for row in run.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = [name for name in own if name not in TABLES and str(name).isidentifier()]
    if not found:
        return _filled(CHOICES, [])
    columns = {row["name"]: row["type"] for row in run.query(f"PRAGMA table_info({found[0]})")}
    return _table(run, found[0], columns, "rowid")


def data_frame(call: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a data frame with these columns, also if there are none; ImportError, naming ``call``, without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ImportError(f"{call} needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(columns))


def _table(run: RunFolder, name: str, columns: Mapping[str, str], order: str) -> pyarrow.Table:
    named = ", ".join(f'"{column}"' for column in columns)
    return _filled(columns, run.query(f"SELECT {named} FROM {name} ORDER BY {order}"))


def _filled(columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> pyarrow.Table:
    schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
    arrays: list[Any] = [[row[index] for row in rows] for index in range(len(columns))]
    return pyarrow.table([pyarrow.array(cells, kind) for cells, kind in zip(arrays, schema.types, strict=True)], schema)
