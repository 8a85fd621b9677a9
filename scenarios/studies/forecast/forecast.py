"""The forecast of a run's costs: its first rounds without training (`scenarios.run.untrained`), the rest at their pace.

A run of few rounds is played to its end. Of a longer one some rounds are played, among them the first, which the run
will have as it stands here, and whole cycles of what repeats (meetings of aggregators, charged evaluations, periods of
a method). The later half of them, behind most warm-ups, is the pace of the rounds that follow. Nothing depends on the
host, unless a fleet is so uneasy that the rounds take longer than `PATIENCE_SECONDS` to compute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from coordinator.aggregation.server import ServerStrategy
from coordinator.records.schema import EVALUATE, NOT_SCORED, Lengths, lengths
from coordinator.rounds.amounts import NOMINAL_BYTES
from coordinator.rounds.budget import (
    BYTES,
    BYTES_DOWN,
    BYTES_UP,
    EPSILON,
    FLEET_RULES,
    FLOPS,
    JOULES,
    PRICE,
    ROUNDS,
    SECONDS,
    WAN_BYTES,
)
from coordinator.rounds.visit import PlannedVisit
from costmodel import units
from costmodel.clock import Clock
from costmodel.config import FleetConfig, TierConfig
from costmodel.fleet.carbon import intensity
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.traces import RecordedDays
from costmodel.network.links import Links
from edge.protocol.payload import ITEM_NBYTES
from scenarios.config.schema import Scenario
from scenarios.run.host import time_limit
from scenarios.run.setup import Setup
from scenarios.run.untrained import UntrainedRound, UntrainedRun

MOST_VISITS = 500
"""Training visits that are played, unless the fewest rounds have more"""
MOST_ROUNDS = 20
"""Rounds that are played; more where a cycle has more"""
PATIENCE_SECONDS = 5.0
"""Limit of the computation of rounds, which takes hours for fleets that are large enough, or whose clients leave and
return often enough"""
LONG_SECONDS = 3600.0
"""Seconds of a message, from which on it is its length that makes a round's events many"""
NOMINAL = NOMINAL_BYTES.key
BUSY = "busy_s"
"""Of all visits together"""

Amounts = Mapping[str, float]
"""Key of a budget, or `NOMINAL` or `BUSY` -> amount"""


@dataclass(frozen=True)
class RefusedClients:
    clients: int
    why: str


@dataclass(frozen=True)
class EvaluationVisits:
    """The visits of evaluations that are charged, of all clients with examples."""

    evaluations: int
    """In a run of ``rounds.max`` rounds"""
    clients: int
    message_down_nbytes: int
    """The largest"""
    message_up_nbytes: int
    bytes: int
    """Of all of them, as if all clients took part in each as in those that were played"""


@dataclass(frozen=True)
class ExchangedSteps:
    """What a visit of a model that is cut exchanges while it trains (``split``), among its messages."""

    trips: int
    bytes_down: int
    bytes_up: int
    device_flops: float
    server_flops: float


@dataclass(frozen=True)
class Forecast:
    """The costs of a run of ``rounds.max`` rounds, or until its budgets end it.

    Without the data set FLOPs, seconds and joules are None, and each client counts with one example. Pairs are of the
    (smallest, largest) message of the visits that were played.
    """

    message_down_nbytes: tuple[int, int]
    message_up_nbytes: int
    payload_down_nbytes: tuple[int, int]
    payload_up_nbytes: int
    bytes: int
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    state_disk_nbytes: int
    vectors_disk_nbytes: int
    flops: float | None
    flops_expected: bool
    """Whether the method's compute plan is an expectation"""
    virtual_seconds: float | None
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
    rounds: int
    """Whole rounds within the budgets"""
    ended_by: str | None
    """The rule that ends the run before ``rounds.max``"""
    rounds_played: int
    first_round: Amounts
    """The costs of the first round, by the names of those above"""
    per_round: Amounts
    """The means of the rounds by which those that were not played are counted"""
    varied_by: list[str]
    """Keys by which rounds take more time and energy than this, or less: their clients leave, or rates and speeds
    change"""
    co2e_grams: float | None = None
    """Of ``joules``, if the scenario has a carbon intensity"""
    exchange: ExchangedSteps | None = None
    """Of the visit that exchanges most; None where clients train whole models"""
    epsilon: float | None = None
    """Differential privacy spent after ``rounds``; where it depends on who takes part, if clients take turns"""
    guarantee: str | None = None
    """Its meaning in words; None without differential privacy"""


