"""The tables of a report: what runs and groups achieved, what they cost, and what went to waste.

A first cell is the label of a run or group, beside which the page draws its line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from coordinator.records.schema import ENERGY, FAULTY, KINDS, LEFTOVER, NO_TRAINING
from coordinator.rounds import amounts
from coordinator.rounds.amounts import Amount
from edge.protocol.better import LOWER
from edge.protocol.messages import VALIDATION
from scenarios.report import drawn_times, readings
from scenarios.report.columns import BYTES, COUNT, FLOPS, JOULES, MISSING, MONEY, PERCENT, SECONDS, Column, Quantity
from scenarios.report.readings import Reading
from scenarios.report.run_reader import RecordedRun, RunGroup
from scenarios.report.tables import Cell, Number, Table, TableColumn, of_readings
from scenarios.run import aggregators, client_values, visits
from scenarios.run.progress import Limits, Mean, PairTest, percent
from scenarios.run.score import RunScore

RATIO, CHANGE = Quantity({"": 1}, 3), Quantity({"%": Decimal("0.01")}, 1)
SHARE = Quantity({"%": Decimal("0.01")}, 1)
MOST_FAULTY = 20
"""Number of clients with invalid updates that are named"""
Runs = Sequence[RecordedRun]
_trail_of = operator.attrgetter("trail")


def results(runs: Runs, target: float | None, common: Limits, nominal: bool) -> Table:
    """What each run achieved and took, also within the ``common`` amounts; nominal costs only if they are shown."""
    columns: list[tuple[Reading[RecordedRun], TableColumn]] = []

    def add(over: str, reading: Reading[RecordedRun], heading: str | None = None) -> None:
        column = TableColumn.of(reading, over=over)
        columns.append((reading, column if heading is None else replace(column, heading=heading)))

    score = score_of_all(runs)
    final, best = readings.of_score(score)
    add(score.title, final.of(_trail_of), "final")
    add(score.title, best.of(_trail_of), "best")
    add("Length", readings.COMPLETED)
    if target is not None:
        reaching = f"To {score.text_of_target(target)}"
        add(reaching, readings.until(amounts.VIRTUAL_SECONDS, target).of(_trail_of), "virtual time")
        add(reaching, readings.until(amounts.BYTES, target).of(_trail_of), "bytes, real")
        if nominal:
            add(reaching, readings.until(amounts.NOMINAL_BYTES, target).of(_trail_of), "nominal")
        for amount in readings.of_some(run.trail for run in runs):
            add(reaching, readings.until(amount, target).of(_trail_of), amount.heading)
    for amount, limit in common.items():
        add(f"{score.title} at", readings.within(amount, limit, score).of(_trail_of), amount.shown(limit))
    add("Device work", readings.WORK, "real" if nominal else None)
    if nominal:
        add("Device work", readings.NOMINAL_WORK)
    add("Energy", readings.total_of(amounts.ENERGY).of(_trail_of), amounts.ENERGY.name)
    if any(readings.PAID.value(run) is not None for run in runs):
        add("Price", readings.PAID)
        add("Price", readings.PAID_A_MONTH)
    if any(readings.CO2E.value(run) is not None for run in runs):
        add("CO2e", readings.CO2E, "of the run")
    add("This machine", readings.WALL_SECONDS)
    above = {readings.until(amount, target or 0.0).key: amount for amount in readings.OF_SOME.values()}

    def cell(reading: Reading[RecordedRun], run: RecordedRun) -> Cell:
        return MISSING if reading.key in above and not _has(above[reading.key], run) else reading.value(run)

    return Table(
        "results",
        [TableColumn("method"), *(column for _, column in columns), TableColumn("stopped by", is_left=True)],
        [[run.label, *(cell(reading, run) for reading, _ in columns), run.stopped_by()] for run in runs],
    )


def over_clients(runs: Runs) -> Table | None:
    """The scores of clients at the last evaluation; None if no run has evaluated clients."""
    found = {run.label: last for run in runs if (last := client_values.last(run.evaluations, run.score))}
    return of_readings("last evaluation", readings.over_clients(score_of_all(runs)), found) if found else None


def best_rounds(runs: Runs) -> Table | None:
    """The rounds that were best on validation examples; None if no run has evaluated these."""
    found = {run.label: best for run in runs if (best := run.best_round) and best.selected_by == VALIDATION}
    every = readings.at_best_round(score_of_all(runs))
    shown = [each for each in every if any(each.value(best) is not None for best in found.values())]
    return of_readings("best validation round", shown, found) if found else None


def by_device(runs: Runs, at_best: bool = False) -> Table | None:
    """The scores of clients by kind of device at the last evaluation, or at the best validation round.

    None if no run has any.
    """
    score = score_of_all(runs)
    shown = readings.over_clients(score)
    columns = [
        TableColumn("best validation round" if at_best else "last evaluation"),
        TableColumn("device", is_left=True),
        *(TableColumn.of(each, better=None) for each in shown),
    ]
    rows: list[list[Cell]] = []
    for run in runs:
        best = run.best_round
        if at_best and (best is None or best.selected_by != VALIDATION):
            continue
        found = client_values.at_round(run.by_device, best.round if at_best and best is not None else None)
        rows += [[run.label, device, *(each.value(of) for each in shown)] for device, of in found.items()]
    return Table(f"{score.metric} of clients by device", columns, rows) if rows else None


def device_means(found: Mapping[str, Sequence[Mapping[str, float]]], score: RunScore) -> Table | None:
    """Mean scores of kinds of devices, over seeds with half of their 95 % intervals; None without kinds of devices.

    ``found``: row -> for each seed, kind of device -> mean over its clients.
    """
    held = readings.quantity_of(score)
    devices = dict.fromkeys(device for seeds in found.values() for means in seeds for device in means)
    shown = [
        readings.worst_device(score),
        *(Reading(device, device, held, operator.methodcaller("get", device), score.better) for device in devices),
    ]
    rows: list[list[Cell]] = [
        [name, len(seeds), *(Number.mean(each.over_seeds(seeds)) for each in shown)] for name, seeds in found.items()
    ]
    columns = [TableColumn(""), TableColumn("seeds", COUNT), *map(TableColumn.of, shown)]
    return Table(f"mean {score.metric} of clients by device", columns, rows) if devices else None


def score_of_all(runs: Runs) -> RunScore:
    """The metric by which these runs are judged; of several metrics, one that has no unit."""
    scores = {run.score for run in runs}
    return scores.pop() if len(scores) == 1 else RunScore("score", is_share=False)


def means_of_devices(run: RecordedRun) -> dict[str, float]:
    """Kind of device -> mean over its clients at the last evaluation."""
    return {device: of.mean for device, of in client_values.at_round(run.by_device).items()}


def over_seeds(groups: Sequence[RunGroup], target: float | None) -> Table:
    """Means over seeds with half of their 95 % intervals; a value that only some seeds have is counted instead."""
    score = score_of_all([run for group in groups for run in group.runs])
    shown: list[Reading[RecordedRun]] = [reading.of(_trail_of) for reading in readings.of_score(score)]
    if any(client_values.last(run.evaluations, run.score) for group in groups for run in group.runs):
        shown.append(readings.worst_decile(score).of(lambda run: client_values.last(run.evaluations, run.score)))
    if any(run.by_device for group in groups for run in group.runs):
        shown.append(readings.worst_device(score).of(means_of_devices))
    of_some = readings.of_some(run.trail for group in groups for run in group.runs)
    spent = amounts.VIRTUAL_SECONDS, amounts.BYTES, amounts.ENERGY, *of_some
    if target is not None:
        shown += [readings.until(amount, target, score).of(_trail_of) for amount in spent]
    shown += [readings.COMPLETED, *(readings.total_of(amount).of(_trail_of) for amount in spent)]
    above = {
        each.key: amount
        for amount in of_some
        for each in (readings.total_of(amount), readings.until(amount, target or 0.0))
    }

    def cell(reading: Reading[RecordedRun], group: RunGroup) -> Cell:
        if reading.key in above and not _has(above[reading.key], group.first):
            return MISSING
        return _mean(reading, group.runs)

    rows: list[list[Cell]] = [
        [group.label, len(group.runs), *(cell(each, group) for each in shown)] for group in groups
    ]
    columns = [replace(TableColumn.of(each), better=None) for each in shown]
    return Table("groups", [TableColumn("group"), TableColumn("seeds", COUNT), *columns], rows)


def _has(amount: Amount, run: RecordedRun) -> bool:
    """Whether an amount exists in a run."""
    return not math.isnan(amount.total(run.trail))


def _mean(reading: Reading[RecordedRun], runs: Runs) -> Number:
    found = reading.over_seeds(runs)
    known = sum(value is not None for value in found.values)
    return Number.mean(found, f"{known} of {len(runs)}" if known else reading.missing)


ALPHA = 0.05
"""Level of tests"""


def best_row(reading: Reading[Any], means: Mapping[str, Mean], p_values: Mapping[tuple[str, str], float | None]) -> str:
    """The row with the best mean in a sentence, and from how many others the tests tell it.

    ``means``: row -> `Reading.over_seeds`. Rows without a mean are none. ``p_values``: of two rows, corrected for the
    number of tests; None where there is no test.
    """
    name = " ".join(reversed(reading.heading.split(", ")))  # "accuracy, final" in a sentence
    known = {row: found.mean for row, found in means.items() if found.mean is not None}
    if not known:
        return f"No row has a {name} for all of its seeds."
    choose = min if reading.better is LOWER else max
    best = choose(known, key=known.__getitem__)
    column = Column.of(reading.quantity, known.values(), (means[row].half_width for row in known))
    text = column.text(known[best], means[best].half_width)
    lowest = "lowest" if reading.better is LOWER else "highest"
    sentence = f"{best} has the {lowest} {name}: {text}."
    others = [p for pair, p in p_values.items() if best in pair and {*pair} <= known.keys() and p is not None]
    if not others:
        return sentence
    apart = sum(p < ALPHA for p in others)
    least = min(others)
    smallest = "< 0.001" if least < 0.001 else f"{least:.3f}"
    if not apart:
        return f"{sentence} The paired tests tell it from no other row (smallest p after Holm: {smallest})."
    if apart == len(others):
        return f"{sentence} The paired tests tell it from {'all others' if apart > 1 else 'the other row'}."
    return f"{sentence} The paired tests tell it from {apart} of {len(others)} others."


def differences(
    heading: str, quantity: Quantity, baseline: str, found: Mapping[str, PairTest | None], most_seeds: int
) -> Table:
    """Each row minus the ``baseline``, paired over seeds, with its test.

    ``found``: row -> its test, or None for a row that cannot be compared.
    ``quantity``: of the difference; ``most_seeds``: above it the seeds needed are not given.
    """
    columns = [
        TableColumn(""),
        TableColumn(f"from {baseline}", quantity, missing="not tested", sign="+", key="difference"),
        TableColumn("seeds", COUNT),
        TableColumn("+ / -", dispensable=1),
        TableColumn("p"),
        TableColumn("Holm"),
        TableColumn("seeds needed", dispensable=2),
    ]
    rows: list[list[Cell]] = []
    for row, each in found.items():
        if row == baseline:
            continue
        if each is None or each.mean is None:
            rows.append([row, None, *([""] * 5)])
            continue
        needed = f"{each.seeds_needed:,}" if each.seeds_needed is not None else f"> {most_seeds:,}"
        probabilities = (each.p, each.p_holm)
        tests = [MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}" for p in probabilities]
        shown = f"{each.higher} / {each.lower}", *tests, needed if each.p is not None else MISSING
        rows.append([row, Number.mean(each.difference), len(each.seeds), *shown])
    return Table(f"differences of {heading}, paired over seeds", columns, rows)


# --- visits, bytes and energy -------------------------------------------------------------------------------------


def costs(runs: Runs, nominal: bool) -> tuple[Table, RecordedRun | None]:
    """Totals per run, per round against FedAvg's where it is among several runs, and that run of FedAvg's."""
    base = next((run for run in runs if run.method == "fedavg" and run.completed and len(runs) > 1), None)
    columns = [TableColumn("method")]
    kinds = (("bytes", BYTES, "Bytes"), ("flops", FLOPS, "Device FLOPs"))
    for kind, quantity, over in kinds:
        if nominal:
            columns += [
                TableColumn("real", quantity, over=over, key=kind),
                TableColumn("nominal", quantity, over=over, key=f"nominal_{kind}", unit_of=kind),
                TableColumn("ratio", RATIO, over=over),
            ]
        else:
            columns.append(TableColumn("bytes" if kind == "bytes" else "device FLOPs", quantity, key=kind))
    if base is not None:
        for over in ("Bytes a round", "FLOPs a round"):
            headings = ("real", "nominal") if nominal else (over.replace("Bytes", "bytes"),)
            columns += [TableColumn(name, CHANGE, sign="+", over=over if nominal else "") for name in headings]
    rows: list[list[Cell]] = []
    for run in runs:
        row: list[Cell] = [run.label]
        for kind, _, _ in kinds:
            real, charged = _cost(run, kind)
            row += [real, charged, real / charged if charged else None] if nominal else [real]
        if base is not None:
            row += [_against(run, base, kind, part) for kind, _, _ in kinds for part in ((0, 1) if nominal else (0,))]
        rows.append(row)
    return Table("cost", columns, rows), base


def _cost(run: RecordedRun, kind: str) -> tuple[float, float]:
    """(real, nominal) cost of a run."""
    real = run.total("flops") if kind == "flops" else run.total("bytes_down") + run.total("bytes_up")
    return real, run.total(f"nominal_{kind}")


def _against(run: RecordedRun, base: RecordedRun, kind: str, part: int) -> Cell:
    """How much more or less a mean round of ``run`` cost than one of ``base``; part 0 is real, 1 nominal."""
    theirs = _cost(base, kind)[part] / base.completed
    if run is base:
        return "0"
    return _cost(run, kind)[part] / run.completed / theirs - 1 if theirs and run.completed else None


def kinds_of_visits(runs: Runs) -> list[str]:
    """Kinds of visit to show; those of invalid updates and of evaluations only if there are any."""
    used = {kind for run in runs for kind, count in visits.by_kind(run.query).items() if count}
    return [kind for kind in KINDS if kind not in (*FAULTY, *NO_TRAINING) or kind in used]


def waste(runs: Runs) -> list[list[tuple[str, str, float]]]:
    """For each run (wasted, total, wasted share in [0, 1]) of seconds of visits, bytes and joules."""
    columns = []
    for quantity, part, whole in (
        (SECONDS, "wasted_s", ("busy_s",)),
        (BYTES, "wasted_bytes", amounts.BYTES.columns),
        (JOULES, "wasted_joules", amounts.ENERGY.columns),
    ):
        pairs = [(run.total(part), sum(map(run.total, whole))) for run in runs]
        column = Column.of(quantity, [spent for _, spent in pairs])
        columns.append(
            [(column.text(wasted), column.text(spent), wasted / spent if spent else 0.0) for wasted, spent in pairs]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def by_rate(runs: Runs) -> Table | None:
    """Visits by the rate of their parts of the model, and what these took; None if all runs have whole models alone."""
    columns = [
        TableColumn("method"),
        TableColumn("rate", is_left=True),
        *(TableColumn(name, COUNT) for name in ("clients", "visits", "wasted")),
        *(TableColumn("seconds", SECONDS), TableColumn("bytes", BYTES)),
        *(TableColumn("device FLOPs", FLOPS), TableColumn(amounts.ENERGY.name, JOULES)),
    ]
    rows: list[list[Cell]] = [
        [run.label, LEFTOVER if row["rate"] is None else f"{row['rate']:g}", *tuple(row)[1:]]
        for run in runs
        for row in visits.by_rate(run.query)
    ]
    return Table("visits by rate", columns, rows) if rows else None


def by_phase(runs: Runs) -> Table | None:
    """The costs of the phases of secure aggregation, and of the training visits between them; None without any."""
    columns = [
        TableColumn("method"),
        TableColumn("phase", is_left=True),
        TableColumn("visits", COUNT),
        TableColumn("bytes down", BYTES),
        TableColumn("bytes up", BYTES, unit_of="bytes down"),
        TableColumn("seconds", SECONDS),
        TableColumn(amounts.ENERGY.name, JOULES),
    ]
    rows: list[list[Cell]] = [[run.label, *tuple(row)] for run in runs for row in visits.by_phase(run.query)]
    return Table("phases of secure aggregation", columns, rows) if rows else None


def by_step(runs: Runs) -> Table | None:
    """What the computing of visits of a model that is cut went into; None without a cut."""
    found = [(run.label, visits.by_step(run.steps, run.rounds[-1].end_s)) for run in runs if run.steps]
    names = {
        "device": "device",
        "up": "up",
        "down": "down",
        "trips": "round trips",
        "server": "server's device",
        "queue": "waiting for it",
        "shared": "waiting for links",
    }
    columns = [
        TableColumn("method"),
        *(TableColumn(name, SECONDS, unit_of=names["device"]) for name in names.values()),
        TableColumn("its load", PERCENT),
    ]
    rows: list[list[Cell]] = [[label, *(steps[key] for key in names), steps["load"]] for label, steps in found]
    return Table("steps of the cut", columns, rows) if rows else None


def by_link(runs: Runs) -> Table | None:
    """What messages took between each tier and the one above it, clients' visits among them; None without tiers."""
    columns = [
        TableColumn("method"),
        TableColumn("link", is_left=True),
        TableColumn("messages", COUNT),
        TableColumn("lost", COUNT),
        TableColumn("bytes down", BYTES),
        TableColumn("bytes up", BYTES, unit_of="bytes down"),
        TableColumn("seconds", SECONDS),
        TableColumn("contention", SECONDS),
        TableColumn(amounts.ENERGY.name, JOULES),
        TableColumn("waiting", JOULES, unit_of=amounts.ENERGY.name),
        TableColumn("price", MONEY),
    ]
    rows: list[list[Cell]] = []
    for run in runs:
        if not run.links:
            continue
        top = max(link.tier for link in run.links)
        rows.append([run.label, "clients – tier 0", *run.query(visits.MESSAGES)[0], None])
        for tier in range(top + 1):
            own = [link for link in run.links if link.tier == tier]
            nbytes = (sum(link.nbytes for link in own if link.direction == direction) for direction in ("down", "up"))
            rows.append(
                [
                    run.label,
                    f"tier {tier} – {'server' if tier == top else f'tier {tier + 1}'}",
                    sum(link.messages for link in own),
                    sum(link.lost for link in own),
                    *nbytes,
                    sum(link.seconds for link in own),
                    sum(link.contention_seconds for link in own),
                    sum(link.joules for link in own),
                    sum(link.idle_joules for link in own),
                    sum(link.price for link in own) or None,
                ]
            )
    return Table("messages by link", columns, rows) if rows else None


