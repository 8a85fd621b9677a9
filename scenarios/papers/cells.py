"""The cells of a published figure, read in the folders of its runs, or counted. Nothing is run here.

A number that differs from the paper in scale, data or settings has a mark (`MARKS`), and its cell names the difference.
A target that was not reached gives a lower bound: the amount that the run had spent by its end.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from coordinator.rounds.amounts import BYTES, NOMINAL_BYTES
from scenarios.config.overrides import words
from scenarios.experiment.experiment import ExperimentRow
from scenarios.papers.published import HESSIANS, TABLE_AMOUNTS
from scenarios.papers.spec import (
    ACCURACY_AT,
    BEST_MEASURES,
    PAPER,
    TO_ACCURACY,
    VALIDATION,
    PaperFigure,
    PaperPanel,
    PaperRow,
    PaperSetting,
    Smoothing,
    smoothed,
)
from scenarios.run.progress import Mean, Spread, Trail
from scenarios.run.run_folder import RunFolder

MARKS = {
    "scaled": ("†", "not at the paper's scale"),
    "data": ("‡", "not on exactly the paper's data"),
    "asked": ("§", "with overrides of the command line"),
    "inferred": ("¶", "with settings that the paper does not print, or inferred ones"),
}
"""Mark of a number -> (sign, meaning)."""


@dataclass(frozen=True)
class CellSelection:
    """The cells of one figure to reproduce."""

    name: str
    figure: PaperFigure
    scale: str
    panels: Sequence[PaperPanel]
    rows: Sequence[str]
    groups: Mapping[str, str]
    """Setting -> the setting whose runs it uses: itself, or an earlier one with the same scenario."""
    overrides: Sequence[str]
    """KEY=VALUE of the user's."""
    smoothing: Smoothing | None = None
    """How accuracies are averaged before they are read."""

    def setting(self, panel: PaperPanel) -> PaperSetting:
        """The scenario of a panel's setting at this scale."""
        return self.figure.settings[panel.setting][self.scale]

    def limit(self, panel: PaperPanel) -> float:
        """The panel's budget or target at this scale."""
        return self.setting(panel).limit(panel)

    def folders(self, runs: Sequence[RunOfCell], group: str, row: str) -> list[list[Path]]:
        """The run folders of a row in one setting, (variants, seeds)."""
        return [
            [Path(run["run_dir"]) for run in runs if run["name"] == run_name(group, variant, run["seed"])]
            for variant in self.figure.rows[row].variants(self.scale)
        ]

    def trails(self, runs: Sequence[RunOfCell], group: str, row: str, measure: str = "") -> list[list[Trail]]:
        """The progress curves of a row's runs in one setting, (variants, seeds), as a measure reads them."""
        return [[self._trail(folder, measure) for folder in of_seeds] for of_seeds in self.folders(runs, group, row)]

    def _trail(self, folder: Path, measure: str) -> Trail:
        """The progress curve of a run; for a measure of its best round until that, with the measure's accuracy."""
        run = RunFolder(folder)
        if measure not in BEST_MEASURES:
            return run.trail if self.smoothing is None else smoothed(run.trail, self.smoothing)
        run.check()
        best = run.best_round
        if best is None:
            return Trail()
        accuracy = best.validation_score if measure == VALIDATION else best.accuracy
        *before, last = run.trail[: best.round + 1]
        return Trail([*before, replace(last, score=accuracy)])


class RunOfCell(TypedDict):
    """The keys of a run's summary that cells read."""

    name: str
    run_dir: str
    seed: int


class CellMean(TypedDict):
    """A `Spread` of our values; with ``half_width`` a `Mean`."""

    mean: float | None
    deviation: float | None
    values: list[float | None]
    half_width: NotRequired[float | None]


class PublishedCell(TypedDict):
    """A cell as it is known before any run, and its printed value."""

    row: str
    method: str | None
    overrides: list[str]
    variants: int
    note: str
    measure: str
    published_limit: float
    published: float | None
    published_is_bound: bool
    published_deviation: float | None
    published_is_lost: bool


class MeasuredCell(TypedDict):
    """Our values of a cell.

    ``ours`` is the accuracy at the budget, or the amount until the target; ``at_least`` bounds its mean from below
    where a run missed the target; ``nominal`` is ``ours`` by nominal bytes, for measures of bytes; ``complete`` whether
    each run used the budget up or reached the target. The other keys are means of what had been spent by then.
    """

    ours: CellMean
    at_least: float | None
    nominal: CellMean | None
    complete: list[bool]
    bytes: float | None
    nominal_bytes: float | None
    virtual_seconds: float | None
    rounds: float | None
    best_accuracy: float | None


