"""The figures of evaluations on clients and classes, of adaptations, metrics, logged numbers, and the partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coordinator.records.round_record import logged_means
from costmodel.units import BYTES
from edge.protocol.config import EvalSplit
from edge.protocol.messages import BEFORE, VALIDATION
from scenarios.report import plot_style
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun, RunGroup
from scenarios.report.theme import EMPTY, INK, MUTED, PAPER, LineStyle
from scenarios.run import client_values, visits
from scenarios.run.client_values import KindOfValue
from scenarios.run.progress import Mean

BAR_WIDTH = 0.8
MOST_NAMED = 30
"""Classes that are all named on the axis"""
MOST_VALUES = 8
"""Values of metrics, and logged names, that are drawn"""


def _marked(marker: str, style: LineStyle) -> LineStyle:
    """A line with marks of its own, or with those that its style has."""
    plain: LineStyle = {"marker": marker}
    return plain | style


def clients(shown: ShownRuns) -> Figure | None:
    """Left: mean over clients, band of the spread and worst decile by round. Right: clients at the last evaluation."""
    pairs = [(run, by_round) for run in shown.runs if (by_round := client_values.by_round(run.evaluations, run.score))]
    if not pairs:
        return None
    figure, (curve, shares) = shown.panels(2, 2, 360)
    label, unit = shown.score.metric, shown.unit
    for run, by_round in pairs:
        colour, every = shown.styles[run.label]["color"], list(by_round.values())
        rounds = [min(round + 1, run.completed) for round in by_round]
        mean, worst, spread = (
            np.array([getattr(of, key) for of in every]) / shown.scale for key in ("mean", "worst_decile", "spread")
        )
        marker = "o" if len(every) < 3 else ""
        low, high = np.clip([mean - spread, mean + spread], 0, 100 if shown.score.is_share else None)
        curve.fill_between(rounds, low, high, color=colour, alpha=0.18, lw=0)
        curve.plot(rounds, mean, label=run.label, **_marked(marker, shown.styles[run.label]))
        curve.plot(rounds, worst, color=colour, linestyle=(0, (1, 1.5)), marker=marker, linewidth=1.4)
        _draw_shares(shares, [value / shown.scale for value in every[-1].values], shown.styles[run.label])
    plot_style.over_rounds(curve, title="Mean, spread, worst decile (dotted)", ylabel=f"{label} of clients{unit}")
    shares.set(title="Clients after the last evaluation", xlabel=f"{label}{unit}", ylabel="clients up to it (%)")
    shares.set_ylim(0, 102)
    plot_style.legend(figure, curve)
    return figure


def _draw_shares(axes: Axes, ascending: Sequence[float], style: LineStyle, label: str | None = None) -> None:
    """The percentage of clients up to each value, from none below the lowest one to all of them."""
    share = 100 * np.arange(1, len(ascending) + 1) / len(ascending)
    axes.step([ascending[0], *ascending], [0.0, *share], where="post", label=label, **style)


def adaptation(shown: ShownRuns) -> Figure | None:
    """Left: mean over clients before and after adaptation by round. Right: each client at the best round."""
    runs = [run for run in shown.runs if client_values.by_round(run.evaluations, run.score, BEFORE)]
    if not runs:
        return None
    figure, (curve, clients) = shown.panels(2, 2, 360)
    ends: list[float] = [100.0] if shown.score.is_share else []
    for run in runs:
        colour = shown.styles[run.label]["color"]
        for kind, dashes in MEANS.items():
            by_round = client_values.by_round(run.evaluations, run.score, kind)
            rounds = [min(round + 1, run.completed) for round in by_round]
            means = [of.mean / shown.scale for of in by_round.values()]
            marker, label = "o" if len(rounds) < 3 else "", run.label if kind is None else None
            curve.plot(rounds, means, label=label, color=colour, linestyle=dashes, marker=marker)
        best = run.best_round
        pairs = [] if best is None else client_values.before_and_after(run.evaluations, best.round, run.score)
        if best is None or best.clients_score is None or best.worst_decile is None or not pairs:
            continue  # no client was evaluated then
        at_best = best.clients_score / shown.scale
        curve.plot(best.rounds, at_best, "o", markersize=9, fillstyle="none", color=colour)
        before, after = np.array(pairs).T / shown.scale
        ends += [*before, *after]
        clients.scatter(before, after, s=22, alpha=0.75, color=colour, linewidths=0)
        clients.axhline(best.worst_decile / shown.scale, color=colour, linestyle=(0, (1, 1.5)), linewidth=1.4)
    title, unit = "After, before (dashed), validation (dotted)", shown.unit
    plot_style.over_rounds(curve, title=title, ylabel=f"mean over clients{unit}")
    xlabel, ylabel = f"before adaptation{unit}", f"after adaptation{unit}"
    clients.set(title="Clients at the best round", xlabel=xlabel, ylabel=ylabel)
    if ends:
        both = [min(ends), max(ends)]
        clients.plot(both, both, color=MUTED, linewidth=1.0, zorder=0)
    plot_style.legend(figure, curve)
    return figure


MEANS: Mapping[KindOfValue, Any] = {None: "-", BEFORE: (0, (4, 2)), VALIDATION: (0, (1, 1.5))}
"""Kind of value -> dashes of its line"""


def traffic(shown: ShownRuns) -> Figure | None:
    """Left: shares of the clients by bytes. Right: each client's last score against its bytes, where it is known."""
    runs = [run for run in shown.runs if client_values.last(run.evaluations, run.score)]
    pairs = [(run, client_values.nbytes(run.query)) for run in runs]
    if not any(nbytes for _, nbytes in pairs):
        return None
    figure, (shares, clients) = shown.panels(2, 2, 300)
    scale, unit = plot_style.unit([np.array(list(nbytes.values()), float) for _, nbytes in pairs], BYTES)
    for run, nbytes in pairs:
        ascending = sorted(amount / scale for amount in nbytes.values())
        _draw_shares(shares, ascending, shown.styles[run.label], run.label)
        scores = client_values.last_of_each(run.evaluations, run.score)
        spent = [nbytes.get(client, 0) / scale for client in scores]
        have = [score / shown.scale for score in scores.values()]
        clients.scatter(spent, have, s=22, alpha=0.75, color=shown.styles[run.label]["color"], linewidths=0)
    shares.set(title="Bytes of clients", xlabel=f"bytes down and up, real ({unit})", ylabel="clients up to it (%)")
    title, ylabel = f"{shown.score.title} against bytes", f"{shown.score.metric}{shown.unit}"
    clients.set(title=title, xlabel=f"bytes down and up, real ({unit})", ylabel=ylabel)
    shares.set(xlim=(0, None), ylim=(0, 102))
    clients.set(xlim=(0, None), ylim=(-2, 102) if shown.score.is_share else (0, None))
    plot_style.legend(figure, shares)
    return figure


