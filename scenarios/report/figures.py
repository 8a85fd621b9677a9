"""The report's figures, each as HTML with inline SVG. Nothing here opens a window or writes a file.

A method's colour and dashes are those of `method_style`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coordinator.records.schema import COMPUTE, OWN_LINK, SERVER_LINK, WAITING
from costmodel import units
from scenarios.report import bottlenecks as blame
from scenarios.report import (
    client_figures,
    draw_figures,
    energy_figures,
    group_figures,
    link_figures,
    loss_figures,
    method_figures,
    method_style,
    pareto,
    participation,
    partition_figures,
    plot_style,
    reflow,
    round_timeline,
    theme,
)
from scenarios.report.columns import BYTES, SECONDS, Column, Quantity
from scenarios.report.groups import RunGroup, by_label, grouped, has_seeds
from scenarios.report.plot_style import INK, MUTED
from scenarios.report.run_reader import NO_BLOCKS, BlockTraffic, RecordedRun, is_cut_step
from scenarios.run import progress

DOWN, COMPUTING, UP, NOBODY = theme.DOWN, theme.COMPUTING, theme.UP, theme.NOBODY
BLAMED = {OWN_LINK: DOWN, SERVER_LINK: theme.SHARED, COMPUTE: COMPUTING, WAITING: NOBODY}
MAX_STALENESS_BARS = 40
LOG_AXES = ("curves", "pareto")
"""Figures whose x axes the page can make logarithmic"""


def draw(runs: Sequence[RecordedRun], target: float | None, groups: Sequence[RunGroup] | None = None) -> dict[str, str]:
    """Figure name -> HTML of `plot_style.svg`, for every figure that these runs have data for.

    ``groups``: the runs that each of ``runs`` stands for; by default itself alone.
    """
    started = [run for run in runs if run.rounds]
    known = [group for group in groups or grouped(runs) if all(run.rounds for run in group.runs)]
    styles = by_label(known, lines(runs))
    sources: dict[str, Callable[[], Figure | None]] = {
        "curves": lambda: group_figures.curves(known, styles, target) if has_seeds(known) else curves(started, target),
        "losses": lambda: loss_figures.losses(known, styles),
        "pareto": lambda: pareto.pareto(known, styles),
        "client_values": lambda: client_figures.clients(started, lines(runs)),
        "adaptation": lambda: client_figures.adaptation(started, lines(runs)),
        "client_bytes": lambda: client_figures.traffic(started, lines(runs)),
        "class_accuracy": lambda: client_figures.classes(known, styles),
        "metrics": lambda: client_figures.metrics(started, lines(runs)),
        "logged": lambda: client_figures.logged(started, lines(runs)),
        "to_target": lambda: to_target(known, target),
        "uncertainty": lambda: draw_figures.intervals(started, colours(runs)),
        "bottlenecks": lambda: bottlenecks(known),
        "timing": lambda: timing(started),
        "round_timeline": lambda: round_timeline.draw(started),
        "energy": lambda: energy_figures.energy(known, styles),
        "energy_parts": lambda: energy_figures.parts(known),
        "participation": lambda: participation.visits(started, colours(runs)),
        "staleness": lambda: staleness(started),
        "client_staleness": lambda: participation.staleness(started, colours(runs)),
        "recorded_link": lambda: link_figures.recorded_link(started),
        "blocks": lambda: blocks(known),
        "partition": lambda: partition_figures.partition(runs),
    }
    return _inline(sources) | of_methods(started)


def of_methods(runs: Sequence[RecordedRun], prefix: str = "") -> dict[str, str]:
    """``prefix`` and the name of a method's table -> inline SVG, for the methods that have a figure and data for it."""
    return _inline(
        {
            prefix + table: partial(method_figures.draw, table, figure, runs)
            for table, figure in method_figures.figures_of(runs).items()
        }
    )


def _inline(sources: Mapping[str, Callable[[], Figure | None]]) -> dict[str, str]:
    drawn = {}
    with matplotlib.rc_context(plot_style.STYLE):
        for name, source in sources.items():
            page = source()
            if page is not None:
                drawn[name] = plot_style.svg(page, name, log_x=name in LOG_AXES)
    return drawn


