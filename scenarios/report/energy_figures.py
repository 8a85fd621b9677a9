"""The energy of the clients: joules so far against rounds, accuracy against joules, and what the joules went into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from coordinator.records.schema import ENERGY
from costmodel.units import JOULES
from scenarios.report import energy_parts, plot_style, reflow, theme
from scenarios.report.group_figures import Curve, Styles, against, over_seeds, plot
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun

MOST_BARS = 30
"""Of more devices of all groups together, each group is one bar"""
COLOURS = dict(zip(ENERGY.values(), (theme.NOBODY, theme.COMPUTING, theme.DOWN, theme.UP), strict=True))


def joules_by_round(run: RecordedRun) -> dict[float, float]:
    """Completed rounds -> joules of the clients so far; a last row that is no round counts for the round before."""
    return {float(min(point.rounds, run.completed)): point.joules for point in run.trail}


def energy(groups: Sequence[RunGroup], styles: Styles) -> Figure | None:
    """Left: joules so far by round. Right, where accuracy was evaluated: accuracy by joules."""
    spending = [group for group in groups if all(run.trail and run.trail[-1].joules > 0 for run in group.runs)]
    if not spending:
        return None
    scored = [group for group in spending if all(run.final() is not None for run in group.runs)]
    figure, panels = plot_style.panels(2 if scored else 1, 2 if scored else 1, 320)
    found = {group.label: over_seeds([joules_by_round(run) for run in group.runs]) for group in spending}
    scale, unit = plot_style.unit((curve.mean for curve in found.values()), JOULES)
    for label, curve in found.items():
        plot(panels[0], Curve(curve.x, curve.mean / scale, curve.deviation / scale), label, styles[label])
    panels[0].set(title="Energy by round", xlabel="rounds", ylabel=f"energy of clients so far ({unit})")
    panels[0].set(xlim=(0, None), ylim=(0, None))
    panels[0].xaxis.set_major_locator(plot_style.whole())
    if scored:
        against(panels[1], scored, styles, "joules")
        panels[1].set_ylabel("test accuracy (%)")
    plot_style.legend(figure, panels[0])
    return figure


def parts(groups: Sequence[RunGroup]) -> Figure | None:
    """A stacked bar per kind of device of each group: joules of its clients by what they did, means over seeds."""
    found = [bar for group in groups for bar in _bars(group)]
    if not found:
        return None
    if len(found) > MOST_BARS:
        found = [(group.label, _mean([energy_parts.totals(run.query) for run in group.runs])) for group in groups]
    labels = reflow.wide_ticks([label for label, _ in found])
    figure, (axes,) = plot_style.panels(1, 1, 110 + reflow.row_pixels(labels, 34) * len(found))
    scale, unit = plot_style.unit([np.array([sum(joules.values()) for _, joules in found])], JOULES)
    for place, (_, joules) in enumerate(found):
        floor = 0.0
        for name, amount in joules.items():
            axes.barh(place, amount / scale, 0.56, floor, color=COLOURS[name], label="_" * place + name)
            floor += amount / scale
    axes.set(title="Energy by what the clients did", xlabel=f"energy of clients ({unit})")
    axes.set_yticks(range(len(found)), labels)
    axes.set_ylim(len(found) - 0.5, -0.5)
    plot_style.bars(axes)
    plot_style.legend(figure, axes)
    return figure


def _bars(group: RunGroup) -> Iterator[tuple[str, dict[str, float]]]:
    """(label, part -> joules) of each kind of device that spent any; where there is one kind, the group's name."""
    every = [energy_parts.by_device(run.query) for run in group.runs]
    none = dict.fromkeys(ENERGY.values(), 0.0)
    devices = sorted({device for own in every for device, joules in own.items() if any(joules.values())})
    for device in devices:
        label = group.label if len(devices) == 1 else f"{group.label}, {device}"
        yield label, _mean([own.get(device, none) for own in every])


def _mean(every: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(own[name] for own in every) / len(every) for name in ENERGY.values()}
