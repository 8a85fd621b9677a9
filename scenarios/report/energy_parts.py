"""What the clients of a run spent their energy on: waiting, computing, receiving and sending; read from its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.records.schema import ENERGY
from scenarios.report.bottlenecks import Query
from scenarios.report.columns import COUNT, JOULES, Column, cells
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun
from scenarios.run.progress import with_interval

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
    rows = [[with_interval([each.get(name, sum(each.values())) for each in own]) for name in HEADER] for own in found]
    every = [each for row in rows for each in row]
    column = Column.of(
        JOULES,
        (energy["mean"] for energy, *_ in rows),
        (each["half_width"] for each in every),
        (each["mean"] for each in every),
    )
    texts = [[column.text(each["mean"], each["half_width"]) for each in row] for row in rows]
    return list(zip(groups, texts, strict=True))


def client_tables(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, list[list[str]]]]:
    """The clients of each run that spent most: client, device, network, visits, and the columns of `HEADER`."""
    return [(run, _clients(run.query)) for run in runs]


def _clients(query: Query) -> list[list[str]]:
    rows = query(
        f"SELECT client, MIN(device) AS device, MIN(network) AS network, COUNT(*) AS visits, TOTAL(joules) AS energy, "
        f"{SUMS} FROM visits GROUP BY client ORDER BY energy DESC, client LIMIT {MOST_CLIENTS}"
    )
    column = Column.of(JOULES, (row["energy"] for row in rows), parts=(row[name] for row in rows for name in NAMES))
    visits = cells(COUNT, [row["visits"] for row in rows])
    return [
        [f"client {row['client']}", str(row["device"]), str(row["network"]), count]
        + [column.text(row[name]) for name in HEADER]
        for row, count in zip(rows, visits, strict=True)
    ]
