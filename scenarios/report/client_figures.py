"""The figures of evaluations on clients, of adaptations before them, of further metrics, and of logged numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coordinator.records.round_record import logged_means
from costmodel.units import BYTES
from edge.protocol.messages import ACCURACY, BEFORE_ACCURACY, VALIDATION_ACCURACY
from scenarios.report import client_values, plot_style
from scenarios.report.best_round import of_run
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun
from scenarios.run.progress import with_interval

Lines = Mapping[str, Mapping[str, Any]]
"""Label of a run -> style of its line"""
BAR_WIDTH = 0.8
MOST_NAMED = 30
"""Classes that are all named on the axis"""
MOST_VALUES = 8
"""Values of metrics, and logged names, that are drawn"""


def clients(runs: Sequence[RecordedRun], lines: Lines) -> Figure | None:
    """Left: mean over clients, band of the spread and worst decile by round. Right: clients at the last evaluation."""
    found = [(run, by_round) for run in runs if (by_round := client_values.by_round(run.evaluations))]
    if not found:
        return None
    figure, (curve, shares) = plot_style.panels(2, 2, 360)
    for run, by_round in found:
        colour, every = lines[run.label]["color"], list(by_round.values())
        rounds = [min(round + 1, run.completed) for round in by_round]
        mean, worst, spread = (100 * np.array([getattr(of, key) for of in every]) for key in KEYS)
        marker = "o" if len(every) < 3 else ""
        low, high = np.clip([mean - spread, mean + spread], 0, 100)
        curve.fill_between(rounds, low, high, color=colour, alpha=0.18, lw=0)
        curve.plot(rounds, mean, label=run.label, marker=marker, **lines[run.label])
        curve.plot(rounds, worst, color=colour, linestyle=(0, (1, 1.5)), marker=marker, linewidth=1.4)
        values = 100 * np.array(every[-1].values)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        # From no client below the lowest value to all of them.
        shares.step([values[0], *values], [0.0, *share], where="post", **lines[run.label])
    curve.set(title="Mean, spread, worst decile (dotted)", xlabel="rounds", ylabel="accuracy of clients (%)")
    curve.set_xlim(0, None)
    curve.xaxis.set_major_locator(plot_style.whole())
    shares.set(title="Clients after the last evaluation", xlabel="accuracy (%)", ylabel="clients up to it (%)")
    shares.set_ylim(0, 102)
    plot_style.legend(figure, curve)
    return figure


KEYS = ("mean", "worst_decile", "spread")


def adaptation(runs: Sequence[RecordedRun], lines: Lines) -> Figure | None:
    """Left: mean over clients before and after adaptation by round. Right: each client at the best round."""
    found = [run for run in runs if client_values.by_round(run.evaluations, BEFORE_ACCURACY)]
    if not found:
        return None
    figure, (curve, clients) = plot_style.panels(2, 2, 360)
    lowest = 100.0
    for run in found:
        colour = lines[run.label]["color"]
        for name, dashes in MEANS.items():
            rounds, means = _means(run, name)
            marker, label = "o" if len(rounds) < 3 else "", run.label if name == ACCURACY else None
            curve.plot(rounds, means, label=label, color=colour, linestyle=dashes, marker=marker)
        best = of_run(run)
        pairs = [] if best is None else client_values.before_and_after(run.evaluations, best.round)
        if best is None or best.clients_accuracy is None or best.worst_decile is None or not pairs:
            continue  # no client was evaluated then
        curve.plot(best.rounds, 100 * best.clients_accuracy, "o", markersize=9, fillstyle="none", color=colour)
        before, after = 100 * np.array(pairs).T
        lowest = min(lowest, *before, *after)
        clients.scatter(before, after, s=22, alpha=0.75, color=colour, linewidths=0)
        clients.axhline(100 * best.worst_decile, color=colour, linestyle=(0, (1, 1.5)), linewidth=1.4)
    curve.set(title="After, before (dashed), validation (dotted)", xlabel="rounds", ylabel="mean over clients (%)")
    curve.set_xlim(0, None)
    curve.xaxis.set_major_locator(plot_style.whole())
    clients.set(title="Clients at the best round", xlabel="before adaptation (%)", ylabel="after adaptation (%)")
    clients.plot([lowest, 100], [lowest, 100], color=plot_style.MUTED, linewidth=1.0, zorder=0)
    plot_style.legend(figure, curve)
    return figure


MEANS = {ACCURACY: "-", BEFORE_ACCURACY: (0, (4, 2)), VALIDATION_ACCURACY: (0, (1, 1.5))}
"""Name of a value -> dashes of its line."""


def _means(run: RecordedRun, name: str) -> tuple[list[int], list[float]]:
    """(rounds, means over clients in percent) of a value."""
    by_round = client_values.by_round(run.evaluations, name)
    return [min(round + 1, run.completed) for round in by_round], [100 * of.mean for of in by_round.values()]


def traffic(runs: Sequence[RecordedRun], lines: Lines) -> Figure | None:
    """Left: shares of the clients by bytes. Right: each client's last accuracy against its bytes, where it is known."""
    found = [(run, client_values.nbytes(run.query)) for run in runs if client_values.last(run.evaluations)]
    if not any(nbytes for _, nbytes in found):
        return None
    figure, (shares, clients) = plot_style.panels(2, 2, 300)
    scale, unit = plot_style.unit([np.array(list(nbytes.values()), float) for _, nbytes in found], BYTES)
    for run, nbytes in found:
        ascending = sorted(amount / scale for amount in nbytes.values())
        share = 100 * np.arange(1, len(ascending) + 1) / len(ascending)
        shares.step([ascending[0], *ascending], [0.0, *share], where="post", label=run.label, **lines[run.label])
        accuracies = client_values.last_of_each(run.evaluations)
        spent = [nbytes.get(client, 0) / scale for client in accuracies]
        have = [100 * accuracy for accuracy in accuracies.values()]
        clients.scatter(spent, have, s=22, alpha=0.75, color=lines[run.label]["color"], linewidths=0)
    shares.set(title="Bytes of clients", xlabel=f"bytes down and up, real ({unit})", ylabel="clients up to it (%)")
    clients.set(title="Accuracy against bytes", xlabel=f"bytes down and up, real ({unit})", ylabel="accuracy (%)")
    shares.set(xlim=(0, None), ylim=(0, 102))
    clients.set(xlim=(0, None), ylim=(-2, 102))
    plot_style.legend(figure, shares)
    return figure


