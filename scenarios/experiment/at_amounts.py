"""The score at amounts that users name: what 50 GB or 15 minutes buy (``sweep --at``), read off the runs of each row.

A run goes on until the largest amount of each kind is spent, or until rounds.max. Amounts do not cut a round short, so
that all are read in the same way (`run.progress`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict

from coordinator.rounds.amounts import BY_NAME, CO2E, EPSILON, PRICE, WAN_BYTES, Amount
from costmodel.fleet.carbon import intensity
from costmodel.units import Quantity
from edge.protocol.spelling import nearest
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.schema import Scenario
from scenarios.experiment.experiment import ExperimentRow, Result
from scenarios.experiment.run_set import missing_note
from scenarios.report import bands
from scenarios.report.readings import of_score, quantity_of
from scenarios.report.run_reader import RunGroup
from scenarios.report.tables import Cell, Number, Table, TableColumn, csv_text
from scenarios.run.progress import Mean, Trail
from scenarios.run.score import RunScore

EXAMPLE = 'bytes="1 MB,2 MB"'
AT = Argument("at")
READ_AS = "{} when last evaluated within the amount, mean ± half of the 95 % interval over seeds"
DRAWN = ("bytes", "seconds")
"""Amounts whose curves are always drawn; others are where they are named"""
At = Mapping[str, Sequence[float]]
"""Name of an amount -> values in SI units, the smallest first"""
Asked = Mapping[str, Quantity | Sequence[Quantity]] | Sequence[str]
"""Name -> one value or several, as numbers in SI units or as text with a unit; or words such as `EXAMPLE`"""
Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a row -> seed -> progress"""


def at_of(asked: Asked) -> At:
    """The amounts that are asked for; ScenarioError for a name or value that is none, or stands there twice."""
    limits: dict[str, list[float]] = {}
    for name, values in asked.items() if isinstance(asked, Mapping) else map(_split, asked):
        if name not in BY_NAME:
            raise ScenarioError(AT, f": unknown amount {name!r}, {nearest(name, list(BY_NAME))}")
        if name in limits:
            why = f": {name} is named twice; write all its values as one list, "
            raise ScenarioError(AT, why, Argument("at", EXAMPLE))
        limits[name] = _values(BY_NAME[name], values)
    return limits


def _split(word: str) -> tuple[str, str]:
    name, equals, values = word.partition("=")
    if not equals or not values:
        raise ScenarioError(Argument("at", repr(word)), f": write an amount and its values, for example {EXAMPLE}")
    return name, values


def _values(amount: Amount, asked: Quantity | Sequence[Quantity]) -> list[float]:
    several = asked.replace('"', "").split(",") if isinstance(asked, str) else asked
    pieces = several if isinstance(several, Sequence) else [several]
    values: list[float] = []
    for piece in pieces:
        try:
            value = float(amount.parse(piece.strip() if isinstance(piece, str) else piece))
        except (TypeError, ValueError) as error:
            raise ScenarioError(AT, f": {amount.name}: {error}") from None
        if not value > 0:
            raise ScenarioError(AT, f": {amount.name} = {piece!r}: must be above 0")
        if value in values:
            raise ScenarioError(AT, f": {amount.name} = {piece!r}: is named twice")
        values.append(value)
    if not values:
        raise ScenarioError(AT, f": {amount.name}: write values, for example {EXAMPLE}")
    return sorted(values)


MADE_BY = {
    WAN_BYTES: "fleet.tiers",
    PRICE: "fleet.price.gb, fleet.price.kwh or fleet.tiers",
    CO2E: "fleet.carbon.zone or fleet.carbon.grams_per_kwh",
    EPSILON: "privacy.unit and privacy.noise",
}
"""Amount that not every run has -> the keys that make it"""


def spends(scenario: Scenario, amount: Amount) -> bool:
    """Whether runs of a scenario have such an amount."""
    fleet = scenario.fleet
    if amount is EPSILON:
        return scenario.privacy.unit is not None and scenario.privacy.noise > 0
    if amount is CO2E:
        return intensity(fleet.carbon) is not None
    has_price = amount is PRICE and fleet.price.are_known
    return amount.scope != "some" or fleet.tiers.count > 0 or has_price


def check(at: At, scenarios: Sequence[Scenario]) -> None:
    """ScenarioError for an amount that runs of none of these scenarios have."""
    for name in at:
        if not any(spends(scenario, BY_NAME[name]) for scenario in scenarios):
            raise ScenarioError(AT, f": {name}: no run has any; choose {MADE_BY[BY_NAME[name]]}")


def needs(at: At) -> dict[str, float]:
    """How far runs have to go, as `PlannedRun.needs`."""
    return {BY_NAME[name].kind: values[-1] for name, values in at.items()}


def are_of_devices(at: At) -> bool:
    """Whether the progress of single clients is read."""
    return any(BY_NAME[name].scope == "devices" for name in at)


class ScoreAt(Mean, frozen=True):
    """The score of a row at an amount, over its seeds."""

    rounds: list[int | None]
    """The evaluated round of each seed"""
    used_up: list[bool]
    """Whether its run came to the amount"""


