"""The estimate of a run's costs, from a worker's description of its model and data: bytes, FLOPs, seconds and joules.

Nothing is trained. One typical round is timed by the cost model, and all rounds cost the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import lengths
from coordinator.rounds.budget import (
    BYTES,
    BYTES_DOWN,
    BYTES_UP,
    FLEET_RULES,
    PRICE,
    SECONDS,
    WAN_BYTES,
    RunLimits,
)
from coordinator.rounds.visit import VisitPrice
from costmodel import units
from costmodel.clock import Clock
from costmodel.config import FleetConfig, TierConfig
from costmodel.fleet.availability import Always
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.traces import RecordedDays
from edge.protocol.config import TrainingPlan
from edge.protocol.payload import ITEM_NBYTES
from scenarios.config.schema import Scenario
from scenarios.run.host import time_limit
from scenarios.studies.forecast.typical_visits import EvaluationVisits, PricedVisit, TypicalVisits, payload_nbytes

PATIENCE_SECONDS = 5.0
"""Limit of the computation of one round's virtual time, which takes hours for fleets that are large enough, or whose
clients leave and return often enough."""

LONG_SECONDS = 3600.0
"""Seconds of a message, from which on it is its length that makes a round's events many"""

Ends = tuple[float, float]
"""(least, most)"""


@dataclass(frozen=True)
class RefusedClients:
    clients: int
    why: str


@dataclass(frozen=True)
class Estimate:
    """The costs of a run of ``rounds.max`` rounds, or until its budgets end it.

    A pair is for the (cheapest, most expensive) visit, for methods that choose per visit; all else is for the most
    expensive, and for rounds in which all clients that may only download do so. FLOPs, seconds and joules are those of
    a typical round, whose clients all have the median number of examples and are all available; without the data set
    they are None. Evaluations that are charged are included, with all clients that have examples (in the lower bound of
    bytes, as if all had trained before). Bytes (the upper bound) and FLOPs include whole visits for those that an
    asynchronous policy has in flight at the end. Late visits that go on (``rounds.on_late``) are not included, nor are
    visits that asynchronous policies start in place of lost ones.
    """

    message_down_nbytes: tuple[int, int]
    message_up_nbytes: int
    payload_down_nbytes: tuple[int, int]
    payload_up_nbytes: int
    bytes: Ends
    bytes_down: Ends
    bytes_up: Ends
    nominal_bytes: float
    state_disk_nbytes: int
    vectors_disk_nbytes: int
    flops: float | None
    flops_expected: bool
    """Whether the method's compute plan is an expectation"""
    virtual_seconds: float | None
    """With the messages of aggregators, but as if all of these waited for each other in every round; of those that meet
    the server one by one, as if they took turns"""
    joules: float | None
    """Energy of clients"""
    wan_bytes: int | None
    """Between aggregators and what is above them; None without any (``fleet.tiers``)"""
    price: float | None
    """The price of bytes and energy, as far as the scenario has prices"""
    untimed: str | None
    """Why seconds and joules are None although the data are there"""
    evaluation_visits: EvaluationVisits | None
    """None if evaluations are not charged"""
    refused_clients: list[RefusedClients]
    """The most frequent reason first"""
    rounds: tuple[int, int]
    """(fewest, most)"""
    ended_by: str | None
    """The rule of the budget that ends or may end the run before ``rounds.max``"""
    per_round: Mapping[str, Ends]
    """Costs of a typical round, by the names of those above"""
    varied_by: list[str]
    """Keys by which rounds take more time and energy than this, or less: their clients leave, or rates and speeds
    change"""


