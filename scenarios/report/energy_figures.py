"""The energy of the clients: joules so far against rounds, and accuracy against joules."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from costmodel.units import JOULES
from scenarios.report import plot_style
from scenarios.report.group_figures import Curve, Styles, against, over_seeds, plot
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun


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