def of_aggregators(runs: Runs) -> Table | None:
    """The scores of aggregators' own models when these were last evaluated; None if no run has evaluated any."""
    held = readings.quantity_of(score_of_all(runs))
    columns = [
        TableColumn("last evaluation"),
        TableColumn("rounds", COUNT),
        *(TableColumn(name, held) for name in ("server", "mean", "lowest", "highest", "spread")),
    ]
    found = [
        (run.label, accuracies)
        for run in runs
        if (
            accuracies := aggregators.accuracies(
                client_values.of_aggregators(run.evaluations, run.score),
                client_values.of_global(run.evaluations, run.rounds, run.score),
            )
        )
    ]
    rows: list[list[Cell]] = [
        [label, *(of["rounds"], of["server"], of["mean"], of["lowest"], of["highest"], of["spread"])]
        for label, of in found
    ]
    return Table("models of aggregators", columns, rows) if rows else None


def faulty(runs: Runs) -> Table:
    """The clients with most invalid updates."""
    columns = [*map(TableColumn, ("method", "client", "outcome")), TableColumn("visits", COUNT)]
    rows: list[list[Cell]] = [
        [run.label, run.client_name(row["client"]), str(row["kind"]), int(row["n"])]
        for run in runs
        for row in visits.faulty(run.query, MOST_FAULTY)
    ]
    return Table("invalid updates", columns, rows)


