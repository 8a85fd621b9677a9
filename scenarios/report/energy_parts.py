"""What the clients of a run spent their energy on: waiting, computing, receiving and sending; read from its ledger."""

from __future__ import annotations

import sqlite3

from coordinator.records.schema import ENERGY
from scenarios.report.bottlenecks import Query

MOST_CLIENTS = 50
"""Clients of a run in the table, those that spent most"""
SUMS = ", ".join(f'TOTAL({column}) AS "{name}"' for column, name in ENERGY.items())
NAMES = tuple(ENERGY.values())


def totals(query: Query) -> dict[str, float]:
    """Part -> joules of all visits of a run."""
    (row,) = query(f"SELECT {SUMS} FROM visits")
    return {name: float(row[name]) for name in NAMES}


def by_device(query: Query) -> dict[str, dict[str, float]]:
    """Device -> part -> joules of all visits of its clients, by name."""
    rows = query(f"SELECT device, {SUMS} FROM visits GROUP BY device ORDER BY device")
    return {str(row["device"]): {name: float(row[name]) for name in NAMES} for row in rows}


def clients(query: Query) -> list[sqlite3.Row]:
    """(client, device, network, visits, energy and its parts) of the clients that spent most joules."""
    return query(
        "SELECT client, MIN(device) AS device, MIN(network) AS network, COUNT(*) AS visits, TOTAL(joules) AS energy, "
        f"{SUMS} FROM visits GROUP BY client ORDER BY energy DESC, client LIMIT {MOST_CLIENTS}"
    )
