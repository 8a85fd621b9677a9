"""Curves of groups of runs over rounds, virtual time, bytes and energy: accuracy, losses, energy, and the front.

The line of a group with several seeds is their mean, in a band of one sample deviation on both sides. It is drawn only
where every seed has a value, so it ends with the shortest of the runs; but a run that its target has ended keeps its
last value, or the mean would end below a target that all of them have reached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from coordinator.rounds.amounts import BYTES, ENERGY, PRICE, ROUNDS, VIRTUAL_SECONDS, Amount
from costmodel.units import JOULES
from edge.protocol.better import HIGHER, Better
from scenarios.report import plot_style
from scenarios.report.plot_style import Doubles, ShownRuns
from scenarios.report.readings import OF_SOME, of_some, quantity
from scenarios.report.run_reader import RecordedRun, RunGroup
from scenarios.report.theme import INK, MUTED, LineStyle
from scenarios.run.progress import Trail, is_cut_step
from scenarios.run.score import OF_ACCURACY

FEW_POINTS = 3
"""Fewer are marked, since they make no line"""
OPACITY = 0.18
"""Of a band"""
MOST_POINTS = 400
"""Of a line of means over amounts"""
MOST_IN_ROW = 4
"""Panels of accuracies beside each other"""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LOSSES = {"train_loss": "Training loss of clients", "test_loss": "Test loss"}
"""Column of ``rounds`` -> title"""


@dataclass(frozen=True)
class Curve:
    """Mean and sample deviation over seeds at each x; a deviation of 0 for one seed."""

    x: Doubles
    mean: Doubles
    deviation: Doubles

    @classmethod
    def of(cls, x: Doubles, values: Doubles) -> Curve:
        """The curve of values (seeds, points)."""
        deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(x.size)
        return cls(x, values.mean(axis=0), deviation)

    def scaled(self, x: float, y: float) -> Curve:
        """The curve in multiples of two units."""
        return Curve(self.x / x, self.mean / y, self.deviation / y)


@dataclass(frozen=True)
class AccuracyLine:
    """The accuracy of a group, or of one row of a study, against amounts."""

    label: str
    style: LineStyle
    curves: Mapping[str, Curve]
    """Key of an `Amount` -> accuracies in [0, 1]"""
    stepped: Collection[str] = ()
    """Keys of the amounts along which an accuracy holds until the next one, as budgets are read"""
    is_cut: bool = False
    """Whether its last point is of a round that was cut: its mark is hollow"""


def over_seeds(series: Sequence[Mapping[float, float]], held: Sequence[bool] = ()) -> Curve:
    """The curve of one mapping x -> value per seed, at each x that all of them have. ``held``: whether a seed keeps its
    last value after its end."""
    every = sorted(set().union(*series))
    kept = [
        {**own, **dict.fromkeys([x for x in every if x > last], own[last])} if keeps and own else own
        for own, keeps, last in zip(
            series, held or [False] * len(series), [max(own, default=0.0) for own in series], strict=True
        )
    ]
    common = sorted(set.intersection(*(set(own) for own in kept)))
    values = np.array([[own[x] for x in common] for own in kept], np.float64).reshape(len(kept), len(common))
    return Curve.of(np.array(common, np.float64), values)


def over_amounts(trails: Sequence[Trail], amount: Amount, value: str = "score", held: Sequence[bool] = ()) -> Curve:
    """The curve of a field of `ProgressPoint` over the amounts at which any seed's changes.

    At each amount a seed has the last value that it evaluated within it, as budgets are read. The curve begins where
    every seed has one, and ends where the first of them ends; ``held``: as of `over_seeds`.
    """
    known = [[point for point in trail if point.score is not None] for trail in trails]
    if not all(known):
        return Curve(np.empty(0), np.empty(0), np.empty(0))
    spent = [np.array([amount.at(point) for point in points], np.float64) for points in known]
    if any(np.isnan(own).any() for own in spent):
        return Curve(np.empty(0), np.empty(0), np.empty(0))
    values = [np.array([getattr(point, value) for point in points], np.float64) for points in known]
    totals = [amount.total(trail) for trail in trails]
    ends = [total for total, keeps in zip(totals, held or [False] * len(totals), strict=True) if not keeps]
    begin, end = max(own[0] for own in spent), min(ends) if ends else max(totals)
    grid = np.unique(np.concatenate([*spent, [end]]))
    grid = grid[(grid >= begin) & (grid <= end)]
    if grid.size > MOST_POINTS:
        grid = np.linspace(begin, end, MOST_POINTS)
    stepped = [own[np.searchsorted(x, grid, side="right") - 1] for x, own in zip(spent, values, strict=True)]
    return Curve.of(grid, np.stack(stepped))


def by_round(run: RecordedRun, column: str) -> dict[float, float]:
    """Rounds so far -> a column of ``rounds``, where it is known; a score after the last round belongs to that one."""
    values = ((min(row.round + 1, run.completed), getattr(row, column)) for row in run.rounds)
    return {float(rounds): float(value) for rounds, value in values if value is not None}


def plot(axes: Axes, curve: Curve, label: str, style: LineStyle, is_stepped: bool = False) -> None:
    """One line, and its band where there is one."""
    if np.any(curve.deviation > 0):
        low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
        step: Any = "post" if is_stepped else None
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=OPACITY, lw=0, step=step)
    if len(curve.x) < FEW_POINTS:
        style = style | {"marker": "o"}
    if is_stepped:
        style = style | {"drawstyle": "steps-post"}
    axes.plot(curve.x, curve.mean, label=label, **style)


# --- accuracy -----------------------------------------------------------------------------------------------------


def accuracy(shown: ShownRuns) -> Figure | None:
    """Accuracy against rounds, virtual time and bytes, and what some runs alone spend; a line per group."""
    scored = _scored(shown)
    lines = [_accuracy_line(group, shown.styles[group.label], shown.target) for group in scored]
    amounts = (ROUNDS, VIRTUAL_SECONDS, BYTES, *of_some(run.trail for group in scored for run in group.runs))
    return accuracy_panels(shown, lines, amounts, target=shown.target) if lines else None


def _scored(shown: ShownRuns) -> list[RunGroup]:
    return [group for group in shown.started if all(run.final() is not None for run in group.runs)]


def _accuracy_line(group: RunGroup, style: LineStyle, target: float | None = None) -> AccuracyLine:
    """Of a single run, the line through what it evaluated; it has steps where seeds differ in when they evaluate.

    ``target``: a run that ends with this accuracy keeps its last one.
    """
    amounts = (VIRTUAL_SECONDS, BYTES, ENERGY, *OF_SOME.values())
    if len(group.runs) > 1:
        held = [_has_reached(run, target) for run in group.runs]
        trails = [run.trail for run in group.runs]
        curves = {amount.key: over_amounts(trails, amount, held=held) for amount in amounts}
        curves[ROUNDS.key] = over_seeds([by_round(run, "judged") for run in group.runs], held)
        return AccuracyLine(group.label, style, curves, list(map(attrgetter("key"), amounts)))
    run = group.first
    points = [point for point in run.trail if point.score is not None]
    values = np.array([[point.score for point in points]], np.float64)
    spent = {amount.key: [amount.at(point) for point in points] for amount in amounts}
    spent[ROUNDS.key] = [float(min(point.rounds, run.completed)) for point in points]
    known = {key: ~np.isnan(x) for key, x in spent.items()}
    curves = {key: Curve.of(np.array(x, np.float64)[known[key]], values[:, known[key]]) for key, x in spent.items()}
    return AccuracyLine(group.label, style, curves, is_cut=is_cut_step(run.rounds[-1]))


def _has_reached(run: RecordedRun, target: float | None) -> bool:
    final = run.final()
    return target is not None and final is not None and run.score.better.reaches(final, target)


def accuracy_panels(
    shown: ShownRuns,
    lines: Sequence[AccuracyLine],
    amounts: Sequence[Amount],
    target: float | None = None,
    budgets: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """A panel per amount. ``target`` is a dashed line across, and ``budgets``, key of an amount -> limits, are upright
    ones, up to the furthest that any run came."""
    columns = len(amounts) if len(amounts) <= MOST_IN_ROW else 3
    figure, panels = shown.panels(len(amounts), columns, 380, sharey=True)
    for axes, amount in zip(panels, amounts, strict=True):
        scale = _against(axes, lines, amount, shown.scale)
        if target is not None:
            axes.axhline(target / shown.scale, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2, label="target")
        furthest = max((float(x) for line in lines for x in line.curves[amount.key].x[-1:]), default=0.0)
        for limit in (limit for limit in (budgets or {}).get(amount.key, ()) if limit <= furthest):
            axes.axvline(limit / scale, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
    for axes in panels[::columns]:
        axes.set_ylabel(shown.score_label)
    plot_style.legend(figure, panels[0])
    return figure


def _against(axes: Axes, lines: Sequence[AccuracyLine], amount: Amount, of_score: float) -> float:
    """Draw scores, divided by ``of_score``, against an amount; the unit of its axis, in SI."""
    scale, unit = plot_style.unit((line.curves[amount.key].x for line in lines), quantity(amount).units)
    for line in lines:
        curve = line.curves[amount.key].scaled(scale, of_score)
        plot(axes, curve, line.label, line.style, amount.key in line.stepped)
        if line.is_cut:
            axes.plot(curve.x[-1:], curve.mean[-1:], **line.style | {"marker": "o", "markerfacecolor": "none"})
    axes.set(title=amount.title, xlabel=f"{amount.axis} ({unit})" if unit else amount.axis, xlim=(0, None))
    if amount is ROUNDS:
        axes.xaxis.set_major_locator(plot_style.whole())
    elif amount is PRICE:  # which may have many decimals
        axes.xaxis.set_major_locator(MaxNLocator(4))
    return scale


# --- losses and energy --------------------------------------------------------------------------------------------


def losses(shown: ShownRuns) -> Figure | None:
    """Training and test loss against rounds, one line per group; a loss that no run has is left out."""
    known = {
        column: [group for group in shown.started if all(by_round(run, column) for run in group.runs)]
        for column in LOSSES
    }
    known = {column: having for column, having in known.items() if having}
    if not known:
        return None
    figure, panels = shown.panels(len(known), len(known), 320)
    for axes, (column, having) in zip(panels, known.items(), strict=True):
        for group in having:
            curve = over_seeds([by_round(run, column) for run in group.runs])
            if curve.x.size:
                plot(axes, curve, group.label, shown.styles[group.label])
        plot_style.over_rounds(
            axes, title=LOSSES[column], ylabel="cross-entropy (nats)" if shown.score == OF_ACCURACY else "loss"
        )
    plot_style.legend(figure, max(panels, key=lambda axes: len(axes.get_lines())))
    return figure


def joules_by_round(run: RecordedRun) -> dict[float, float]:
    """Completed rounds -> joules of the clients so far; a last row that is no round counts for the round before."""
    return {float(min(point.rounds, run.completed)): point.joules for point in run.trail}


def energy(shown: ShownRuns) -> Figure | None:
    """Left: joules so far by round. Right, where accuracy was evaluated: accuracy by joules."""
    spending = [group for group in shown.started if all(run.trail[-1].joules > 0 for run in group.runs)]
    if not spending:
        return None
    scored = [group for group in _scored(shown) if group in spending]
    figure, panels = shown.panels(2 if scored else 1, 2 if scored else 1, 320)
    found = {group.label: over_seeds([joules_by_round(run) for run in group.runs]) for group in spending}
    scale, unit = plot_style.unit((curve.mean for curve in found.values()), JOULES)
    for label, curve in found.items():
        plot(panels[0], curve.scaled(1, scale), label, shown.styles[label])
    plot_style.over_rounds(panels[0], title="Energy by round", ylabel=f"energy of clients so far ({unit})")
    panels[0].set_ylim(0, None)
    if scored:
        lines = [_accuracy_line(group, shown.styles[group.label]) for group in scored]
        _against(panels[1], lines, ENERGY, shown.scale)
        panels[1].set_ylabel(shown.score_label)
    plot_style.legend(figure, panels[0])
    return figure


# --- accuracy against cost ----------------------------------------------------------------------------------------

Point = tuple[float, float]
"""(amount spent, accuracy in [0, 1])"""


def front(points: Iterable[Point], better: Better = HIGHER) -> list[Point]:
    """The points that no other beats, by amount: each has a better score than every cheaper one."""
    best, kept, sign = better.worst, [], -1 if better is HIGHER else 1
    for amount, score in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if better.prefers(score, best):
            best = score
            kept.append((amount, score))
    return kept


def pareto(shown: ShownRuns) -> Figure | None:
    """Best accuracy against bytes, virtual time and joules: each group's curve and its end, and the front of all.

    Thin curves go on to each group's end, which has a mark and the deviation over seeds. Of a single group the front is
    its own curve, so it is drawn for two or more.
    """
    scored = _scored(shown)
    if len(scored) < 2:
        return None
    have_energy = all(run.trail[-1].joules for group in scored for run in group.runs)
    amounts = (BYTES, VIRTUAL_SECONDS, *([ENERGY] if have_energy else []))
    figure, panels = shown.panels(len(amounts), len(amounts), 360, sharey=True)
    thin: LineStyle = {"drawstyle": "steps-post", "linewidth": 1.0, "markersize": 8, "markevery": [-1]}
    dashed: LineStyle = {"color": INK, "linewidth": 1.3, "linestyle": (0, (4, 2))}
    for axes, amount in zip(panels, amounts, strict=True):
        found = [(group, over_amounts([run.trail for run in group.runs], amount, "best")) for group in scored]
        found = [(group, curve) for group, curve in found if curve.x.size]
        ends: list[Point] = []  # what the runs of each group spent and their best accuracy, as means over seeds
        for group, _ in found:
            best = [each for run in group.runs if (each := run.best()) is not None]
            ends.append((float(np.mean([amount.total(run.trail) for run in group.runs])), float(np.mean(best))))
        scale, unit = plot_style.unit([np.array([spent for spent, _ in ends])], quantity(amount).units)
        for index, ((group, curve), end) in enumerate(zip(found, ends, strict=True)):
            style = shown.styles[group.label] | {"marker": MARKERS[index % len(MARKERS)]} | thin
            x, y = np.array([*zip(curve.x, curve.mean, strict=True), end]).T
            axes.plot(x / scale, y / shown.scale, label=group.label, **style)
            if curve.deviation[-1]:
                at, (low, high) = end[0] / scale, (end[1] + curve.deviation[-1] * np.array([-1, 1])) / shown.scale
                axes.vlines(at, low, high, color=style["color"], linewidth=1.2)
        passed = [(float(x), float(y)) for _, curve in found for x, y in zip(curve.x, curve.mean, strict=True)]
        points = front([*passed, *ends], shown.score.better)
        if points:
            x, y = np.array([*points, (max(spent for spent, _ in ends), points[-1][1])]).T
            axes.plot(x / scale, y / shown.scale, drawstyle="steps-post", label="front", zorder=3, **dashed)
        axes.set(title=amount.title, xlabel=f"{amount.axis} ({unit})", xlim=(0, None))
    panels[0].set_ylabel(
        f"best {shown.score_label} so far" if not shown.score.is_share else f"best {shown.accuracy} so far (%)"
    )
    plot_style.legend(figure, panels[0])
    return figure