class PlayedRounds:
    """The first rounds of a run, untrained."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup.with_examples
        self.untimed: str | None = None
        """Why seconds and joules are not known"""
        self.has_data = bool(len(setup.description.samples))
        self.run = self._played(Clock(self.setup.fleet), PATIENCE_SECONDS)
        if not self.run.rounds and self.run.stopped_by is None:
            self.untimed = f"not computed within {PATIENCE_SECONDS:g} s: {self._why_long()}"
            self.run = self._played(Clock(_plain(self.setup.fleet)))
        ends = [0.0, *(round.virtual_seconds for round in self.rounds)]
        self.amounts = [
            self._amounts(round, end - start) for round, start, end in zip(self.rounds, ends, ends[1:], strict=False)
        ]
        """Of each round"""

    @property
    def rounds(self) -> Sequence[UntrainedRound]:
        return self.run.rounds

    @property
    def is_whole(self) -> bool:
        """Whether the run was played to its end."""
        return self.run.stopped_by is not None

    def _played(self, clock: Clock, patience: float | None = None) -> UntrainedRun:
        run = UntrainedRun(self.setup, clock)
        try:
            with nullcontext() if patience is None else time_limit(patience):
                run.play(self.most)
        except TimeoutError:
            pass  # the rounds that have ended until now
        return run

    @property
    def most(self) -> int:
        """Rounds to play."""
        rules = self.setup.scenario.rounds
        visits = rules.visits_per_round if rules.is_asynchronous else rules.cohort
        # A second round of most clients may be another: they hold versions and vectors then.
        fewest = 1 if 2 * visits <= self.setup.scenario.data.clients else 2
        cycles = 2 * self.cycle if self.cycle > 1 else 1
        return min(rules.max, max(fewest, min(MOST_ROUNDS, MOST_VISITS // visits), cycles))

    @property
    def cycle(self) -> int:
        """Rounds after which the costs of rounds repeat."""
        scenario, loaded = self.setup.scenario, self.setup.loaded
        meetings = scenario.tiers.cycle if scenario.fleet.tiers.count else 1
        evaluations = scenario.eval.every if scenario.eval.charged else 1
        period = loaded.method.objective.costs.nominal_period(loaded.options)
        return math.lcm(max(meetings, 1), evaluations, period or 1)

    @property
    def contention(self) -> float:
        """The share of the seconds of all messages that was lost since others used the same links, in [0, 1]."""
        visits = [visit for round in self.rounds for visit in round.record.visits.in_order()]
        spent = sum(max(visit.down_end_s - visit.start_s, 0.0) for visit in visits)
        spent += sum(max(visit.up_end_s - visit.compute_end_s, 0.0) for visit in visits)
        return sum(visit.shared_s for visit in visits) / spent if math.isfinite(spent) and spent > 0 else 0.0

    @property
    def later(self) -> Sequence[Amounts]:
        """The amounts of the rounds that those after them resemble."""
        count = max(1, len(self.amounts) // 2)
        return self.amounts[-max(count // self.cycle * self.cycle, min(self.cycle, len(self.amounts))) :]

    def _amounts(self, round: UntrainedRound, seconds: float) -> Amounts:
        row, aggregators = round.row, round.record.aggregators
        amounts: dict[str, float] = {
            BYTES: row.bytes_down + row.bytes_up,
            BYTES_DOWN: row.bytes_down,
            BYTES_UP: row.bytes_up,
            NOMINAL: row.nominal_bytes,
        }
        scenario = self.setup.scenario
        if scenario.fleet.tiers.count:
            amounts[WAN_BYTES] = sum(message.nbytes for message in aggregators)
        if self.has_data:
            amounts[FLOPS] = row.flops
        if self.has_data and self.untimed is None:
            amounts |= {SECONDS: seconds, JOULES: row.joules, BUSY: row.busy_s}
        prices = scenario.fleet.price
        if scenario.fleet.tiers.count or prices.are_known:
            own = prices.of(row.bytes_down + row.bytes_up, amounts.get(JOULES, 0.0)) if prices.are_known else 0.0
            amounts[PRICE] = own + sum(message.price for message in aggregators)
        return amounts

    def _why_long(self) -> str:
        """The reason why a round has many events: messages that last for long on links that change, or what varies."""
        fleet, work = self.setup.fleet, self.run.run.prepare(_any_client(self.run), 0).work
        slowest = min(float(speeds.min()) for speeds in (fleet.down, fleet.up))
        seconds = 8 * max(work.bytes_down, work.bytes_up) / slowest
        if fleet.config.bandwidth.form != "constant" and seconds > LONG_SECONDS:
            took = f"at {units.format_rate(slowest)} a message takes {units.format_seconds(seconds)}"
            return f"{took}, in which the rates of fleet.bandwidth change again and again"
        cohort = self.setup.scenario.rounds.cohort
        of = ", ".join(varied_by(self.setup.scenario, self.setup.inputs.files)) or f"{cohort:,} visits"
        return f"a round has too many events, of {of}"

    # --- what the run will have cost ----------------------------------------------------------------------------------

    def is_certain(self, rounds: int) -> bool:
        """Whether so many rounds take what they take here: they were played, and depend on nothing that is learned."""
        loaded, run = self.setup.loaded, self.run.run
        chooses = bool(loaded.method.objective.traffic.choices) or self.setup.scenario.rounds.selection != "uniform"
        learns = chooses or not loaded.method.decides_without_updates(loaded.options)
        return rounds <= len(self.rounds) and run.pricing.is_fixed_length and not learns

    def until(self, rounds: int) -> Amounts:
        """The costs of so many rounds."""
        played = self.amounts[:rounds]
        names = self.amounts[0] if self.amounts else {}
        pace, rest = self.pace, rounds - len(played)
        return {name: math.fsum(each[name] for each in played) + pace[name] * rest for name in names}

    @property
    def pace(self) -> Amounts:
        """The costs of a round after those that were played."""
        later = self.later
        return {name: fmean(each[name] for each in later) for name in (later[0] if later else ())}

    def end(self) -> tuple[int, str | None]:
        """(whole rounds of the run, the rule that ends it before ``rounds.max``)."""
        most, stopped_by = self.setup.scenario.rounds.max, self.run.stopped_by
        if stopped_by is not None:
            cut = sum(bool(round.record.cut_by and round.row.participants) for round in self.rounds)
            whole = self.run.run.rounds - cut
            return whole, None if stopped_by == ROUNDS else stopped_by
        if not self.amounts:
            return most, None
        ends = dict(self._rounds_by_rule())
        rule = min(ends, key=lambda name: ends[name], default=None)
        return (most, None) if rule is None or ends[rule] >= most else (ends[rule], rule)

    def _rounds_by_rule(self) -> Iterator[tuple[str, int]]:
        """Key of a budget -> whole rounds that it pays for; a client's own as if clients took turns."""
        scenario, pace, played = self.setup.scenario, self.pace, self.until(len(self.amounts))
        for rule in (SECONDS, *FLEET_RULES, WAN_BYTES, PRICE):
            budget, own = (getattr(limits, rule, None) for limits in (scenario.budget, scenario.budget.client))
            limits = {rule: budget}
            if own is not None:
                limits[f"client.{rule}"] = own * scenario.data.clients
            for key, limit in limits.items():
                name = BUSY if key == f"client.{SECONDS}" else rule
                if limit is not None and pace.get(name):
                    left = (limit - played[name]) / pace[name]
                    yield key, len(self.amounts) + max(0, math.floor(left + 1e-9))
        accountant = self.run.run.privacy
        if accountant is not None and accountant.limit is not None:
            yield EPSILON, self._turns(accountant.rounds_within(accountant.limit, scenario.rounds.max))

    def _turns(self, visits: int) -> int:
        """Rounds in which each client has so many visits, if clients take turns; of privacy by rounds these rounds."""
        accountant = self.run.run.privacy
        assert accountant is not None
        most = self.setup.scenario.rounds.max
        return min(most, visits if accountant.follows_from_rounds else math.floor(visits / accountant.rate))

    def epsilon(self, rounds: int) -> float | None:
        """Epsilon after so many rounds, as of `Forecast`; None without noise."""
        accountant = self.run.run.privacy
        if accountant is None or not accountant.config.noise:
            return None
        visits = rounds if accountant.follows_from_rounds else math.ceil(rounds * accountant.rate)
        return accountant.after_visits(visits)


