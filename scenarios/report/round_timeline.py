"""The timeline of a round: download, compute, upload and waiting of each client that had a visit ending in it.

Times are virtual seconds from the round's start. Visits that did not count are pale and hatched. In asynchronous runs a
round is the time between two server steps: its visits may have begun before it, and nobody waits.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from coordinator.records.schema import COUNTED, RoundRow
from costmodel.units import SECONDS
from scenarios.report import plot_style, reflow, theme
from scenarios.report.run_reader import RecordedRun

MOST_CLIENTS = 40
"""Visits that are drawn of one round: the longest"""
MOST_RUNS = 6
"""Runs that are drawn when there are several"""
LONG_ROUND_PIXELS = 15
PALE, HATCH = 0.3, "////"
BAR_HEIGHT = 0.72
PHASES = (("download", theme.DOWN), ("compute", theme.COMPUTING), ("upload", theme.UP))
MEDIAN = "median length"
WAITS = "waiting for others"
WASTED = "did not count"
VISITS = "SELECT client, kind, start_s, down_end_s, compute_end_s, up_end_s FROM visits WHERE round = ? ORDER BY visit"


@dataclass(frozen=True)
class TimelineRow:
    """One visit; times in seconds from the round's start."""

    client: int
    counted: bool
    start: float
    down_end: float
    compute_end: float
    up_end: float
    waited: float
    """Seconds from its end to the round's end; 0 if it did not count, or nobody waits"""


@dataclass(frozen=True)
class RoundTimeline:
    """The visits of one round."""

    round: int
    """From 1"""
    seconds: float
    rows: Sequence[TimelineRow]
    """In the order in which visits began; at most `MOST_CLIENTS`"""
    visits: int
    """Before that cut"""


def chosen_rounds(rows: Sequence[RoundRow]) -> dict[int, str]:
    """Round as the ledger numbers it -> why it is shown: the first, one of median length, the slowest.

    Rounds without length are left out, and of rounds of equal length the first is taken.
    """
    lengths = {row.round: row.end_s - row.start_s for row in rows if row.end_s > row.start_s}
    if not lengths:
        return {}
    found: dict[int, list[str]] = {next(iter(lengths)): ["first"]}
    found.setdefault(_of_length(lengths, statistics.median_low(lengths.values())), []).append(MEDIAN)
    found.setdefault(_of_length(lengths, max(lengths.values())), []).append("slowest")
    return {round: ", ".join(why) for round, why in found.items()}


def _of_length(lengths: Mapping[int, float], wanted: float) -> int:
    return next(round for round, length in lengths.items() if length == wanted)


def timeline(run: RecordedRun, round: int) -> RoundTimeline:
    """The visits that ended in a round, as the ledger numbers it."""
    row = next(row for row in run.rounds if row.round == round)
    visits = [_row(visit, row, run.is_asynchronous) for visit in run.query(VISITS, [round])]
    longest = sorted(visits, key=lambda visit: visit.start - visit.up_end)[:MOST_CLIENTS]
    kept = [visit for visit in visits if visit in longest]
    return RoundTimeline(round + 1, row.end_s - row.start_s, kept, len(visits))


def _row(visit: Sequence[float | str], row: RoundRow, nobody_waits: bool) -> TimelineRow:
    client, kind, *times = visit
    start, down_end, compute_end, up_end = (float(time) - row.start_s for time in times)
    counted = kind in COUNTED
    waited = 0.0 if nobody_waits or not counted else max(0.0, row.end_s - row.start_s - up_end)
    return TimelineRow(int(client), counted, start, down_end, compute_end, up_end, waited)


def of_runs(runs: Sequence[RecordedRun]) -> list[tuple[str, RoundTimeline]]:
    """(title, timeline): up to three rounds of a single run, or one of median length of each of several runs."""
    chosen = [(run, chosen_rounds(run.rounds)) for run in runs[:MOST_RUNS]]
    if len(runs) == 1:
        pairs = [(why, run, round) for run, rounds in chosen for round, why in rounds.items()]
    else:
        pairs = [(run.label, run, round) for run, rounds in chosen for round, why in rounds.items() if MEDIAN in why]
    found = [(why, timeline(run, round)) for why, run, round in pairs]
    return [(f"{why}: round {each.round}", each) for why, each in found if each.rows]


def draw(runs: Sequence[RecordedRun]) -> Figure | None:
    """A panel per timeline, a row per client."""
    found = of_runs(runs)
    if not found:
        return None
    most = max(len(each.rows) for _, each in found)
    columns = min(3, len(found))
    figure, panels = plot_style.panels(len(found), columns, 110 + LONG_ROUND_PIXELS * most)
    ends = np.array([max(each.seconds, *(row.up_end for row in each.rows)) for _, each in found])
    scale, unit = plot_style.unit([ends], SECONDS)
    for (title, each), axes in zip(found, panels, strict=True):
        cut = f", the longest {len(each.rows)} of {each.visits} visits" if each.visits > len(each.rows) else ""
        _panel(axes, each, scale)
        axes.set(title=reflow.wide_title(title + cut, columns), xlabel=f"virtual time in the round ({unit})")
    for axes in panels[::columns]:
        axes.set_ylabel("client")
    if any(not row.counted for _, each in found for row in each.rows):
        panels[0].add_artist(Rectangle((0, 0), 0, 0, label=WASTED, **_hatched()))  # seen in the legend alone
    plot_style.legend(figure, panels[0])
    return figure


def _panel(axes: Axes, each: RoundTimeline, scale: float) -> None:
    places = np.arange(len(each.rows))
    for index, (name, colour) in enumerate((*PHASES, (WAITS, theme.NOBODY))):
        spans = np.array([_spans(row)[index] for row in each.rows]) / scale  # (clients, 2)
        begins, widths = spans.T
        bars = axes.barh(places, widths, BAR_HEIGHT, begins, color=colour, label=name)
        for bar, row in zip(bars, each.rows, strict=True):
            bar.set_alpha(None if row.counted else PALE)
    for place, row in zip(places, each.rows, strict=True):
        if not row.counted:
            begin, length = row.start / scale, (row.up_end - row.start) / scale
            axes.add_patch(Rectangle((begin, place - BAR_HEIGHT / 2), length, BAR_HEIGHT, **_hatched()))
    axes.axvline(each.seconds / scale, color=plot_style.INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set_yticks(places, [str(row.client) for row in each.rows])
    axes.set_ylim(len(each.rows) - 0.4, -0.6)
    axes.set_xlim(min(0.0, *(row.start / scale for row in each.rows)), None)
    plot_style.bars(axes)


def _hatched() -> dict[str, Any]:
    """The style of a visit that did not count, over its pale phases: colour alone would not tell it, or not print."""
    return {"facecolor": "none", "edgecolor": plot_style.MUTED, "linewidth": 0, "hatch": HATCH}


def _spans(row: TimelineRow) -> list[tuple[float, float]]:
    """(begin, length) of each of `PHASES`, then of the wait for the round's end."""
    times = (row.start, row.down_end, row.compute_end, row.up_end, row.up_end + row.waited)
    return [(begin, max(0.0, end - begin)) for begin, end in pairwise(times)]