class AmountReading(Struct, frozen=True):
    """Scores at one value of an amount."""

    amount: float
    score: dict[str, ScoreAt]
    """By the name of the row"""

    def plain(self, score: RunScore) -> dict[str, object]:
        """For JSON: its scores are named as those of runs are."""
        return {"amount": self.amount, of_score(score)[0].key: to_builtins(self.score)}


def readings(at: At, trails: Trails) -> dict[str, list[AmountReading]]:
    """Name of an amount -> a reading per value."""

    def reading(amount: Amount, limit: float) -> AmountReading:
        scores = {}
        for row, by_seed in trails.items():
            points = [trail.within({amount: limit}).evaluated for trail in by_seed.values()]
            scores[row] = ScoreAt(
                **asdict(Mean.of([point.score if point else None for point in points])),
                rounds=[point.rounds if point else None for point in points],
                used_up=[amount.total(trail) >= limit for trail in by_seed.values()],
            )
        return AmountReading(limit, scores)

    return {name: [reading(BY_NAME[name], limit) for limit in values] for name, values in at.items()}


def read(by_name: Mapping[str, Sequence[Result]], score: RunScore) -> dict[str, list[AmountReading]]:
    """The readings of a result, as `AmountReading.plain` gives them."""
    key = of_score(score)[0].key
    return {
        name: [AmountReading(each["amount"], convert(each[key], dict[str, ScoreAt])) for each in found]
        for name, found in by_name.items()
    }


def tables(
    by_name: Mapping[str, Sequence[AmountReading]],
    score: RunScore,
    labels: Mapping[str, str],
    stopped_by: Iterable[str],
    missing: Sequence[str],
) -> Iterator[Table]:
    """A table per amount: a row per value, and a column per row of the sweep; a star where a run ended before.

    ``by_name``: as of `readings`; ``labels``: name of a row -> its heading; ``stopped_by``: what ended the runs;
    ``missing``: names of those that are not there.
    """
    ends = sorted({rule.replace("_", " ") for rule in stopped_by} - {"budgets"})
    short = f"* not used up: a run ended before, by {' or '.join(ends)}; raise rounds.max or what else ended it"
    for name, found in by_name.items():
        rows = list(found[0].score)
        columns = [TableColumn(name), *(TableColumn(labels[row], quantity_of(score), missing="-") for row in rows)]
        cells: list[list[Cell]] = []
        for each in found:
            scores = [each.score[row] for row in rows]
            marks = ["" if all(cell.used_up) else " *" for cell in scores]
            numbers = (replace(Number.mean(cell), mark=mark) for cell, mark in zip(scores, marks, strict=True))
            # Amounts name the rows, so each is written as a user writes it, in its own unit.
            cells.append([BY_NAME[name].shown(each.amount), *numbers])
        is_short = any(not all(cell.used_up) for each in found for cell in each.score.values())
        notes = [READ_AS.format(score.metric), *([short] if is_short else []), *missing_note(missing)]
        yield Table(f"{score.metric} at {BY_NAME[name].heading}", columns, cells, notes)


def curves(at: At, rows: Sequence[ExperimentRow], trails: Trails, labels: Mapping[str, str]) -> list[bands.Band]:
    """Mean score of each row against each amount that is drawn."""
    methods = {row.name: row.method for row in rows}
    return [
        bands.band(
            methods[row], BY_NAME[name].kind, list(by_seed.values()), max(at.get(name, ()), default=None), labels[row]
        )
        for name in dict.fromkeys((*DRAWN, *at))
        for row, by_seed in trails.items()
    ]


def figure(at: At, drawn: Sequence[bands.Band], runs: Sequence[RunGroup], score: RunScore) -> tuple[str, str, str]:
    """(name, inline SVG, caption) of these curves."""
    caption = (
        f"{score.title} when last evaluated, mean over seeds; the band is one sample deviation to either side. Dashed "
        "lines are amounts that were reached. A curve ends where the first of its runs ends."
    )
    limits = {BY_NAME[name].kind: values for name, values in at.items()}
    return "bands", bands.draw(drawn, limits, runs=runs), caption


def files(
    by_name: Mapping[str, Sequence[AmountReading]],
    seeds: Mapping[str, Sequence[int]],
    drawn: Sequence[bands.Band],
    score: RunScore,
) -> dict[str, str]:
    """``at.csv``, a row per row, seed, amount and value, and ``curves.csv``, the points of the curves.

    ``seeds``: by the name of the row.
    """
    rows = [
        [row, seed, name, each.amount, value, rounds, used_up]
        for name, found in by_name.items()
        for each in found
        for row, cell in each.score.items()
        for seed, value, rounds, used_up in zip(seeds[row], cell.values, cell.rounds, cell.used_up, strict=True)
    ]
    head = ["row", "seed", "name", "amount", of_score(score)[0].key, "round", "used_up"]
    return {"at.csv": csv_text(head, rows), "curves.csv": bands.csv(drawn)}