def forecast(setup: Setup) -> Forecast:
    """The forecast of a run. ScenarioError for what a run refuses."""
    return forecast_of(PlayedRounds(setup))


def forecast_of(played: PlayedRounds) -> Forecast:
    """The forecast from rounds that were played."""
    run, setup, refused = played.run.run, played.setup, Counter(played.setup.refused.values())
    rounds, ended_by = played.end()
    totals = dict(played.until(len(played.amounts) if played.is_whole else rounds))
    if ended_by == SECONDS and not played.is_whole:  # the round that is cut is charged until then
        limit = setup.scenario.budget.virtual_seconds
        assert limit is not None
        share = (limit - totals[SECONDS]) / played.pace[SECONDS]
        totals = {name: amount + share * played.pace[name] for name, amount in totals.items()}
    visits = [visit for round in played.rounds for visit in round.visits] or [run.prepare(_any_client(played.run), 0)]
    down, sent = ([getattr(visit.work, name) for visit in visits] for name in ("bytes_down", "bytes_up"))
    payloads = [payload_nbytes(visit.price.down) for visit in visits]
    state_disk, vectors_disk = (files * nbytes for files, nbytes in disk_files(setup, played.run.server_side))

    wan_bytes, joules, carbon = totals.get(WAN_BYTES), totals.get(JOULES), intensity(setup.scenario.fleet.carbon)
    return Forecast(
        message_down_nbytes=(min(down), max(down)),
        message_up_nbytes=max(sent),
        payload_down_nbytes=(min(payloads), max(payloads)),
        payload_up_nbytes=max(payload_nbytes(visit.price.up) for visit in visits),
        bytes=round(totals.get(BYTES, 0)),
        bytes_down=round(totals.get(BYTES_DOWN, 0)),
        bytes_up=round(totals.get(BYTES_UP, 0)),
        nominal_bytes=totals.get(NOMINAL, 0.0),
        state_disk_nbytes=state_disk,
        vectors_disk_nbytes=vectors_disk,
        flops=totals.get(FLOPS),
        flops_expected=not all(visit.price.exact for visit in visits),
        virtual_seconds=totals.get(SECONDS),
        joules=joules,
        wan_bytes=None if wan_bytes is None else round(wan_bytes),
        price=totals.get(PRICE),
        untimed=played.untimed,
        evaluation_visits=_evaluation_visits(played),
        refused_clients=[RefusedClients(count, reason) for reason, count in refused.most_common()],
        rounds=rounds,
        ended_by=ended_by,
        rounds_played=len(played.rounds),
        first_round=played.amounts[0] if played.amounts else {},
        per_round=played.pace,
        varied_by=varied_by(setup.scenario, setup.inputs.files),
        exchange=_exchanged(visits),
        epsilon=played.epsilon(rounds),
        guarantee=None if played.run.run.privacy is None else played.run.run.privacy.guarantee,
        co2e_grams=None if carbon is None or joules is None else carbon.co2e_grams(joules),
    )