class ReproducedCell(PublishedCell, MeasuredCell):
    """Published and ours; ``limit`` is that of the scale, ``marks`` are of `MARKS`."""

    panel: str
    limit: float
    scaled: bool
    marks: list[str]
    changed: str


def run_name(group: str, variant: ExperimentRow, seed: int) -> str:
    """The name of a run's folder."""
    return f"{group}-{variant.name}-seed{seed}"


def reading(
    plan: CellSelection, panel: PaperPanel, name: str, runs: Sequence[RunOfCell], is_counted: bool
) -> ReproducedCell:
    """One cell, from the summaries of the runs that there are.

    Not ``is_counted``: amounts of the paper's models are left open, since to count them can take a minute, which nobody
    who has stopped the runs wants to wait.
    """
    if panel.counts is not None:
        # It depends on the paper's method and model alone, at every scale.
        counted = plan.figure.rows[name]
        return {
            "panel": panel.name,
            **described(panel, name, counted),
            "limit": panel.limit,
            "scaled": False,
            "marks": [],
            "changed": "",
            **_values([panel.counts(counted) if is_counted else None]),
        }
    row, limit, group = plan.figure.rows[name], plan.limit(panel), plan.groups[panel.setting]
    folders = [folder for of_seeds in plan.folders(runs, group, name) for folder in of_seeds]
    data = list(dict.fromkeys(word for folder in folders for word in differences(folder)))
    words = [*changed(plan.setting(panel), panel), *data, *([note] if (note := row.words(plan.scale)) else [])]
    if panel.measure in HESSIANS and (options := plan.figure.hessians.get(plan.scale)) and options.changed:
        words.append(options.changed)
    words += [f"override {override}" for override in plan.overrides]
    if group != panel.setting:
        words.append(f"the same runs as for {group}")
    marks = {
        "scaled": plan.scale != PAPER,
        "data": bool(data),
        "asked": bool(plan.overrides),
        "inferred": bool(row.note or plan.setting(panel).inferred),
    }
    amount = TABLE_AMOUNTS.get(panel.measure)
    if amount is not None and amount.read is not None:
        found = _values([amount.read(folder) for folder in folders])
    else:
        found = measured_row(plan.trails(runs, group, name, panel.measure), panel.measure, limit)
    return {
        "panel": panel.name,
        **described(panel, name, row, plan.scale),
        "limit": limit,
        "scaled": plan.scale != PAPER,
        "marks": [mark for mark, holds in marks.items() if holds],
        "changed": "; ".join(words),
        **found,
    }


def _values(values: Sequence[float | None]) -> MeasuredCell:
    """The part of a cell for amounts that are no point on a progress curve."""
    return _cell(_with_interval(values), None, None, [value is not None for value in values], {})


def _with_interval(values: Sequence[float | None]) -> CellMean:
    found = Mean.of(values)
    return {
        "mean": found.mean,
        "deviation": found.deviation,
        "values": found.values,
        "half_width": found.half_width,
    }


def _cell(
    ours: CellMean,
    at_least: float | None,
    nominal: CellMean | None,
    complete: list[bool],
    spent: Mapping[Spending, float | None],
) -> MeasuredCell:
    return {
        "ours": ours,
        "at_least": at_least,
        "nominal": nominal,
        "complete": complete,
        "bytes": spent.get("bytes"),
        "nominal_bytes": spent.get("nominal_bytes"),
        "virtual_seconds": spent.get("virtual_seconds"),
        "rounds": spent.get("rounds"),
        "best_accuracy": spent.get("best_accuracy"),
    }


def described(panel: PaperPanel, name: str, row: PaperRow, scale: str = PAPER) -> PublishedCell:
    """The part of a cell that is known before any run, and the printed value; by default as at the paper's scale."""
    return {
        "row": name,
        "method": row.method or None,
        "overrides": words(row.at(scale).overrides),
        "variants": len(row.variants(scale)),
        "note": row.words(scale),
        "measure": panel.measure,
        "published_limit": panel.limit,
        "published": panel.published.get(name),
        "published_is_bound": name in panel.beyond,
        "published_deviation": panel.deviations.get(name),
        "published_is_lost": panel.is_lost and name not in panel.published,
    }


