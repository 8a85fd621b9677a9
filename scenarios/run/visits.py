"""Bottlenecks, critical clients, wasted visits, participation, energy and bases of a run, from its ledger's visits.

A query is `coordinator.records.store.read` bound to one ledger: SQL to rows.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.records.schema import (
    AGGREGATORS,
    ANY_FLEET,
    BOTTLENECKS,
    COUNTED,
    DOWNLOAD_ONLY,
    DROPPED,
    ENERGY,
    FAULTY,
    KINDS,
    NO_TRAINING,
    PHASES,
    SETUP,
    SHARE,
    TRAIN,
    TRAINED,
    UNMASK,
    StepsRow,
)
from costmodel.fleet.devices import Device, Network, basis, devices, networks
from costmodel.fleet.inputs import FleetInputs, Link
from costmodel.fleet.model_demand import figures_of_speed
from costmodel.fleet.traces import Machines, RateSeries, RecordedDays
from scenarios.config.schema import Scenario
from scenarios.run.environment import Environment

Query = Callable[[str], list[sqlite3.Row]]
NONE = "none"


@dataclass(frozen=True)
class BottleneckCount:
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
    seconds: float = 0.0
    """Virtual seconds of these rounds from beginning to end"""
    by: dict[str, int] = field(default_factory=dict)
    """Bottleneck -> rounds"""


def bottlenecks(query: Query) -> dict[str, BottleneckCount]:
    """Each of `ANY_FLEET`, and others that have rounds -> its rounds, a round that was cut among them.

    Rounds of aggregators overlap: a round's seconds are those from the end of the one before it.
    """
    lengths = (
        "SELECT bottleneck, end_s - MAX(start_s, LAG(end_s, 1, start_s) OVER (ORDER BY round)) AS length FROM rounds"
    )
    rows = query(f"SELECT bottleneck, COUNT(*) n, SUM(length) s FROM ({lengths}) GROUP BY bottleneck")
    counts = {row["bottleneck"]: BottleneckCount(row["n"], row["s"]) for row in rows}
    names = [name for name in BOTTLENECKS if name in ANY_FLEET or name in counts]
    return {name: counts.get(name, BottleneckCount()) for name in names}


def quoted(kinds: Iterable[str]) -> str:
    """Kinds of visit as a list in a query of a ledger."""
    return ", ".join(f"'{kind}'" for kind in kinds)


TAKEN_PART = (
    "SELECT client, COUNT(*) begun, SUM(kind IN ({0})) counted, SUM(steps * (kind IN ({0}))) steps "
    "FROM visits WHERE kind NOT IN ({1}) GROUP BY client"
).format(quoted(TRAINED), quoted((*NO_TRAINING, DOWNLOAD_ONLY)))
"""Query of a ledger for each client's training visits, those of them that counted, and their local steps"""


def by_kind(query: Query) -> dict[str, int]:
    """Each of `KINDS` -> number of visits; kinds without training only if there are any."""
    counts = {row["kind"]: row["n"] for row in query("SELECT kind, COUNT(*) n FROM visits GROUP BY kind")}
    return {kind: counts.get(kind, 0) for kind in KINDS if kind not in NO_TRAINING or kind in counts}


def by_phase(query: Query) -> list[sqlite3.Row]:
    """(kind, visits, bytes down, bytes up, seconds, joules) of the phases of secure aggregation, and of the training
    visits between them, in their order; those that were lost last; empty without any."""
    kinds = (SETUP, SHARE, *TRAINED, UNMASK, DROPPED)
    if not query(f"SELECT 1 FROM visits WHERE kind IN ({quoted(PHASES)}) LIMIT 1"):
        return []
    order = " ".join(f"WHEN '{kind}' THEN {place}" for place, kind in enumerate(kinds))
    return query(
        "SELECT kind, COUNT(*) visits, SUM(bytes_down) bytes_down, SUM(bytes_up) bytes_up, "
        "TOTAL(up_end_s - start_s) seconds, TOTAL(joules) joules "
        f"FROM visits WHERE kind IN ({quoted(kinds)}) "
        f"GROUP BY kind ORDER BY CASE kind {order} END"
    )


