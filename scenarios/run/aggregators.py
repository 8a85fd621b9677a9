"""Messages between aggregators and what is above them, from the ledger of a run with tiers: by round and by link.

A query is `coordinator.records.store.read` bound to a ledger that has the table ``aggregators``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NotRequired, TypedDict

from coordinator.records.schema import AggregatorRow
from scenarios.run.client_values import OverClients
from scenarios.run.progress import NOTHING_ABOVE, AboveClients, ProgressPoint
from scenarios.run.score import OF_ACCURACY, RunScore
from scenarios.run.visits import Query

BY_ROUND = """SELECT round, SUM(nbytes) AS nbytes, TOTAL(joules) + TOTAL(idle_joules) AS joules, TOTAL(price) AS price
    FROM aggregators GROUP BY round"""
BY_LINK = """SELECT tier, direction, COUNT(*) AS messages, SUM(end_s IS NULL) AS lost, SUM(nbytes) AS nbytes,
    TOTAL(end_s - start_s) AS seconds, TOTAL(shared_s) AS contention_seconds, TOTAL(joules) AS joules,
    TOTAL(idle_joules) AS idle_joules, TOTAL(price) AS price
    FROM aggregators GROUP BY tier, direction ORDER BY tier, direction"""
BY_AGGREGATOR = """SELECT tier, aggregator, direction, SUM(nbytes) AS nbytes FROM aggregators
    GROUP BY tier, aggregator, direction"""


class LinkTotals(NamedTuple):
    """The messages of one direction between a tier and what is above it."""

    tier: int
    """From 0, the tier next to the clients"""
    direction: str
    """``up`` or ``down``"""
    messages: int
    lost: int
    """Of these, messages that never arrived; they have bytes, and no seconds"""
    nbytes: int
    seconds: float
    """Of all messages, one after another"""
    contention_seconds: float
    """Of these, lost because other aggregators used the same links"""
    joules: float
    """Of the aggregators of this tier while they sent or received"""
    idle_joules: float
    """Of their baseline while they waited for these messages"""
    price: float


def by_round(query: Query) -> dict[int, AboveClients]:
    """Round -> what its messages took."""
    return {row["round"]: AboveClients(*tuple(row)[1:]) for row in query(BY_ROUND)}


def of_messages(messages: Iterable[AggregatorRow]) -> dict[int, AboveClients]:
    """The same of messages that are in no ledger."""
    found: dict[int, AboveClients] = {}
    for row in messages:
        nbytes, joules, price = found.get(row.round, NOTHING_ABOVE)
        joules += row.joules + row.idle_joules
        found[row.round] = AboveClients(nbytes + row.nbytes, joules, price + row.price)
    return found


def by_link(query: Query) -> list[LinkTotals]:
    """The totals of each tier and direction."""
    return [LinkTotals(*row) for row in query(BY_LINK)]


def by_aggregator(query: Query) -> dict[tuple[int, int], dict[str, int]]:
    """(tier, aggregator) -> direction -> bytes of the messages between it and what is above it."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for row in query(BY_AGGREGATOR):
        found.setdefault((row["tier"], row["aggregator"]), {})[row["direction"]] = row["nbytes"]
    return found


class AggregatorsAccuracy(TypedDict):
    """The last evaluation of aggregators' own models, beside that of the server's."""

    rounds: int
    server: float | None
    mean: float
    lowest: float
    highest: float
    spread: float


class AggregatorsSummary(TypedDict):
    """The messages of a run, in its summary.

    ``joules`` is what messages took, ``idle_joules`` what waiting for them did; ``joules_to_target`` has both.
    """

    wan_bytes: int
    messages: int
    lost: int
    contention_seconds: float
    joules: float
    idle_joules: float
    price: float
    wan_bytes_to_target: int | None
    joules_to_target: float | None
    price_to_target: float | None
    accuracy: AggregatorsAccuracy | None
    """Of aggregators' own models when these were last evaluated; None if they never were"""
    score: NotRequired[AggregatorsAccuracy]
    """The same of runs that are judged by another metric"""
    links: list[dict[str, object]]
    """`LinkTotals`"""


def summary(
    links: Sequence[LinkTotals],
    reached: ProgressPoint | None,
    own: Mapping[int, OverClients] = MappingProxyType({}),
    of_server: Mapping[int, float] = MappingProxyType({}),
    score: RunScore = OF_ACCURACY,
) -> AggregatorsSummary | None:
    """The summary; None in runs without tiers.

    ``reached``: the first round that reached the target; None if none did. ``own``, ``of_server``: round -> scores
    after it.
    """
    if not links:
        return None
    found = accuracies(own, of_server)
    totals = AggregatorsSummary(
        wan_bytes=sum(link.nbytes for link in links),
        messages=sum(link.messages for link in links),
        lost=sum(link.lost for link in links),
        contention_seconds=sum(link.contention_seconds for link in links),
        joules=sum(link.joules for link in links),
        idle_joules=sum(link.idle_joules for link in links),
        price=sum(link.price for link in links),
        wan_bytes_to_target=None if reached is None else reached.wan_nbytes,
        joules_to_target=None if reached is None else reached.aggregator_joules,
        price_to_target=None if reached is None else reached.price,
        accuracy=found if score == OF_ACCURACY else None,
        links=[link._asdict() for link in links],
    )
    if score != OF_ACCURACY and found is not None:
        totals["score"] = found
    return totals


def accuracies(own: Mapping[int, OverClients], of_server: Mapping[int, float]) -> AggregatorsAccuracy | None:
    """None if there is none."""
    if not own:
        return None
    round, found = max(own.items())
    return {
        "rounds": round + 1,
        "server": of_server.get(round),
        "mean": found.mean,
        "lowest": found.values[0],
        "highest": found.values[-1],
        "spread": found.spread,
    }