def classes(groups: Sequence[RunGroup], lines: Lines) -> Figure | None:
    """Accuracy of each class at the last evaluation: a bar per class and group, with the 95 % interval over seeds.

    A group has a bar for the classes whose accuracy all of its seeds have.
    """
    found = [(group, accuracies) for group in groups if (accuracies := _class_means(group))]
    if not found:
        return None
    figure, (axes,) = plot_style.panels(1, 1, 240)
    width = BAR_WIDTH / len(found)
    for index, (group, accuracies) in enumerate(found):
        places = np.array(list(accuracies)) + (index - (len(found) - 1) / 2) * width
        means, halves = (
            100 * np.array([each[key] or 0.0 for each in accuracies.values()]) for key in ("mean", "half_width")
        )
        axes.bar(places, means, 0.92 * width, color=lines[group.label]["color"], label=group.label)
        if halves.any():
            axes.vlines(places, np.clip(means - halves, 0, 100), np.clip(means + halves, 0, 100), color=plot_style.INK)
    axes.set(xlabel="class", ylabel="accuracy (%)", ylim=(0, 102))
    labels = sorted({label for _, accuracies in found for label in accuracies})
    if len(labels) <= MOST_NAMED:  # a class without a bar has 0 %
        axes.set_xticks(labels)
    else:
        axes.xaxis.set_major_locator(plot_style.whole())
    axes.grid(False, axis="x")
    plot_style.legend(figure, axes)
    return figure


def _class_means(group: RunGroup) -> dict[int, Mapping[str, Any]]:
    """Class -> its accuracy over the seeds of a group, where all have it."""
    every = [client_values.class_accuracy(run.evaluations) for run in group.runs]
    common = sorted(set.intersection(*(set(own) for own in every)))
    return {label: with_interval([own[label] for own in every]) for label in common}


def metrics(runs: Sequence[RecordedRun], lines: Lines) -> Figure | None:
    """Values of the global model, or over clients, by round: a panel for each of the first `MOST_VALUES` of them."""
    return _by_round([(run, client_values.whole_by_round(run.evaluations)) for run in runs], lines)


def logged(runs: Sequence[RecordedRun], lines: Lines) -> Figure | None:
    """What methods have logged by round, of clients the mean: a panel for each of the first `MOST_VALUES` names."""
    found: list[tuple[RecordedRun, dict[str, dict[int, float]]]] = []
    for run in runs:
        values: dict[str, dict[int, float]] = {}
        for round, rows in groupby(run.logged, attrgetter("round")):
            for name, value in logged_means(rows).items():
                values.setdefault(name, {}).update({} if value is None else {round: value})
        found.append((run, values))
    return _by_round(found, lines)


def _by_round(found: Sequence[tuple[RecordedRun, Mapping[str, Mapping[int, float]]]], lines: Lines) -> Figure | None:
    """``found``: runs, and name -> round -> value."""
    names = list(dict.fromkeys(name for _, values in found for name in values))[:MOST_VALUES]
    if not names:
        return None
    figure, panels = plot_style.panels(len(names), min(len(names), 2), 280)
    for name, axes in zip(names, panels, strict=True):
        for run, values in found:
            rounds = [min(round + 1, run.completed) for round in values.get(name, {})]
            marker = "o" if len(rounds) < 3 else ""
            axes.plot(rounds, list(values.get(name, {}).values()), label=run.label, marker=marker, **lines[run.label])
        axes.set(title=name, xlabel="rounds")
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(plot_style.whole())
    plot_style.legend(figure, panels[0])
    return figure