def by_step(rows: Sequence[StepsRow], end: float) -> dict[str, float]:
    """Where the computing of visits of a model that is cut went -> seconds of all visits, and what share of a run of
    ``end`` seconds the server's device computes (``load``); empty without a cut."""
    if not rows:
        return {}
    columns = {"device": "device_s", "up": "up_s", "down": "down_s", "trips": "trips_s"}
    columns |= {"server": "served_s", "queue": "queued_s", "shared": "shared_s"}
    parts = {part: math.fsum(getattr(row, column) for row in rows) for part, column in columns.items()}
    return {**parts, "load": parts["server"] / end if end else 0.0}


def faulty(query: Query, most: int) -> list[sqlite3.Row]:
    """(client, kind, n): clients with invalid updates, most frequent first, at most ``most`` of them."""
    kinds = quoted(FAULTY)
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
    no_training = quoted(NO_TRAINING)
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


# --- participation --------------------------------------------------------------------------------------------------

VISITS_OF_CLIENTS = f"""SELECT client, kind IN ({quoted(TRAINED)}) AS counted, COUNT(*) AS n
    FROM visits WHERE kind NOT IN ({quoted((*NO_TRAINING, DOWNLOAD_ONLY))})
    GROUP BY client, counted"""


STALENESS_OF_CLIENTS = f"""SELECT client, AVG(staleness) AS staleness, AVG(up_end_s - start_s) AS seconds
    FROM visits WHERE kind = '{TRAIN}' GROUP BY client ORDER BY client"""