def devices(shown: ShownRuns) -> Figure | None:
    """Mean over clients and worst decile by round: a panel for each of the first `MOST_VALUES` kinds of devices."""
    names = list(dict.fromkeys(device for run in shown.runs for device in run.by_device))[:MOST_VALUES]
    if not names:
        return None
    figure, panels = shown.panels(len(names), min(len(names), 2), 280, sharey=True)
    for name, axes in zip(names, panels, strict=True):
        for run in shown.runs:
            by_round = run.by_device.get(name, {})
            rounds = [min(round + 1, run.completed) for round in by_round]
            marker, colour = "o" if len(rounds) < 3 else "", shown.styles[run.label]["color"]
            mean, worst = (
                [getattr(of, key) / shown.scale for of in by_round.values()] for key in ("mean", "worst_decile")
            )
            axes.plot(rounds, mean, label=run.label, **_marked(marker, shown.styles[run.label]))
            axes.plot(rounds, worst, color=colour, linestyle=(0, (1, 1.5)), marker=marker, linewidth=1.4)
        plot_style.over_rounds(axes, title=name, ylabel=f"{shown.score.metric} of clients{shown.unit}")
    plot_style.legend(figure, panels[0])
    return figure


def rates(shown: ShownRuns) -> Figure | None:
    """Two panels for each run with parts of the model: by round, the score of each part, and visits by rate."""
    runs = [run for run in shown.runs if visits.by_rate(run.query)]
    if not runs:
        return None
    figure, panels = shown.panels(2 * len(runs), 2, 330)
    for run, left, right in zip(runs, panels[::2], panels[1::2], strict=True):
        scores = client_values.by_rate(run.evaluations, run.rounds, run.score)
        counts = visits.rates_by_round(run.query)
        every_rate = list(dict.fromkeys([*counts, *scores]))
        colours = matplotlib.colormaps["YlGnBu"](np.linspace(0.95, 0.25, len(every_rate)))
        shades = dict(zip(every_rate, colours, strict=True))
        for rate, values in scores.items():
            rounds = [min(round + 1, run.completed) for round in values]
            marker = "o" if len(rounds) < 3 else ""
            found, label = [value / shown.scale for value in values.values()], f"rate {rate:g}"
            left.plot(rounds, found, color=shades[rate], label=label, marker=marker)
        if scores:
            title = plot_style.wide_title(f"{run.label}: {run.score.metric} of parts", 2)
            plot_style.over_rounds(left, title=title, ylabel=shown.score_label)
            left.legend()
        else:
            left.remove()
        every = sorted({round for of in counts.values() for round in of})
        layers = [
            (f"rate {rate:g}", shades[rate], np.array([of.get(at, 0.0) for at in every])) for rate, of in counts.items()
        ]
        plot_style.stack(right, [round + 1 for round in every], layers[::-1])
        right.set(title=plot_style.wide_title(f"{run.label}: visits", 2), xlabel="round", ylabel="training visits")
        right.yaxis.set_major_locator(plot_style.whole())
        right.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1, borderaxespad=0, reverse=True)
    return figure