def estimate(visits: TypicalVisits) -> Estimate:
    loaded, evaluation, priced = visits.loaded, visits.evaluation(), visits.training()

    def cost(visit: PricedVisit) -> tuple[int, float]:
        return visit.price.work.bytes_down, visit.price.work.flops

    cheapest, dearest = min(priced, key=cost), max(priced, key=cost)
    totals = _bytes(visits, cheapest.price, dearest.price, evaluation)
    fleet, refused = visits.setup.fleet, Counter(visits.setup.refused.values())
    untimed = None
    if len(visits.description.samples):
        trained = visits.per_round * loaded.scenario.rounds.max + visits.cut_at_end
        typical = _prices_of_parts(visits) or [dearest.price]
        flops = sum(price.work.flops for price in typical) / len(typical)
        totals["flops"] = (flops * trained + evaluation.flops,) * 2
        try:
            with time_limit(PATIENCE_SECONDS):
                # A round in which clients hold a version, if downloads are encoded against it.
                price = (cheapest if loaded.scenario.codec.down else dearest).price
                part_prices = _prices_of_parts(visits)
                totals |= _timed(visits, fleet, part_prices or [price] * len(visits.cohort), evaluation)
        except TimeoutError:
            reason = _why_long(visits, dearest.price)
            untimed = f"not computed within {PATIENCE_SECONDS:g} s: {reason}"
    limit, meetings = loaded.scenario.rounds.max, _meetings(visits)
    if meetings is not None:
        seconds = totals[SECONDS][0] / limit if SECONDS in totals else None
        rounds_between, cycles = _cycles(loaded.scenario, seconds)
        totals |= {
            name: (amount * cycles[0], amount * cycles[1])
            for name, amount in ((WAN_BYTES, meetings.nbytes), (PRICE, meetings.price))
        }
        if seconds is not None:
            totals[SECONDS] = (cycles[0] * (rounds_between * seconds + meetings.seconds),) * 2
    prices = loaded.scenario.fleet.price
    if prices.are_known:
        joules = totals.get("joules", (0.0, 0.0))
        before = totals.get(PRICE, (0.0, 0.0))
        least, most = (before[side] + prices.of(totals[BYTES][side], joules[side]) for side in (0, 1))
        totals[PRICE] = least, most
    per_round = {name: (least / limit, most / limit) for name, (least, most) in totals.items()}
    rounds, ended_by = _rounds(visits, per_round)
    if ended_by is not None:
        totals = _until_budget(loaded.scenario.budget, per_round, rounds, ended_by)
    state_disk_nbytes, vectors_disk_nbytes = (files * nbytes for files, nbytes in disk_files(visits))
    return Estimate(
        message_down_nbytes=(cheapest.price.work.bytes_down, dearest.price.work.bytes_down),
        message_up_nbytes=dearest.price.work.bytes_up,
        payload_down_nbytes=(cheapest.payload_down, dearest.payload_down),
        payload_up_nbytes=dearest.payload_up,
        bytes=totals[BYTES],
        bytes_down=totals[BYTES_DOWN],
        bytes_up=totals[BYTES_UP],
        nominal_bytes=totals["nominal_bytes"][1],
        state_disk_nbytes=state_disk_nbytes,
        vectors_disk_nbytes=vectors_disk_nbytes,
        flops=totals["flops"][1] if "flops" in totals else None,
        flops_expected=not dearest.price.exact,
        virtual_seconds=totals[SECONDS][1] if SECONDS in totals else None,
        joules=totals["joules"][1] if "joules" in totals else None,
        wan_bytes=round(totals[WAN_BYTES][1]) if WAN_BYTES in totals else None,
        price=totals[PRICE][1] if PRICE in totals else None,
        untimed=untimed,
        evaluation_visits=evaluation if evaluation.evaluations else None,
        refused_clients=[RefusedClients(count, reason) for reason, count in refused.most_common()],
        rounds=rounds,
        ended_by=ended_by,
        per_round=per_round,
        varied_by=varied_by(loaded.scenario, visits.setup.inputs.files),
    )


def varied_by(scenario: Scenario, files: FleetInputs) -> list[str]:
    """Keys of the fleet by which rounds differ from a typical one, but for the jitter of every fleet."""
    fleet, tiers = scenario.fleet, scenario.fleet.tiers
    tables: list[tuple[str, FleetConfig | TierConfig]] = [("fleet", fleet)]
    tables += [("fleet.tiers", tiers)] if tiers.count else []
    of_links = [
        (f"{table}.{key}", is_used)
        for table, section in tables
        for key, is_used in (
            ("availability", section.availability.form != "always"),
            ("bandwidth", section.bandwidth.form != "constant" or section.bandwidth.outages),
        )
    ]
    recorded = isinstance(files.trace, RecordedDays)
    of_fleet = {
        "fleet.trace": recorded,
        "fleet.gateways.bandwidth": fleet.gateways.count > 0 and fleet.gateways.bandwidth.form != "constant",
        "fleet.crashes_per_hour": fleet.crashes_per_hour > 0,
        "fleet.battery": fleet.battery is not None,
        "fleet.redraw": fleet.redraw > 0,
        "fleet.rates": fleet.rates is not None,
        "fleet.mode_rounds": fleet.mode_rounds > 0,
        "fleet.speed": fleet.speed.kind != "constant" or fleet.speed.throttle_after is not None,
    }
    return [key for key, is_used in (*of_links, *of_fleet.items()) if is_used]