def bases(runs: Runs) -> Table:
    """Shares of the seconds of visits by the basis of their figures, of the runs of which it is known."""
    order = ("read", "inference", "derived", "assumed")
    names = ("read", "measured in inference", "derived", "assumed")
    found = ((run.label, visits.shares(visits.seconds_by_basis(run.query, run.environment))) for run in runs)
    rows: list[list[Cell]] = [[label, *(shares[basis] for basis in order)] for label, shares in found if shares]
    return Table("bases", [TableColumn("method"), *(TableColumn(name, PERCENT) for name in names)], rows)


def participants(runs: Runs) -> Table:
    """Clients, those without a visit, visits that counted per client, the busiest tenth, and wasted visits."""
    counts = ("clients", "never visited", "fewest", "median", "most")
    columns = [
        TableColumn("method"),
        *(TableColumn(name, COUNT) for name in counts),
        TableColumn("share of the busiest tenth", SHARE),
        TableColumn("visits wasted", COUNT),
    ]
    rows: list[list[Cell]] = []
    for run in runs:
        found = visits.participation(run.query, run.scenario)
        numbers = found.clients, found.never, *found.quartiles()
        rows.append([run.label, *numbers, found.busiest_share(), sum(found.wasted.values())])
    return Table("participation", columns, rows)