def classes(shown: ShownRuns) -> Figure | None:
    """Accuracy of each class at the last evaluation: a bar per class and group, with the 95 % interval over seeds.

    A group has a bar for the classes whose accuracy all of its seeds have.
    """
    groups = [(group, accuracies) for group in shown.started if (accuracies := _class_means(group))]
    if not groups:
        return None
    figure, (axes,) = shown.panels(1, 1, 240)
    width = BAR_WIDTH / len(groups)
    for index, (group, accuracies) in enumerate(groups):
        places = np.array(list(accuracies)) + (index - (len(groups) - 1) / 2) * width
        means = 100 * np.array([accuracy.mean or 0.0 for accuracy in accuracies.values()])
        halves = 100 * np.array([accuracy.half_width or 0.0 for accuracy in accuracies.values()])
        axes.bar(places, means, 0.92 * width, color=shown.styles[group.label]["color"], label=group.label)
        if halves.any():
            axes.vlines(places, np.clip(means - halves, 0, 100), np.clip(means + halves, 0, 100), color=INK)
    axes.set(xlabel="class", ylabel="accuracy (%)", ylim=(0, 102))
    labels = sorted({label for _, accuracies in groups for label in accuracies})
    if len(labels) <= MOST_NAMED:  # a class without a bar has 0 %
        run = shown.runs[0]
        axes.set_xticks(labels, [run.class_name(label) for label in labels])
    else:
        axes.xaxis.set_major_locator(plot_style.whole())
    axes.grid(False, axis="x")
    plot_style.legend(figure, axes)
    return figure


def _class_means(group: RunGroup) -> dict[int, Mean]:
    """Class -> its accuracy over the seeds of a group, where all have it."""
    every = [client_values.class_accuracy(run.evaluations) for run in group.runs]
    common = sorted(set.intersection(*(set(accuracies) for accuracies in every)))
    return {label: Mean.of([accuracies[label] for accuracies in every]) for label in common}


def metrics(shown: ShownRuns) -> Figure | None:
    """Values of the global model, or over clients, by round: a panel for each of the first `MOST_VALUES` of them."""
    return _by_round(shown, [(run, client_values.whole_by_round(run.evaluations)) for run in shown.runs])


