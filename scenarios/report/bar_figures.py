"""Figures of horizontal bars, a row per group: costs to the target, bottlenecks, energy, blocks, and times in draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coordinator.records.schema import (
    AIR,
    COMPUTE,
    DEADLINE,
    ENERGY,
    GATEWAY,
    LAN,
    OWN_LINK,
    ROUND_TRIPS,
    SERVER,
    SERVER_LINK,
    WAITING,
    WAN,
)
from coordinator.rounds import amounts
from costmodel import units
from scenarios.report import drawn_times, plot_style, readings, theme
from scenarios.report.columns import BYTES, SECONDS, Column
from scenarios.report.drawn_times import Interval
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import NO_BLOCKS, BlockTraffic, RunGroup
from scenarios.report.theme import INK, MUTED
from scenarios.run import visits
from scenarios.run.progress import Mean

BLAMED = {
    OWN_LINK: theme.DOWN,
    SERVER_LINK: theme.SHARED,
    COMPUTE: theme.COMPUTING,
    WAITING: theme.NOBODY,
    WAN: theme.UP,
    GATEWAY: theme.PALETTE[4],
    AIR: theme.PALETTE[4],
    LAN: theme.PALETTE[4],
    ROUND_TRIPS: theme.PALETTE[5],
    SERVER: theme.PALETTE[6],
    DEADLINE: theme.PALETTE[7],
}
"""A fleet has gateways, air or LANs, and never two of them"""
SPENT_ON = dict(zip(ENERGY.values(), (theme.NOBODY, theme.COMPUTING, theme.DOWN, theme.UP), strict=True))
MOST_BARS = 30
"""Of more devices of all groups together, each group is one bar"""


def to_target(shown: ShownRuns) -> Figure | None:
    """Virtual time and bytes until the target as bars, of groups with several seeds the means and their 95 % intervals.

    None if no run reached it; of a group in which not every seed did, how many did.
    """
    groups = shown.started
    if shown.target is None:
        return None
    means = {
        amount.field: [
            readings.until(amount, shown.target).over_seeds(run.trail for run in group.runs) for group in groups
        ]
        for amount in (amounts.VIRTUAL_SECONDS, amounts.BYTES, amounts.NOMINAL_BYTES)
    }
    reached = [sum(value is not None for value in each.values) for each in means["nbytes"]]
    if not any(reached):
        return None
    figure, panels = plot_style.rows_of_bars(shown, [group.label for group in groups], 2, 44)
    has_nominal = any(group.first.shows_nominal for group in groups)
    offset, height = (-0.15, 0.32) if has_nominal else (0.0, 0.56)
    times, real = (
        Column.of(of, (each.mean for each in means[name]), (each.half_width for each in means[name]))
        for name, of in (("virtual_seconds", SECONDS), ("nbytes", BYTES))
    )
    for place, (group, count) in enumerate(zip(groups, reached, strict=True)):
        colour = shown.styles[group.label]["color"]
        if count < len(group.runs):
            best = [run.trail.best for run in group.runs if run.trail.best is not None]
            text = "not reached" + (f", best {_short(shown, best)}" if best else "")
            text = f"reached by {count} of {len(group.runs)} seeds" if count else text
            for axes in panels:
                axes.text(0.015, place, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED)
            continue
        _bar(panels[0], place, 0.56, colour, means["virtual_seconds"][place], times)
        _bar(panels[1], place + offset, height, colour, means["nbytes"][place], real)
        if has_nominal:
            nominal = means["nominal_nbytes"][place].mean or 0.0
            panels[1].barh(place + 0.2, nominal / real.scale, 0.2, color=colour, alpha=0.4, label="_nominal")
    panels[0].set(title="Virtual time to the target", xlabel=f"virtual time ({times.unit})")
    title = "Bytes to the target" + (": real, and nominal (pale)" if has_nominal else "")
    panels[1].set(title=title, xlabel=f"bytes down and up ({real.unit})")
    for axes in panels:
        axes.set_xlim(0, plot_style.room(axes))
    return figure


def _short(shown: ShownRuns, scores: Sequence[float]) -> str:
    """The best of these scores, a share with one decimal."""
    best = shown.score.better.best(scores)
    return f"{100 * best:.1f} %" if shown.score.is_share else shown.score.text(best)


def _bar(axes: Axes, place: float, height: float, colour: str, found: Mean, column: Column) -> None:
    """A bar of a mean, its interval if it has one, and both in words."""
    assert found.mean is not None
    mean, half = found.mean / column.scale, (found.half_width or 0.0) / column.scale
    axes.barh(place, mean, height, color=colour)
    if half:
        axes.hlines(place, max(mean - half, 0.0), mean + half, color=INK, linewidth=1.6)
    text, at = column.text(found.mean, found.half_width), (mean + half, place)
    axes.annotate(text, at, xytext=(6, 0), textcoords="offset points", va="center", color=INK)


def bottlenecks(shown: ShownRuns) -> Figure | None:
    """Rounds and virtual time by bottleneck: one stacked bar per group, of means over its seeds."""
    counts = [(group, [visits.bottlenecks(run.query) for run in group.runs]) for group in shown.started]
    counts = [(group, own) for group, own in counts if any(count.rounds for each in own for count in each.values())]
    if not counts:
        return None
    blamed = {name: color for name, color in BLAMED.items() if any(name in each for _, own in counts for each in own)}
    means = [
        {
            name: np.mean([[each[name].rounds, each[name].seconds] if name in each else [0, 0] for each in own], axis=0)
            for name in blamed
        }
        for _, own in counts
    ]
    scale, unit = plot_style.unit(
        (np.array([sum(amounts[1] for amounts in own.values())]) for own in means), units.SECONDS
    )
    figure, panels = plot_style.rows_of_bars(shown, [group.label for group, _ in counts], 2, 34, 110)
    for which, (axes, of_unit) in enumerate(zip(panels, (1.0, scale), strict=True)):
        _stack_bars(axes, [{name: own[name][which] / of_unit for name in own} for own in means], blamed)
    panels[0].set(title="Rounds by bottleneck", xlabel="rounds")
    panels[1].set(title="Virtual time by bottleneck", xlabel=f"virtual time ({unit})")
    panels[0].xaxis.set_major_locator(plot_style.whole())
    plot_style.legend(figure, panels[0])
    return figure


def _stack_bars(axes: Axes, rows: Sequence[Mapping[str, float]], colours: Mapping[str, str]) -> None:
    """A bar per row, of its parts; the first row names them in the legend."""
    for place, parts in enumerate(rows):
        floor = 0.0
        for name, amount in parts.items():
            axes.barh(place, amount, 0.56, floor, color=colours[name], label="_" * place + name)
            floor += amount


def energy_parts(shown: ShownRuns) -> Figure | None:
    """A stacked bar per kind of device of each group: joules of its clients by what they did, means over seeds."""
    found = [bar for group in shown.started for bar in _bars(group)]
    if not found:
        return None
    if len(found) > MOST_BARS:
        found = [(group.label, _mean([visits.energy(run.query) for run in group.runs])) for group in shown.started]
    scale, unit = plot_style.unit([np.array([sum(joules.values()) for _, joules in found])], units.JOULES)
    figure, (axes,) = plot_style.rows_of_bars(shown, [label for label, _ in found], 1, 34, 110)
    _stack_bars(axes, [{name: amount / scale for name, amount in joules.items()} for _, joules in found], SPENT_ON)
    axes.set(title="Energy by what the clients did", xlabel=f"energy of clients ({unit})")
    plot_style.legend(figure, axes)
    return figure


def _bars(group: RunGroup) -> Iterator[tuple[str, dict[str, float]]]:
    """(label, part -> joules) of each kind of device that spent any; where there is one kind, the group's name."""
    every = [visits.energy_by_device(run.query) for run in group.runs]
    none = dict.fromkeys(ENERGY.values(), 0.0)
    devices = sorted({device for own in every for device, joules in own.items() if any(joules.values())})
    for device in devices:
        label = group.label if len(devices) == 1 else f"{group.label}, {device}"
        yield label, _mean([own.get(device, none) for own in every])