def colours(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Method -> its colour in every figure."""
    return {run.method: method_style.colour(run.method) for run in runs}


def curves(runs: Sequence[RecordedRun], target: float | None) -> Figure | None:
    """Accuracy against rounds, virtual time and bytes, one line per run."""
    if not any(run.final() is not None for run in runs):
        return None
    figure, panels = plot_style.panels(3, 3, 380, sharey=True)
    ends = [run.trail[-1] for run in runs]
    seconds, second_unit = plot_style.unit([np.array([end.virtual_seconds for end in ends])], units.SECONDS)
    nbytes, byte_unit = plot_style.unit([np.array([float(end.nbytes) for end in ends])], units.BYTES)
    styles = lines(runs)
    for run in runs:
        scored = [point for point in run.trail if point.accuracy is not None]
        # (points, 4); a score after the last round belongs to that round.
        columns = [
            (min(point.rounds, run.completed), point.virtual_seconds / seconds, point.nbytes / nbytes, point.accuracy)
            for point in scored
        ]
        *x_axes, accuracy = np.array(columns, float).reshape(-1, 4).T
        for axes, x in zip(panels, x_axes, strict=True):
            marker = "o" if len(scored) < 3 else ""
            axes.plot(x, 100 * accuracy, label=run.label, marker=marker, **styles[run.label])
            if is_cut_step(run.rounds[-1]):
                axes.plot(x[-1:], 100 * accuracy[-1:], marker="o", markerfacecolor="none", **styles[run.label])
    for axes, title, unit in zip(
        panels,
        ("Against rounds", "Against virtual time", "Against bytes moved"),
        ("rounds", f"virtual time ({second_unit})", f"bytes down and up, real ({byte_unit})"),
        strict=True,
    ):
        axes.set(title=title, xlabel=unit, xlim=(0, None))
        if target is not None:
            axes.axhline(100 * target, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2, label="target")
    panels[0].set_ylabel("test accuracy (%)")
    panels[0].xaxis.set_major_locator(plot_style.whole())
    plot_style.legend(figure, panels[0])
    return figure


def to_target(groups: Sequence[RunGroup], target: float | None) -> Figure | None:
    """Virtual time and bytes until the target as bars, of groups with several seeds the means and their 95 % intervals.

    None if no run reached it; of a group in which not every seed did, how many did.
    """
    points = [[progress.to_target(run.trail, target) for run in group.runs] for group in groups]
    if not any(point for of_group in points for point in of_group):
        return None
    means = {
        field: [
            progress.with_interval([None if point is None else float(getattr(point, field)) for point in own])
            for own in points
        ]
        for field in ("virtual_seconds", "nbytes", "nominal_nbytes")
    }
    labels = reflow.wide_ticks([group.label for group in groups])
    figure, panels = plot_style.panels(2, 2, 90 + reflow.row_pixels(labels, 44) * len(groups), sharey=True)
    has_nominal = any(group.first.shows_nominal for group in groups)
    offset, height = (-0.15, 0.32) if has_nominal else (0.0, 0.56)
    looks = colours([group.first for group in groups])
    times, real = (_of_column(means[name], of) for name, of in (("virtual_seconds", SECONDS), ("nbytes", BYTES)))
    for place, (group, own) in enumerate(zip(groups, points, strict=True)):
        colour = looks[group.first.method]
        if not all(own):
            for axes in panels:
                text = _not_reached(group, sum(point is not None for point in own))
                axes.text(0.015, place, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED)
            continue
        _bar(panels[0], place, 0.56, colour, means["virtual_seconds"][place], times)
        _bar(panels[1], place + offset, height, colour, means["nbytes"][place], real)
        if has_nominal:
            nominal = means["nominal_nbytes"][place]["mean"] / real.scale
            panels[1].barh(place + 0.2, nominal, 0.2, color=colour, alpha=0.4, label="_nominal")
    panels[0].set(title="Virtual time to the target", xlabel=f"virtual time ({times.unit})")
    title = "Bytes to the target" + (": real, and nominal (pale)" if has_nominal else "")
    panels[1].set(title=title, xlabel=f"bytes down and up ({real.unit})")
    panels[0].set_yticks(range(len(groups)), labels)
    panels[0].set_ylim(len(groups) - 0.5, -0.5)
    for axes in panels:
        axes.set_xlim(0, 1.25 * axes.dataLim.x1 if axes.patches else 1)
        plot_style.bars(axes)
    return figure


def _of_column(found: Sequence[Mapping[str, Any]], quantity: Quantity) -> Column:
    return Column.of(quantity, (each["mean"] for each in found), (each["half_width"] for each in found))


def _bar(axes: Axes, place: float, height: float, colour: str, found: Mapping[str, Any], column: Column) -> None:
    """A bar of a mean, its interval if it has one, and both in words."""
    mean, half = found["mean"] / column.scale, (found["half_width"] or 0.0) / column.scale
    axes.barh(place, mean, height, color=colour)
    if half:
        axes.hlines(place, max(mean - half, 0.0), mean + half, color=INK, linewidth=1.6)
    plot_style.note(axes, mean + half, place, column.text(found["mean"], found["half_width"]))


def _not_reached(group: RunGroup, reached: int) -> str:
    if reached:
        return f"reached by {reached} of {len(group.runs)} seeds"
    best = [run.best() for run in group.runs]
    known = [accuracy for accuracy in best if accuracy is not None]
    return "not reached" + (f", best {100 * max(known):.1f} %" if known else "")


def bottlenecks(groups: Sequence[RunGroup]) -> Figure | None:
    """Rounds and virtual time by bottleneck: one stacked bar per group, of means over its seeds."""
    counts = [(group, [blame.bottlenecks(run.query) for run in group.runs]) for group in groups]
    counts = [(group, own) for group, own in counts if any(count.rounds for each in own for count in each.values())]
    if not counts:
        return None
    labels = reflow.wide_ticks([group.label for group, _ in counts])
    figure, panels = plot_style.panels(2, 2, 110 + reflow.row_pixels(labels, 34) * len(counts), sharey=True)
    means = [
        {name: np.mean([[each[name].rounds, each[name].seconds] for each in own], axis=0) for name in BLAMED}
        for _, own in counts
    ]
    scale, unit = plot_style.unit(
        (np.array([sum(amounts[1] for amounts in own.values())]) for own in means), units.SECONDS
    )
    for place, own in enumerate(means):
        floors = [0.0, 0.0]
        for name, (rounds, seconds) in own.items():
            for which, amount in enumerate((rounds, seconds / scale)):
                panels[which].barh(place, amount, 0.56, floors[which], color=BLAMED[name], label="_" * place + name)
                floors[which] += amount
    panels[0].set(title="Rounds by bottleneck", xlabel="rounds")
    panels[1].set(title="Virtual time by bottleneck", xlabel=f"virtual time ({unit})")
    panels[0].set_yticks(range(len(counts)), labels)
    panels[0].set_ylim(len(counts) - 0.5, -0.5)
    panels[0].xaxis.set_major_locator(plot_style.whole())
    for axes in panels:
        plot_style.bars(axes)
    plot_style.legend(figure, panels[0])
    return figure


def timing(runs: Sequence[RecordedRun]) -> Figure | None:
    """Virtual time of each round: the phases of its critical visit, and the others' mean waiting time."""
    found = [(run, rows) for run in runs if not run.is_asynchronous and (rows := run.query(CRITICAL))]
    if not found:
        return None
    columns = min(2, len(found))
    figure, panels = plot_style.panels(len(found), columns, 270, sharey=True)
    lengths = (np.array([row.end_s - row.start_s for row in run.rounds]) for run, _ in found)
    scale, unit = plot_style.unit(lengths, units.SECONDS)
    keys = ("round_start_s", "start_s", "down_end_s", "compute_end_s", "up_end_s")
    has_waits = any(row["start_s"] > row["round_start_s"] for _, rows in found for row in rows)
    for (run, rows), axes in zip(found, panels, strict=False):
        spans = np.diff([[row[key] for key in keys] for row in rows], axis=1) / scale  # (rounds, 4)
        rounds = [row["round"] + 1 for row in rows]
        names = ("waiting for clients", "download", "compute", "upload")
        layers = list(zip(names, (NOBODY, DOWN, COMPUTING, UP), spans.T, strict=True))
        plot_style.stack(axes, rounds, layers if has_waits else layers[1:])
        waits = [np.nan if row["others_wait_s"] is None else row["others_wait_s"] / scale for row in rows]
        axes.plot(
            rounds, waits, color=INK, linewidth=1.3, linestyle=(0, (4, 2)), label="mean waiting time of the others"
        )
        axes.set(title=reflow.wide_title(run.label, columns), xlabel="round")
    for axes in panels[::columns]:
        axes.set(ylabel=f"virtual time ({unit})", ylim=(0, None))
    plot_style.legend(figure, panels[0])
    return figure


def staleness(runs: Sequence[RecordedRun]) -> Figure | None:
    """Staleness of the updates of asynchronous runs, in server steps."""
    found = [(run, counts) for run in runs if run.is_asynchronous and (counts := blame.staleness(run.query))]
    if not found:
        return None
    columns = min(2, len(found))
    figure, panels = plot_style.panels(len(found), columns, 230, sharex=True)
    oldest = max(max(counts) for _, counts in found)
    step = oldest // MAX_STALENESS_BARS + 1
    edges = np.arange(0, oldest + step + 1, step) - 0.5
    for (run, counts), axes in zip(found, panels, strict=False):
        ages, numbers = np.array(list(counts.items())).T
        heights, _ = np.histogram(ages, edges, weights=numbers)
        axes.bar(edges[:-1] + step / 2, heights, 0.9 * step, color=colours(runs)[run.method])
        mean = float(np.average(ages, weights=numbers))
        axes.axvline(mean, color=INK, linewidth=1.3, linestyle=(0, (4, 2)))
        title = reflow.wide_title(f"{run.label}: mean {mean:.1f}", columns)
        axes.set(title=title, xlabel="server steps", xlim=(edges[0], edges[-1]))
        axes.tick_params(labelbottom=True)
        axes.grid(False, axis="x")
        axes.xaxis.set_major_locator(plot_style.whole())
        axes.yaxis.set_major_locator(plot_style.whole())
    for axes in panels[::columns]:
        axes.set_ylabel("updates")
    return figure


def blocks(groups: Sequence[RunGroup]) -> Figure | None:
    """Bytes of each block, down and up, means over seeds; where nominal costs are shown, 1/M of the model is marked."""
    found = [(group, rows) for group in groups if (rows := _mean_traffic(group))]
    if not found:
        return None
    columns, has_nominal = min(2, len(found)), any(group.first.shows_nominal for group in groups)
    most = max(len(rows) for _, rows in found)
    figure, panels = plot_style.panels(len(found), columns, 90 + 32 * most, sharex=True)
    scale, unit = plot_style.unit(
        (np.array([[row.down, row.up] for row in rows], float) for _, rows in found), units.BYTES
    )
    for (group, rows), axes in zip(found, panels, strict=False):
        place = np.arange(len(rows))
        for offset, colour, name, real, nominal in (
            (-0.19, DOWN, "down", [row.down for row in rows], [row.nominal_down for row in rows]),
            (0.19, UP, "up", [row.up for row in rows], [row.nominal_up for row in rows]),
        ):
            axes.barh(place + offset, np.divide(real, scale), 0.34, color=colour, label=name)
            x, y = np.divide(nominal, scale), place + offset
            if has_nominal:
                axes.vlines(x, y - 0.19, y + 0.19, color=INK, linewidth=1.6)
        axes.set(title=reflow.wide_title(group.label, columns), xlabel=f"bytes ({unit})", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(place, [row.name for row in rows])
        axes.tick_params(labelbottom=True)
        plot_style.bars(axes)
    panels[0].set_xlim(left=0)
    plot_style.legend(figure, panels[0])
    return figure


def _mean_traffic(group: RunGroup) -> list[BlockTraffic]:
    """The bytes of each block, as means over the seeds of a group; a block that a seed never sent counts 0 there."""
    sums: dict[str, list[float]] = {}
    for run in group.runs:
        for row in run.traffic():
            if row.name not in NO_BLOCKS:
                own = sums.setdefault(row.name, [0.0] * 4)
                for index, nbytes in enumerate((row.down, row.up, row.nominal_down, row.nominal_up)):
                    own[index] += nbytes / len(group.runs)
    return [BlockTraffic(name, *means) for name, means in sums.items()]


# Per round: the critical visit, and how long the others that counted had waited by the end of the round.
CRITICAL = """SELECT r.round, r.start_s AS round_start_s, r.end_s, c.start_s, c.down_end_s, c.compute_end_s, c.up_end_s,
    AVG(r.end_s - o.up_end_s) AS others_wait_s
    FROM rounds r JOIN visits c ON c.round = r.round AND c.client = r.critical
    LEFT JOIN visits o ON o.round = r.round AND o.client != r.critical AND o.kind = 'train'
    GROUP BY r.round ORDER BY r.round"""


def lines(runs: Sequence[RecordedRun]) -> dict[str, dict[str, Any]]:
    """Label -> style of its line: a colour and dashes per method, other dashes for further runs of the method."""
    seen: Counter[str] = Counter()
    styles = {}
    for run in runs:
        styles[run.label] = method_style.line(run.method, seen[run.method])
        seen[run.method] += 1
    return styles