PARTS = ("energy", *ENERGY.values())


def energy(groups: Sequence[RunGroup], heading: str) -> Table:
    """The joules of all clients of a group and their parts, means over seeds with intervals."""
    columns = [TableColumn(heading), *(TableColumn(name, JOULES, unit_of="energy") for name in PARTS)]
    rows: list[list[Cell]] = []
    for group in groups:
        found = [visits.energy(run.query) for run in group.runs]
        whole = [{"energy": sum(each.values()), **each} for each in found]
        rows.append([group.label, *(Number.mean(Mean.of([each[name] for each in whole])) for name in PARTS)])
    return Table("energy", columns, rows)


def energy_of_clients(run: RecordedRun) -> Table:
    """The clients of a run that spent most, and what on."""
    columns = [
        *(TableColumn(name, is_left=True) for name in ("client", "device", "network")),
        TableColumn("visits", COUNT),
        *(TableColumn(name, JOULES, unit_of="energy") for name in PARTS),
    ]
    rows = [
        [
            f"client {run.client_name(row['client'])}",
            row["device"],
            row["network"],
            row["visits"],
            *(row[name] for name in PARTS),
        ]
        for row in visits.energy_of_clients(run.query)
    ]
    return Table("energy of clients", columns, rows)


# --- times in draws of uncertain figures --------------------------------------------------------------------------

