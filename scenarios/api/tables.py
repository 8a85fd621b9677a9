"""The tables of a run's ledger as `pyarrow.Table`, with the ledger's columns. Nothing is written.

Rounds are counted as in the ledger: 0 is the first. Where clients have names, a last column ``client_name`` has them.
Units are in the names: ``_s`` seconds of the virtual clock, ``bytes``, ``flops``, ``joules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow

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


def data_frame(call: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a data frame with these columns, also if there are none; ImportError, naming ``call``, without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ImportError(f"{call} needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(columns))


def of_ledger(run: RunFolder, name: str, columns: Mapping[str, str], order: str) -> pyarrow.Table:
    """A table of the run's ledger; ``columns``: name -> type of SQLite."""
    names = ", ".join(f'"{column}"' for column in columns)
    return with_names(run, filled(columns, run.query(f"SELECT {names} FROM {name} ORDER BY {order}")))


def with_names(run: RunFolder, table: pyarrow.Table) -> pyarrow.Table:
    """A table with a further column, ``client_name``, if it is of clients and they have names."""
    names = run.environment.partition.client_names
    if not names or "client" not in table.column_names:
        return table
    clients = table.column("client").to_pylist()
    named = [names[client] if client is not None and 0 <= client < len(names) else None for client in clients]
    return table.append_column("client_name", pyarrow.array(named, pyarrow.string()))


def filled(columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> pyarrow.Table:
    """A table of these rows."""
    schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
    arrays: list[Any] = [[row[index] for row in rows] for index in range(len(columns))]
    return pyarrow.table([pyarrow.array(cells, kind) for cells, kind in zip(arrays, schema.types, strict=True)], schema)