def logged(shown: ShownRuns) -> Figure | None:
    """Numbers that methods have logged, by round, of clients the mean: a panel for each of the first `MOST_VALUES`
    names."""
    pairs: list[tuple[RecordedRun, dict[str, dict[int, float]]]] = []
    for run in shown.runs:
        values: dict[str, dict[int, float]] = {}
        for round, rows in groupby(run.logged, attrgetter("round")):
            for name, value in logged_means(rows).items():
                values.setdefault(name, {}).update({} if value is None else {round: value})
        pairs.append((run, values))
    return _by_round(shown, pairs)


def _by_round(
    shown: ShownRuns, pairs: Sequence[tuple[RecordedRun, Mapping[str, Mapping[int, float]]]]
) -> Figure | None:
    """``pairs``: runs, and name -> round -> value."""
    names = list(dict.fromkeys(name for _, values in pairs for name in values))[:MOST_VALUES]
    if not names:
        return None
    figure, panels = shown.panels(len(names), min(len(names), 2), 280)
    for name, axes in zip(names, panels, strict=True):
        for run, values in pairs:
            rounds = [min(round + 1, run.completed) for round in values.get(name, {})]
            marker = "o" if len(rounds) < 3 else ""
            style = _marked(marker, shown.styles[run.label])
            axes.plot(rounds, list(values.get(name, {}).values()), label=run.label, **style)
        plot_style.over_rounds(axes, title=name)
    plot_style.legend(figure, panels[0])
    return figure


# --- the partition --------------------------------------------------------------------------------------------------

MOST_COLUMNS = 100
MOST_SEPARATED = 40
"""Clients, and classes, whose cells have a gap between them"""
SIZES_PIXELS, CLASS_PIXELS = 150, 20
MOST_PIXELS = 460
"""Height of the cells of many classes"""
COLOURS: dict[EvalSplit, tuple[str, str]] = {
    "train": ("#6f9fd0", "training"),
    "validation": ("#e6b85c", "validation"),
    "test": ("#5f8f8b", "test"),
}
"""Split -> its colour and name"""


def partition(shown: ShownRuns) -> Figure | None:
    """Above: examples of each client by split. Below: its training examples of each class. The first `MOST_COLUMNS`."""
    run = next((group.first for group in shown.chosen if group.first.histogram), None)
    if run is None:
        return None
    counts = np.array(run.histogram[:MOST_COLUMNS], float).T  # (classes, clients)
    cells = min(MOST_PIXELS, 130 + CLASS_PIXELS * len(counts))
    figure, (sizes, classes) = shown.panels(2, 1, (SIZES_PIXELS + cells) / 2, sharex=True)
    grid = sizes.get_gridspec()
    assert grid is not None
    grid.set_height_ratios([SIZES_PIXELS, cells])
    floor = np.zeros(counts.shape[1])
    for split, (colour, name) in COLOURS.items():
        heights = np.array(run.examples(split)[: floor.size], float)
        if heights.any():  # splits in which nobody has examples are left out
            sizes.bar(np.arange(floor.size), heights, BAR_WIDTH, floor, color=colour, label=name)
            floor = floor + heights
    sizes.set(ylabel="examples")
    sizes.grid(False, axis="x")
    sizes.yaxis.set_major_locator(plot_style.whole())
    held = np.ma.masked_equal(counts, 0)  # blank where the client has no training example of the class
    image = classes.imshow(held, cmap="YlGnBu", aspect="auto", interpolation="none", vmin=0)
    classes.set_facecolor(EMPTY)
    classes.grid(False)
    named = run.environment.partition
    for axis, number, names in (
        (classes.yaxis, counts.shape[0], named.class_names),
        (classes.xaxis, counts.shape[1], named.client_names),
    ):
        axis.set_major_locator(plot_style.whole())
        if names and number <= MOST_NAMED:
            axis.set_ticks(range(number), names[:number])
        if max(counts.shape) <= MOST_SEPARATED:
            axis.set_ticks(np.arange(number + 1) - 0.5, minor=True)
    classes.grid(which="minor", color=PAPER, linewidth=1.5)
    classes.tick_params(which="minor", length=0)
    classes.set(xlabel="client", ylabel="class")
    bar = figure.colorbar(image, ax=classes, pad=0.01, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label("training examples", color=MUTED)
    plot_style.legend(figure, sizes)
    return figure