def _why_long(visits: TypicalVisits, price: VisitPrice) -> str:
    """The reason why a round has many events: messages that last for long on links that change, or what else varies."""
    clients, fleet = visits.cohort, visits.setup.fleet
    rates = fleet.down[clients], fleet.up[clients]
    slowest = min(float(speeds.min()) for speeds in rates)
    seconds = 8 * max(price.work.bytes_down, price.work.bytes_up) / slowest
    if fleet.config.bandwidth.form != "constant" and seconds > LONG_SECONDS:
        took = f"at {units.format_rate(slowest)} a message takes {units.format_seconds(seconds)}"
        return f"{took}, in which the rates of fleet.bandwidth change again and again"
    of = ", ".join(varied_by(visits.setup.scenario, visits.setup.inputs.files)) or f"{len(clients):,} visits"
    return f"a round has too many events, of {of}"


class _Meetings(NamedTuple):
    """The costs of the messages of aggregators from one step of the server to the next."""

    nbytes: int
    price: float
    seconds: float


def _meetings(visits: TypicalVisits) -> _Meetings | None:
    """The meetings of all aggregators, whose rounds take no time themselves; None without any."""
    tiers = visits.setup.tiers(visits.server, Clock(visits.setup.fleet))
    if tiers is None:
        return None
    end, record = 0.0, RoundRecord(0, 0.0)
    tiers.choose(0)
    tiers.send_down(record, 0.0)
    for number in range(tiers.schedule.steps_above(tiers.clock.levels - 1)):
        tiers.note_updates(np.flatnonzero(tiers.present).tolist())
        _, end = tiers.meet(RoundRecord(number, 0.0), tiers.ready)
    return _Meetings(tiers.spent_bytes, tiers.spent_price, end)


def _cycles(scenario: Scenario, seconds: float | None) -> tuple[int, Ends]:
    """(rounds of an aggregator between two steps of the server, how often all aggregators meet it in the whole run).

    ``seconds``: of a typical round; None: unknown, so that those with an interval in seconds may meet after each.
    """
    schedule, limit = scenario.tiers, scenario.rounds.max
    rounds = schedule.rounds if seconds is None else max(schedule.rounds, math.ceil(schedule.seconds / seconds))
    rounds *= schedule.steps_above(1)
    if schedule.is_asynchronous:
        # A round is one step of one aggregator, but the first may be one of all; models also go down after the last.
        cycles = limit / (rounds * scenario.fleet.tiers.count)
        return rounds, (cycles, cycles + 1)
    return rounds, (0.0 if schedule.seconds and seconds is None else limit / rounds, limit / rounds)


def _bytes(
    visits: TypicalVisits, cheapest: VisitPrice, dearest: VisitPrice, evaluation: EvaluationVisits
) -> dict[str, Ends]:
    clients, rounds, cut = visits.per_round, visits.loaded.scenario.rounds.max, visits.cut_at_end
    low, high, (others, download) = cheapest.work, dearest.work, visits.download_only
    downloads, evaluations = len(others), len(evaluation.clients) * evaluation.evaluations
    down = (
        low.bytes_down * clients * rounds + evaluation.bytes_down_later * evaluations,
        (high.bytes_down * clients + download.work.bytes_down * downloads) * rounds
        + high.bytes_down * cut
        + evaluation.work.bytes_down * evaluations,
    )
    evaluated = evaluation.work.bytes_up * evaluations
    least = low.bytes_up if visits.is_fixed_length else 0
    up = least * clients * rounds + evaluated, high.bytes_up * (clients * rounds + cut) + evaluated
    nominal = (dearest.nominal_bytes * clients + download.nominal_bytes * downloads) * rounds
    both = down[0] + up[0], down[1] + up[1]
    return {BYTES: both, BYTES_DOWN: down, BYTES_UP: up, "nominal_bytes": (nominal, nominal)}


def _prices_of_parts(visits: TypicalVisits) -> list[VisitPrice]:
    """Prices of the visits of a typical round whose clients hold parts of the model; none where all hold the whole."""
    submodels, last = visits.server.setup.submodels, visits.loaded.scenario.rounds.max - 1
    if submodels is None:
        return []
    variants = [submodels.variant(client, last) for client in visits.cohort]
    prices = {variant: visits.price_of(variant).price for variant in variants}
    return [prices[variant] for variant in variants]