def changed(setting: PaperSetting, panel: PaperPanel) -> list[str]:
    """The differences of a panel's numbers from the paper, and the settings that it does not print, in words."""
    return [text for text in (setting.changed, setting.inferred, setting.why(panel)) if text]


def measured_row(variants: Sequence[Sequence[Trail]], measure: str, limit: float) -> MeasuredCell:
    """One cell from the runs of its row, (variants, seeds): `measured`, or the mean over variants where it has several.

    Then ``ours`` is over the variants' means, as a paper's mean over settings is.
    """
    cells = [measured(trails, measure, limit) for trails in variants]
    if len(cells) < 2:
        return cells[0] if cells else measured([], measure, limit)
    means = {key: Spread.of([cell[key] for cell in cells]).mean for key in SPENT}
    ours = Spread.of([cell["ours"]["mean"] for cell in cells])
    bounds = [cell["at_least"] if cell["at_least"] is not None else cell["ours"]["mean"] for cell in cells]
    missed = any(cell["at_least"] is not None for cell in cells)
    return _cell(
        {"mean": ours.mean, "deviation": ours.deviation, "values": ours.values},
        Spread.of(bounds).mean if missed else None,
        None,
        [complete for cell in cells for complete in cell["complete"]],
        means,
    )


def measured(trails: Sequence[Trail], measure: str, limit: float) -> MeasuredCell:
    """One cell from the runs of its seeds."""
    at_least = None
    if measure in ACCURACY_AT:
        amount = ACCURACY_AT[measure]
        reached = [trail.within({amount: limit}).evaluated for trail in trails]
        complete = [amount.total(trail) >= limit or measure in BEST_MEASURES for trail in trails]
        values = [point.score if point else None for point in reached]
        nominal = [trail.within({NOMINAL_BYTES: limit}).final for trail in trails]
    else:
        amount = TO_ACCURACY[measure]
        reached = [trail.until(limit) for trail in trails]
        complete = [point is not None for point in reached]
        values = [amount.at(point) if point else None for point in reached]
        nominal = [point.nominal_nbytes if point else None for point in reached]
        if not all(complete):
            ends = (amount.total(points) for points in trails)
            at_least = statistics.fmean(
                end if value is None else value for value, end in zip(values, ends, strict=True)
            )
    spent = {
        key: Spread.of([float(getattr(point, name)) if point else None for point in reached]).mean
        for key, name in SPENT.items()
    }
    return _cell(
        _with_interval(values), at_least, _with_interval(nominal) if amount is BYTES else None, complete, spent
    )


Spending = Literal["bytes", "nominal_bytes", "virtual_seconds", "rounds", "best_accuracy"]
SPENT: Mapping[Spending, str] = {
    "bytes": "nbytes",
    "nominal_bytes": "nominal_nbytes",
    "virtual_seconds": "virtual_seconds",
    "rounds": "rounds",
    "best_accuracy": "best",
}
"""Key of a cell -> the field of `ProgressPoint` whose mean it is, at the point that the cell is read at."""


@dataclass(frozen=True)
class PublishedData:
    """A set as its authors published it."""

    train: int
    test: int
    is_lossless: bool


SETS = {
    "mnist": PublishedData(60_000, 10_000, True),
    "cifar10": PublishedData(50_000, 10_000, True),
    "cifar100": PublishedData(50_000, 10_000, True),
    "tinyimagenet": PublishedData(100_000, 10_000, False),
    "imagenet200": PublishedData(100_000, 10_000, False),
}


def differences(folder: Path) -> list[str]:
    """The differences in words; empty for a set that is not in `SETS`."""
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    data, known = environment["data"], SETS.get(environment["data"]["name"])
    if known is None:
        return []
    words = []
    partition = environment["partition"]
    # Validation examples are taken from clients' training examples, by the papers as here.
    assigned = sum(map(sum, partition["histogram"])) + sum(partition.get("validation", ()))
    # Equal shares leave out less than one example per client.
    if assigned <= known.train - partition["clients"]:
        words.append(f"{assigned:,} of {known.train:,} training images")
    if data["test_examples"] != known.test:
        words.append(f"{data['test_examples']:,} of {known.test:,} test images")
    if known.is_lossless and "JPEG" in data["source"]:
        words.append("images compressed again as JPEG")
    return [f"data: {', '.join(words)}"] if words else []