def _mean(every: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(own[name] for own in every) / len(every) for name in ENERGY.values()}


def blocks(shown: ShownRuns) -> Figure | None:
    """Bytes of each block, down and up, means over seeds; where nominal costs are shown, 1/M of the model is marked."""
    found = [(group, rows) for group in shown.started if (rows := _mean_traffic(group))]
    has_nominal = any(group.first.shows_nominal for group, _ in found)
    scale, unit = plot_style.unit(
        (np.array([[row.down, row.up] for row in rows], float) for _, rows in found), units.BYTES
    )

    def draw(axes: Axes, group: RunGroup, rows: Sequence[BlockTraffic]) -> str:
        place = np.arange(len(rows))
        for offset, colour, name, real, nominal in (
            (-0.19, theme.DOWN, "down", [row.down for row in rows], [row.nominal_down for row in rows]),
            (0.19, theme.UP, "up", [row.up for row in rows], [row.nominal_up for row in rows]),
        ):
            axes.barh(place + offset, np.divide(real, scale), 0.34, color=colour, label=name)
            x, y = np.divide(nominal, scale), place + offset
            if has_nominal:
                axes.vlines(x, y - 0.19, y + 0.19, color=INK, linewidth=1.6)
        axes.set(xlabel=f"bytes ({unit})", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(place, [row.name for row in rows])
        axes.tick_params(labelbottom=True)
        plot_style.bars(axes)
        return group.label

    height = 90 + 32 * max((len(rows) for _, rows in found), default=0)
    figure = plot_style.panel_each(shown, found, 2, height, draw, "", with_legend=True, sharex=True)
    for axes in figure.axes[:1] if figure else ():
        axes.set_xlim(left=0)
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


def uncertainty(shown: ShownRuns) -> Figure | None:
    """Virtual time to the target, and of the whole run: the line of an interval, and a dot per run as recorded.

    None if no run has draws.
    """
    found = drawn_times.of_groups(shown.chosen)
    if not found:
        return None
    panels: list[tuple[str, list[tuple[Interval | None, list[float]]]]] = [  # (interval, times as recorded) of a group
        ("Virtual time to the target", []),
        ("Virtual time of the run", []),
    ]
    for group, times in found:
        runs = [run for run in group.runs if run.seed in times.by_seed]
        points = [run.trail.until(times.target_accuracy) for run in runs]
        panels[0][1].append((times.to_target, [point.virtual_seconds for point in points if point is not None]))
        panels[1][1].append((times.to_end, [run.rounds[-1].end_s for run in runs]))
    known = [(title, bars) for title, bars in panels if any(around for around, _ in bars)]
    figure, grid = plot_style.rows_of_bars(shown, [group.label for group, _ in found], len(known), 44)
    for axes, (title, bars) in zip(grid, known, strict=True):
        scale, unit = plot_style.unit([np.array([around.high for around, _ in bars if around])], units.SECONDS)
        for place, ((around, recorded), (group, _)) in enumerate(zip(bars, found, strict=True)):
            if around is None:
                text = "one seed reaches it" if recorded else "not reached"
                axes.text(0.015, place, text, transform=axes.get_yaxis_transform(), va="center", color=INK)
                continue
            colour = shown.styles[group.label]["color"]
            axes.plot([around.low / scale, around.high / scale], [place, place], color=colour, linewidth=5)
            axes.vlines(around.median / scale, place - 0.2, place + 0.2, color=INK, linewidth=1.6)
            axes.plot(np.array(recorded) / scale, [place] * len(recorded), "o", color=INK, ms=5)
        axes.set(title=title, xlabel=f"virtual time ({unit})", xlim=(0, None))
    return figure