def _any_client(run: UntrainedRun) -> int:
    """A client that can take part, or one that cannot if none can."""
    return next(iter(run.run.candidates), 0)


def _plain(fleet: Fleet) -> Fleet:
    """The fleet with clients that are always there, on links that are never a bottleneck."""
    sites = (math.inf,) * len(fleet.links.site_down)
    return replace(fleet, links=Links(site_down=sites, site_up=sites), behaviour=ClientDynamics())


def _exchanged(visits: Sequence[PlannedVisit]) -> ExchangedSteps | None:
    """Of the visit with the most bytes."""
    most = max(visits, key=lambda visit: visit.work.bytes_up)
    steps = most.work.exchange
    if steps is None:
        return None
    return ExchangedSteps(steps.trips, steps.bytes_down, steps.bytes_up, most.work.flops, most.price.server_flops)


def _evaluation_visits(played: PlayedRounds) -> EvaluationVisits | None:
    run, config = played.run.run, played.setup.scenario.eval
    if run.charged_examples is None:
        return None
    clients = np.flatnonzero(run.charged_examples).tolist()
    works = [run.prepare_evaluation(client).work for client in clients]
    evaluations = math.ceil(played.setup.scenario.rounds.max / config.every)
    spent: list[float] = []
    for each in played.rounds:
        columns = (each.record.visits[name] for name in ("kind", "bytes_down", "bytes_up"))
        spent += [down + up for kind, down, up in zip(*columns, strict=True) if kind in (EVALUATE, NOT_SCORED)]
    made = sum(EVALUATE in ended.record.visits["kind"] for ended in played.rounds)
    nbytes = sum(spent) / made if made else sum(work.bytes_down + work.bytes_up for work in works)
    return EvaluationVisits(
        evaluations,
        len(clients),
        max((work.bytes_down for work in works), default=0),
        max((work.bytes_up for work in works), default=0),
        round(nbytes * evaluations),
    )


