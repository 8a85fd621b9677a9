"""What the clients of a run spent their energy on: waiting, computing, receiving and sending; read from its ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from coordinator.records.schema import ENERGY
from scenarios.report.bottlenecks import Query
from scenarios.report.columns import COUNT, JOULES, cells
from scenarios.report.groups import RunGroup
from scenarios.report.progress import with_interval
from scenarios.report.run_reader import RecordedRun

MOST_CLIENTS = 50
"""Clients of a run in the table, those that spent most"""
SUMS = ", ".join(f'TOTAL({column}) AS "{name}"' for column, name in ENERGY.items())
NAMES = tuple(ENERGY.values())
HEADER = ("energy", *NAMES)


def totals(query: Query) -> dict[str, float]:
    """Part -> joules of all visits of a run."""
    (row,) = query(f"SELECT {SUMS} FROM visits")
    return {name: float(row[name]) for name in NAMES}


def by_device(query: Query) -> dict[str, dict[str, float]]:
    """Device -> part -> joules of all visits of its clients, by name."""
    rows = query(f"SELECT device, {SUMS} FROM visits GROUP BY device ORDER BY device")
    return {str(row["device"]): {name: float(row[name]) for name in NAMES} for row in rows}


def group_table(groups: Sequence[RunGroup]) -> list[tuple[RunGroup, list[str]]]:
    """A row per group under `HEADER`: the joules of all clients and their parts, means over seeds with intervals."""
    found = [[totals(run.query) for run in group.runs] for group in groups]
    columns = []
    for name in HEADER:
        values = [[each.get(name, sum(each.values())) for each in own] for own in found]
        means = [with_interval(own) for own in values]
        columns.append(cells(JOULES, [each["mean"] for each in means], [each["half_width"] for each in means]))
    return [(group, list(row)) for group, row in zip(groups, zip(*columns, strict=True), strict=True)]


def client_tables(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, list[list[str]]]]:
    """The clients of each run that spent most: client, device, network, visits, and the columns of `HEADER`."""
    return [(run, _clients(run.query)) for run in runs]


def _clients(query: Query) -> list[list[str]]:
    rows = query(
        f"SELECT client, MIN(device) AS device, MIN(network) AS network, COUNT(*) AS visits, TOTAL(joules) AS energy, "
        f"{SUMS} FROM visits GROUP BY client ORDER BY energy DESC, client LIMIT {MOST_CLIENTS}"
    )
    joules = [cells(JOULES, _column(rows, name)) for name in HEADER]
    heads = [[f"client {row['client']}", str(row["device"]), str(row["network"])] for row in rows]
    visits = cells(COUNT, _column(rows, "visits"))
    return [[*head, *row] for head, row in zip(heads, zip(visits, *joules, strict=True), strict=True)]


def _column(rows: Sequence[sqlite3.Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]