def _timed(
    visits: TypicalVisits, fleet: Fleet, prices: Sequence[VisitPrice], evaluation: EvaluationVisits
) -> dict[str, Ends]:
    """The virtual seconds and joules of ``rounds.max`` rounds, by name."""
    # A round selects available clients: one that is away at t = 0 says nothing of it.
    clock = Clock(replace(fleet, behaviour=replace(fleet.behaviour, availability=Always())))

    def together(clients: Sequence[int], prices: Sequence[VisitPrice]) -> tuple[float, float]:
        """(virtual seconds, joules) of visits that begin together."""
        conditions = clock.fleet.of_parts(clock.conditions(clients, 0), [price.rates for price in prices])
        works = [price.work for price in prices]
        timeline = clock.solve(np.zeros(len(clients)), works, conditions)
        end = float(timeline.end.max())
        return end, float((timeline.joules_spent + timeline.waiting_joules(end, conditions)).sum())

    cohort, (others, download) = visits.cohort, visits.download_only
    begun = [*prices, *[download] * len(others)]
    rounds, rounds_of_cohort = visits.loaded.scenario.rounds.max, visits.per_round / len(cohort)
    totals = [amount * rounds * rounds_of_cohort for amount in together([*cohort, *others], begun)]
    if evaluation.evaluations:
        evaluated = VisitPrice(evaluation.work, TrainingPlan(0, 0, 0), 0.0, 0.0)
        spent = together(evaluation.clients, [evaluated] * len(evaluation.clients))
        totals = [total + amount * evaluation.evaluations for total, amount in zip(totals, spent, strict=True)]
    return {name: (total, total) for name, total in zip((SECONDS, "joules"), totals, strict=True)}


def _rounds(visits: TypicalVisits, per_round: Mapping[str, Ends]) -> tuple[tuple[int, int], str | None]:
    """(fewest, most) rounds within the budgets, and the rule of the one that ends the run before ``rounds.max``.

    Clients with budgets of their own end the run after the fewest rounds if one of them takes part in every round, and
    after the most if they take turns.
    """
    scenario, limit = visits.loaded.scenario, visits.loaded.scenario.rounds.max
    spans: dict[str, Ends] = {}
    for rule in (SECONDS, *FLEET_RULES, WAN_BYTES, PRICE):
        least, most = per_round.get(rule, (0.0, 0.0))
        budget, client_budget = (getattr(limits, rule, None) for limits in (scenario.budget, scenario.budget.client))
        if budget is not None and least:
            spans[rule] = budget / most, budget / least
        if client_budget is not None and least:
            # A visit takes a round's seconds at most, and its share of the other amounts.
            clients = 1 if rule == SECONDS else visits.per_round
            turns = scenario.data.clients / visits.per_round
            spans[f"client.{rule}"] = client_budget * clients / most, client_budget * clients / least * turns
    fewest, most_rounds = (min([limit, *(math.floor(span[side] + 1e-9) for span in spans.values())]) for side in (0, 1))
    ended_by = min(spans, key=lambda rule: spans[rule][0]) if fewest < limit else None
    return (fewest, most_rounds), ended_by


def _until_budget(
    budget: RunLimits, per_round: Mapping[str, Ends], rounds: tuple[int, int], ended_by: str
) -> dict[str, Ends]:
    """The totals of a run that a budget ends after (fewest, most) ``rounds``."""
    fewest, highest = (count + (ended_by == SECONDS) for count in rounds)  # a round that is cut is charged till then
    totals = {}
    for name, (least, most) in per_round.items():
        limit = getattr(budget, name, None) or math.inf
        low, high = sorted(min(amount, limit) for amount in (least * highest, most * fewest))
        is_exact = name in (BYTES, BYTES_DOWN, BYTES_UP)
        totals[name] = (round(low), round(high)) if is_exact else (0.0, min(most * highest, limit))
    return totals


def disk_files(visits: TypicalVisits) -> tuple[tuple[int, int], tuple[int, int]]:
    """(number of files, bytes of each) of client states, and of the vectors that the server stores per client.

    There is a client state per client, and a second one per client of a round until its commit; if states hold only
    blocks of the model, all download-only visits of a round share one file. Of the server's vectors there is a file per
    client, and those that a round replaces and that the round before has replaced, which the older of two checkpoints
    needs.
    """
    loaded, layout = visits.loaded, visits.description.layout
    clients, uncommitted = loaded.scenario.data.clients, len(visits.download_only[0])
    upwards = visits.setup.codecs.up
    kept = upwards.client_state(visits.server.up_shapes())
    if not loaded.method.keeps_slots and not kept:
        uncommitted = min(uncommitted, 1)
    state = layout.nbytes(visits.job.kept_blocks) + layout.nbytes(upwards.references(visits.job.kept_blocks))
    state += ITEM_NBYTES * loaded.method.state_numbers(loaded.options, layout)
    state += ITEM_NBYTES * sum(size for sizes in kept.values() for size in sizes.values())
    states = clients + loaded.scenario.rounds.participants + uncommitted
    return (states, state), (clients + 2 * visits.per_round, payload_nbytes(lengths(visits.server.store_shapes())))
