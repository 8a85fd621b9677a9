"""Bottlenecks, critical clients and wasted visits of a run, read from its ledger.

A query is `coordinator.records.store.read` bound to one ledger: SQL to rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.records.schema import (
    BOTTLENECKS,
    FAULTY,
    KINDS,
    NO_TRAINING,
)

Query = Callable[[str], list[sqlite3.Row]]
NONE = "none"


@dataclass(frozen=True)
class BottleneckCount:
    """The rounds of one bottleneck."""

    rounds: int = 0
    seconds: float = 0.0
    """Virtual seconds of these rounds from beginning to end."""


@dataclass
class CriticalClient:
    """A client whose visits were the last that rounds waited for."""

    client: int
    device: str
    network: str
    visited: int
    """Rounds in which it had a visit, evaluations and messages of earlier visits aside."""
    rounds: int = 0
    """Rounds that waited for it last."""
    seconds: float = 0.0
    """Virtual seconds of these rounds from beginning to end."""
    by: dict[str, int] = field(default_factory=dict)
    """Bottleneck -> rounds."""


def bottlenecks(query: Query) -> dict[str, BottleneckCount]:
    """Each of `BOTTLENECKS` -> its rounds, a round that was cut among them."""
    rows = query("SELECT bottleneck, COUNT(*) n, SUM(end_s - start_s) s FROM rounds GROUP BY bottleneck")
    counts = {row["bottleneck"]: BottleneckCount(row["n"], row["s"]) for row in rows}
    return {name: counts.get(name, BottleneckCount()) for name in BOTTLENECKS}


def visits(query: Query) -> dict[str, int]:
    """Each of `KINDS` -> number of visits; kinds without training only if there are any."""
    counts = {row["kind"]: row["n"] for row in query("SELECT kind, COUNT(*) n FROM visits GROUP BY kind")}
    return {kind: counts.get(kind, 0) for kind in KINDS if kind not in NO_TRAINING or kind in counts}


def faulty(query: Query, most: int) -> list[sqlite3.Row]:
    """(client, kind, n): clients with invalid updates, most frequent first, at most ``most`` of them."""
    kinds = ", ".join(f"'{kind}'" for kind in FAULTY)
    return query(
        f"SELECT client, kind, COUNT(*) n FROM visits WHERE kind IN ({kinds}) GROUP BY client, kind "
        f"ORDER BY n DESC, client, kind LIMIT {most}"
    )


def staleness(query: Query) -> dict[int, int]:
    """Staleness in server steps -> number of training visits that counted."""
    rows = query("SELECT staleness, COUNT(*) n FROM visits WHERE kind = 'train' GROUP BY staleness ORDER BY staleness")
    return {row["staleness"]: row["n"] for row in rows}


def critical_clients(query: Query, most: int) -> list[CriticalClient]:
    """The clients that most rounds waited for last, at most ``most`` of them; ties by client number."""
    no_training = ", ".join(f"'{kind}'" for kind in NO_TRAINING)
    clients = {
        row["client"]: CriticalClient(row["client"], row["device"], row["network"], row["visited"])
        for row in query(
            "SELECT client, device, network, COUNT(DISTINCT round) visited FROM visits "
            f"WHERE kind NOT IN ({no_training}) GROUP BY client"
        )
    }
    for row in query(
        "SELECT critical, bottleneck, COUNT(*) n, SUM(end_s - start_s) s FROM rounds WHERE critical IS NOT NULL "
        "GROUP BY critical, bottleneck ORDER BY n DESC"
    ):
        client = clients.get(row["critical"])
        if client is None:  # in a ledger that no run has written
            continue
        client.rounds += row["n"]
        client.seconds += row["s"]
        client.by[row["bottleneck"]] = row["n"]
    critical = [client for client in clients.values() if client.rounds]
    return sorted(critical, key=lambda client: (-client.rounds, client.client))[:most]


def counted(numbers: Mapping[str, int]) -> str:
    """The counts above 0 as text: {"own link": 12, "waiting": 0, "compute": 2} -> "own link 12, compute 2"."""
    return ", ".join(f"{name} {number}" for name, number in numbers.items() if number) or NONE
