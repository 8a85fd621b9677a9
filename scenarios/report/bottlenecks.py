"""Who held a run up, and what was in vain: read from the ledger of one run, never computed anew and never written.

A query is what `coordinator.records.store.read` does with one ledger: SQL to rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.records.schema import (
    BOTTLENECKS,
    COMPUTE,
    COUNTED,
    FAILED,
    FAULTY,
    OWN_LINK,
    SERVER_LINK,
    UPDATE_REJECTED,
    WAITING,
)

Query = Callable[[str], list[sqlite3.Row]]
KINDS = (*COUNTED, "late", "lost", "cut", UPDATE_REJECTED, FAILED)
"""Of visits: those that counted, then those in vain."""
SHORT = {OWN_LINK: "link", SERVER_LINK: "server", COMPUTE: "compute", WAITING: "wait"}
"""What stands for a bottleneck where there is little room."""
NONE = "none"


@dataclass(frozen=True)
class BottleneckCount:
    """What rounds were held up by."""

    rounds: int = 0
    seconds: float = 0.0
    """Virtual ones, of these rounds from beginning to end."""


@dataclass
class CriticalVisit:
    """A client that rounds waited for last."""

    client: int
    device: str
    network: str
    visited: int
    """Rounds that it was visited in."""
    rounds: int = 0
    """Rounds that waited for it last."""
    seconds: float = 0.0
    """Virtual ones, of these rounds from beginning to end."""
    by: dict[str, int] = field(default_factory=dict)
    """Bottleneck -> rounds."""


def bottlenecks(query: Query) -> dict[str, BottleneckCount]:
    """Each of `BOTTLENECKS` -> what it held up; a round that was cut is among them."""
    rows = query("SELECT bottleneck, COUNT(*) n, SUM(end_s - start_s) s FROM rounds GROUP BY bottleneck")
    found = {row["bottleneck"]: BottleneckCount(row["n"], row["s"]) for row in rows}
    return {name: found.get(name, BottleneckCount()) for name in BOTTLENECKS}


def visits(query: Query) -> dict[str, int]:
    """Each of `KINDS` -> number of visits."""
    found = {row["kind"]: row["n"] for row in query("SELECT kind, COUNT(*) n FROM visits GROUP BY kind")}
    return {kind: found.get(kind, 0) for kind in KINDS}


def faulty(query: Query, most: int) -> list[sqlite3.Row]:
    """(client, kind, n): clients whose updates could not be used, the most often first, at most ``most`` of them."""
    kinds = ", ".join(f"'{kind}'" for kind in FAULTY)
    return query(
        f"SELECT client, kind, COUNT(*) n FROM visits WHERE kind IN ({kinds}) GROUP BY client, kind "
        f"ORDER BY n DESC, client, kind LIMIT {most}"
    )


def staleness(query: Query) -> dict[int, int]:
    """Server steps between the beginning of a visit and its use -> number of training visits that counted."""
    rows = query("SELECT staleness, COUNT(*) n FROM visits WHERE kind = 'train' GROUP BY staleness ORDER BY staleness")
    return {row["staleness"]: row["n"] for row in rows}


def critical_clients(query: Query, most: int) -> list[CriticalVisit]:
    """The clients that rounds waited for most often, at most ``most`` of them; of equals the lowest number first."""
    known = {
        row["client"]: CriticalVisit(row["client"], row["device"], row["network"], row["visited"])
        for row in query("SELECT client, device, network, COUNT(DISTINCT round) visited FROM visits GROUP BY client")
    }
    for row in query(
        "SELECT critical, bottleneck, COUNT(*) n, SUM(end_s - start_s) s FROM rounds WHERE critical IS NOT NULL "
        "GROUP BY critical, bottleneck ORDER BY n DESC"
    ):
        one = known[row["critical"]]
        one.rounds += row["n"]
        one.seconds += row["s"]
        one.by[row["bottleneck"]] = row["n"]
    blamed = [one for one in known.values() if one.rounds]
    return sorted(blamed, key=lambda one: (-one.rounds, one.client))[:most]


def counted(numbers: Mapping[str, int]) -> str:
    """For a table: {"own link": 12, "waiting": 0, "compute": 2} -> "own link 12, compute 2"."""
    return ", ".join(f"{name} {number}" for name, number in numbers.items() if number) or NONE
