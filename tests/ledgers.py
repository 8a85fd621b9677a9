"""What the tests read of a run's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.records.store import read

HOST_TABLES = ("meta", "host_rounds", "host_events")


def virtual_rows(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Table or view -> its rows, for all that are part of the result of a run; the method's own table among them."""
    ledger = folder / "ledger.sqlite"
    tables = [row["name"] for row in read(ledger, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return {
        table: [tuple(row) for row in read(ledger, f"SELECT * FROM {table}")]
        for table in sorted(set(tables) - set(HOST_TABLES))
    }