@dataclass(frozen=True)
class Participation:
    """Training visits per client of one run; visits that only evaluate or download are none."""

    clients: int
    counted: Mapping[int, int]
    """Client -> visits that counted, for clients with any"""
    wasted: Mapping[int, int]
    """Client -> visits that did not count, for clients with any"""

    @property
    def never(self) -> int:
        return self.clients - len(self.counted.keys() | self.wasted.keys())

    def histogram(self) -> dict[int, int]:
        """Visits that counted -> number of clients with so many, 0 among them."""
        numbers = Counter(self.counted.values())
        numbers[0] = self.clients - len(self.counted)
        return dict(sorted((visits, clients) for visits, clients in numbers.items() if clients))

    def per_client(self) -> list[int]:
        """(clients,) visits that counted, ascending."""
        return [0] * (self.clients - len(self.counted)) + sorted(self.counted.values())

    def quartiles(self) -> tuple[float, float, float]:
        """(fewest, median, most) visits per client that counted."""
        every = self.per_client() or [0]
        return every[0], statistics.median(every), every[-1]

    def busiest_share(self) -> float | None:
        """Share of the visits that counted which the busiest tenth of the clients had; None without visits."""
        every = self.per_client()
        busiest = every[-max(1, len(every) // 10) :]
        return sum(busiest) / sum(every) if any(every) else None


def participation(query: Query, scenario: Mapping[str, Any]) -> Participation:
    """The visits per client of a run of this scenario."""
    counts: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for row in query(VISITS_OF_CLIENTS):
        counts[bool(row["counted"])][int(row["client"])] = int(row["n"])
    seen = {client for known in counts.values() for client in known}
    stated = int((scenario.get("data") or {}).get("clients") or 0)
    return Participation(max(stated, len(seen)), counts[True], counts[False])


# --- energy ---------------------------------------------------------------------------------------------------------

MOST_CLIENTS = 50
"""Clients of a run in the table, those that spent most"""
SUMS = ", ".join(f'TOTAL({column}) AS "{name}"' for column, name in ENERGY.items())
NAMES = tuple(ENERGY.values())


def energy(query: Query) -> dict[str, float]:
    """Part -> joules of all visits of a run."""
    (row,) = query(f"SELECT {SUMS} FROM visits")
    return {name: float(row[name]) for name in NAMES}


def energy_by_device(query: Query) -> dict[str, dict[str, float]]:
    """Device -> part -> joules of all visits of its clients, by name."""
    rows = query(f"SELECT device, {SUMS} FROM visits GROUP BY device ORDER BY device")
    return {str(row["device"]): {name: float(row[name]) for name in NAMES} for row in rows}


def energy_of_clients(query: Query) -> list[sqlite3.Row]:
    """(client, device, network, visits, energy and its parts) of the clients that spent most joules."""
    return query(
        "SELECT client, MIN(device) AS device, MIN(network) AS network, COUNT(*) AS visits, TOTAL(joules) AS energy, "
        f"{SUMS} FROM visits GROUP BY client ORDER BY energy DESC, client LIMIT {MOST_CLIENTS}"
    )


# --- parts of the model ---------------------------------------------------------------------------------------------

BY_RATE = f"""SELECT rate, COUNT(DISTINCT client) AS clients, COUNT(*) AS visits,
    SUM(kind NOT IN ({quoted(COUNTED)})) AS wasted,
    TOTAL(up_end_s - start_s) AS seconds, SUM(bytes_down + bytes_up) AS nbytes, TOTAL(flops) AS flops,
    TOTAL(joules) AS joules FROM visits GROUP BY rate ORDER BY rate DESC"""


def by_rate(query: Query) -> list[sqlite3.Row]:
    """(rate, clients, visits, wasted, seconds, nbytes, flops, joules), the largest rate first and leftovers, which have
    none, last; of all visits that had a part of this rate. Empty if all had the whole model."""
    rows = query(BY_RATE)
    return rows if any(row["rate"] not in (None, 1) for row in rows) else []


def rates_by_round(query: Query) -> dict[float, dict[int, int]]:
    """Rate, the largest first -> round -> training visits that ended in it, also in vain."""
    kinds = quoted((*NO_TRAINING, DOWNLOAD_ONLY))
    counts: dict[float, dict[int, int]] = {}
    for row in query(
        f"SELECT rate, round, COUNT(*) AS n FROM visits WHERE kind NOT IN ({kinds}) GROUP BY rate, round "
        "ORDER BY rate DESC, round"
    ):
        counts.setdefault(row["rate"], {})[row["round"]] = row["n"]
    return counts


# --- what clients exchange with what is above them ------------------------------------------------------------------

MESSAGES = """SELECT TOTAL(bytes_down > 0) + TOTAL(bytes_up > 0) AS messages, TOTAL(kind = 'lost') AS lost,
    TOTAL(bytes_down) AS down, TOTAL(bytes_up) AS up,
    TOTAL(down_end_s - start_s) + TOTAL(up_end_s - compute_end_s) AS seconds, TOTAL(shared_s) AS contention,
    TOTAL(receive_joules) + TOTAL(send_joules) AS joules, TOTAL(idle_joules) AS idle FROM visits"""
"""Query of the totals of all visits, computing left out"""
BYTES_OF_CLIENTS = "SELECT client, SUM(bytes_down) AS down, SUM(bytes_up) AS up FROM visits GROUP BY client"

# --- the basis of times ---------------------------------------------------------------------------------------------

# Computing rests on the figures of the device's row for the run's model, and on its step overhead; a transfer, also one
# between aggregators and what is above them, on the network row's rate in its direction. Seconds count under the
# weakest basis of the figures that they rest on. What else a time depends on (round trips, loss, spreads, sharing) is
# not looked at, and rows are never changed here.
READ = "read"
BASES = ("assumed", "derived", "inference", READ)
"""Weakest first. `READ`: measured in training, read in a source, or given by the scenario's own files and keys."""


def row_bases(scenario: Scenario, files: FleetInputs, families: Sequence[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The bases that ``environment.json`` keeps: ``devices`` and ``networks``, name -> part of a visit -> basis; with
    tiers also ``aggregators``, name of a network of theirs -> direction -> basis. ``files``: of the fleet;
    ``families``: names by which devices have a throughput for the run's model."""
    trace = files.trace  # which may give rates and speeds in place of those of rows
    known = set(WAYS) if scenario.fleet.rates is not None or scenario.fleet.trace is not None else recorded_rates(files)
    has_speeds = isinstance(trace, Machines) or (isinstance(trace, RecordedDays) and trace.flops_per_second is not None)
    all_devices, all_networks = {**devices(), **files.devices}, {**networks(), **files.networks}
    bases: dict[str, dict[str, dict[str, str]]] = {"devices": {}, "networks": {}}
    for name in dict.fromkeys(scenario.fleet.devices):
        row = all_devices[name]
        used = [] if has_speeds else figures_of_speed(row, families)
        bases["devices"][name] = {
            "compute": min((_basis(row, key) for key in (*used, "step_seconds")), key=BASES.index)
        }
    for name in dict.fromkeys(scenario.fleet.networks):
        bases["networks"][name] = _rate_bases(
            all_networks[name], known | _behind_recorded(all_networks[name], files.gateway_link)
        )
    tiers = scenario.fleet.tiers
    recorded = set[str]() if files.aggregators is None else recorded_rates(files.aggregators)
    for tier, known in ((tiers, recorded), (tiers.above, set[str]())):
        for name in dict.fromkeys(tier.networks) if tier.count else ():
            bases.setdefault("aggregators", {})[name] = _rate_bases(all_networks[name], known)
    return bases


WAYS = ("down", "up")


def recorded_rates(inputs: FleetInputs) -> set[str]:
    """The directions in which recordings say how fast links are; factors on the rates of rows do not."""
    if inputs.link is None:
        return set()
    down, up = inputs.link
    return {way for way, series in zip(WAYS, (down, up or down), strict=True) if isinstance(series, RateSeries)}


def _behind_recorded(network: Network, link: Link | None) -> set[str]:
    """The directions in which no gateway's recorded rate, on average, is above that of the row: the time of a transfer
    rests on the narrower of both."""
    if link is None:
        return set()
    limits = (network.down_bits_per_second, network.up_bits_per_second)
    pairs = zip(WAYS, (link[0], link[1] or link[0]), limits, strict=True)
    return {
        way
        for way, series, rate in pairs
        if isinstance(series, RateSeries) and max(rates.mean() for rates in series.bits_per_second) <= rate
    }


def _rate_bases(network: Network, known: Collection[str]) -> dict[str, str]:
    """Direction -> basis of the rate; ``known``: directions whose rates are the scenario's own."""
    return {way: READ if way in known else _basis(network, f"{way}_bits_per_second") for way in WAYS}


def seconds_by_basis(query: Query, environment: Environment) -> dict[str, float] | None:
    """Each of `BASES` -> seconds of all visits, and of all messages of aggregators that arrived; None for a run whose
    environment has no ``bases`` for all of them.

    ``query``: `coordinator.records.store.read` bound to the run's ledger.
    """
    bases = environment.bases
    if bases is None:
        return None
    seconds = dict.fromkeys(BASES, 0.0)
    for row in query(
        "SELECT device, network, TOTAL(down_end_s - start_s) down, TOTAL(compute_end_s - down_end_s) compute, "
        "TOTAL(up_end_s - compute_end_s) up FROM visits GROUP BY device, network ORDER BY device, network"
    ):
        for part, of in (("down", "networks"), ("compute", "devices"), ("up", "networks")):
            name = row["device" if of == "devices" else "network"]
            known = bases.get(of, {}).get(name, {}).get(part)
            if known not in seconds:  # in an environment that no run has written
                return None
            seconds[known] += row[part]
    has_messages = bool(query(f"SELECT 1 FROM sqlite_master WHERE name = '{AGGREGATORS}'"))
    for tier, level in enumerate(environment.tiers if has_messages else ()):
        for row in query(
            f"SELECT aggregator, direction, TOTAL(end_s - start_s) AS seconds FROM {AGGREGATORS} WHERE tier = {tier} "
            "GROUP BY aggregator, direction ORDER BY aggregator, direction"
        ):
            name = level.networks[row["aggregator"]] if row["aggregator"] < len(level.networks) else ""
            known = bases.get("aggregators", {}).get(name, {}).get(row["direction"])
            if known not in seconds:
                return None
            seconds[known] += row["seconds"]
    return seconds


def shares(seconds: Mapping[str, float] | None) -> dict[str, float] | None:
    """Basis -> share in [0, 1]; None if the bases are unknown, or no visit took any time."""
    total = sum(seconds.values()) if seconds else 0.0
    return {name: amount / total for name, amount in seconds.items()} if seconds and total else None


def _basis(row: Device | Network, key: str) -> str:
    kind = basis(row, key)
    return kind if kind in BASES else READ