def varied_by(scenario: Scenario, files: FleetInputs) -> list[str]:
    """Keys of the fleet by which rounds differ from each other, but for the jitter of every fleet."""
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


# --- messages and files -----------------------------------------------------------------------------------------------


def payload_nbytes(lengths: Lengths) -> int:
    return sum(nbytes for by_key in lengths.values() for nbytes in by_key.values())


def median_samples(setup: Setup) -> int:
    """Training examples of a typical client."""
    samples = setup.description.samples
    return int(np.median(samples[samples > 0]))


def visits_per_round(setup: Setup) -> int:
    """Training visits of a round."""
    rules = setup.scenario.rounds
    return rules.visits_per_round if rules.is_asynchronous else min(rules.cohort, setup.scenario.data.clients)


def disk_files(setup: Setup, server: ServerStrategy) -> tuple[tuple[int, int], tuple[int, int]]:
    """(number of files, bytes of each) of client states, and of the vectors that the server stores per client.

    There is a client state per client, and a second one per client of a round until its commit; if states hold only
    blocks of the model, all download-only visits of a round share one file. Of the server's vectors there is a file per
    client, and those that a round replaces and that the round before has replaced, which the older of two checkpoints
    needs.
    """
    loaded, layout, per_round = setup.loaded, setup.description.layout, visits_per_round(setup)
    clients = loaded.scenario.data.clients
    uncommitted = len(server.download_only_clients(0, list(range(min(per_round, clients)))))
    upwards, kept_blocks = setup.codecs.up, setup.job.kept_blocks
    kept = upwards.client_state(server.up_shapes())
    if not loaded.method.keeps_slots and not kept:
        uncommitted = min(uncommitted, 1)
    state = layout.nbytes(kept_blocks) + layout.nbytes(upwards.references(kept_blocks))
    state += ITEM_NBYTES * loaded.method.state_numbers(loaded.options, layout)
    state += ITEM_NBYTES * sum(size for sizes in kept.values() for size in sizes.values())
    states = clients + loaded.scenario.rounds.participants + uncommitted
    return (states, state), (clients + 2 * per_round, payload_nbytes(lengths(server.store_shapes())))