Drawn = Sequence[tuple[RunGroup, drawn_times.TimesOverSeeds]]


def drawn(found: Drawn) -> Table:
    """Median times of groups with their intervals over draws and seeds."""
    columns = [
        drawn_times.median_texts([times for _, times in found], key) for key in ("time_to_target_s", "virtual_seconds")
    ]
    rows: list[list[Cell]] = []
    for (group, times), until, end in zip(found, *columns, strict=True):
        shown = (until, end, percent(times.reached)) if times.target_accuracy is not None else (MISSING, end, MISSING)
        seed, draws = next(iter(times.by_seed.values())).arguments[:2]
        counts = (str(draws), str(times.left_out), str(seed))
        rows.append([group.label, *shown, drawn_times.scope(len(times.by_seed)), *counts])
    headings = ("method", "to the target", "virtual time", "reached in", "scope", "draws", "left out", "their seed")
    return Table("draws", list(map(TableColumn, headings)), rows)


def chances(found: Drawn) -> Table:
    """The probability of each pair of groups that the first reaches the target before the second."""
    columns = [
        TableColumn("first"),
        TableColumn("second", is_left=True),
        TableColumn("probability that the first reaches the target before the second"),
        TableColumn("scope"),
    ]
    pairs = drawn_times.chances([times for _, times in found])
    rows: list[list[Cell]] = [
        [
            found[i][0].label,
            found[j][0].label,
            drawn_times.probability_text(each),
            drawn_times.scope(len(each.by_seed)),
        ]
        for (i, j), each in pairs.items()
    ]
    return Table("pairs", columns, rows)
