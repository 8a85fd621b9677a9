"""The report's figures, each as one inline SVG. Draws what it is given, and never opens a window or a file.

Every figure is as wide as the page's column: one unit of the SVG is one CSS pixel there. Colours are Okabe and Ito's,
told apart by readers with any kind of colour vision (https://jfly.uni-koeln.de/color/, 2008).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from costmodel.units import BYTES, SECONDS, format_bytes, format_seconds
from scenarios.runs import NO_BLOCKS, Doubles, Run

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a6a00", "#000000")
# Paler than any method, so that a phase is not taken for one.
DOWN, COMPUTE, UP = "#9cc3e6", "#ecd9a8", "#5f8f8b"
MUTED, INK = "#6b7280", "#1f2430"
PIXELS_PER_INCH = 72
WIDTH_PIXELS = 1160
MAX_CLIENTS = 100
# The key type is matplotlib's list of names, which only a literal at the call could satisfy.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 12,
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c3c8d0",
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": "#eceef2",
    "text.color": INK,
    "xtick.color": "#c3c8d0",
    "ytick.color": "#c3c8d0",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.wspace": 0.03,
    "figure.constrained_layout.hspace": 0.05,
}


def draw(runs: Sequence[Run], target: float | None) -> dict[str, str]:
    """Figure name -> inline SVG, for every figure that these runs have numbers for."""
    started = [run for run in runs if len(run.accuracy)]
    sources: dict[str, Callable[[], Figure | None]] = {
        "curves": lambda: curves(started, target),
        "to_target": lambda: to_target(started, target),
        "choices": lambda: choices(started),
        "timing": lambda: timing(started),
        "blocks": lambda: blocks(started),
        "partition": lambda: partition(runs),
    }
    drawn = {}
    with matplotlib.rc_context(STYLE):
        for name, source in sources.items():
            figure = source()
            if figure is not None:
                drawn[name] = svg(figure, name)
    return drawn


def colours(runs: Sequence[Run]) -> dict[str, str]:
    """Method -> its colour in every figure, in the order in which the runs are given."""
    methods = dict.fromkeys(run.method for run in runs)
    return {method: PALETTE[index % len(PALETTE)] for index, method in enumerate(methods)}


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element to stand within HTML: equal bytes for equal numbers, and no address in it."""
    file = io.BytesIO()
    # The salt keeps the ids of clip paths and markers apart from those of other figures on the page.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue().decode()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-labelledby="{name}-caption"', 1)
    # Namespaces are HTML's to know, and ids such as "axes_1" would stand on the page once per figure.
    return re.sub(r' (?:xmlns(?::\w+)?="[^"]*"|id="[A-Za-z0-9.]+_\d+")', "", text)


def curves(runs: Sequence[Run], target: float | None) -> Figure | None:
    """Accuracy against rounds, virtual time and bytes, one line per run."""
    if not any(run.final() is not None for run in runs):
        return None
    figure, panels = _panels(3, 3, 380, sharey=True)
    seconds, second_unit = _unit((run.rounds["end_s"] for run in runs), SECONDS)
    nbytes, byte_unit = _unit((run.nbytes for run in runs), BYTES)
    lines = _lines(runs)
    for run in runs:
        known = ~np.isnan(run.accuracy)
        x_axes = (np.arange(1, len(known) + 1), run.rounds["end_s"] / seconds, run.nbytes / nbytes)
        for axes, x in zip(panels, x_axes, strict=True):
            marker = "o" if known.sum() < 3 else ""
            axes.plot(x[known], 100 * run.accuracy[known], label=run.label, marker=marker, **lines[run.label])
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
    _legend(figure, panels[0])
    return figure


def to_target(runs: Sequence[Run], target: float | None) -> Figure | None:
    """Virtual time and bytes until the target as bars; None if no run reached it."""
    # (runs, 3): virtual seconds, real and nominal bytes; NaN where the target was not reached.
    needed = np.array(
        [[run.at_target(x, target) for x in (run.rounds["end_s"], run.nbytes, run.nominal_nbytes)] for run in runs],
        float,
    )
    if not np.isfinite(needed).any():
        return None
    figure, panels = _panels(2, 2, 90 + 44 * len(runs), sharey=True)
    seconds, second_unit = _unit([needed[:, 0]], SECONDS)
    nbytes, byte_unit = _unit([needed[:, 1:]], BYTES)
    for place, (run, (time, real, nominal)) in enumerate(zip(runs, needed, strict=True)):
        colour = colours(runs)[run.method]
        if np.isnan(time):
            best = run.best()
            note = "not reached" + (f", best {100 * best:.1f} %" if best is not None else "")
            for axes in panels:
                axes.text(0.015, place, note, transform=axes.get_yaxis_transform(), va="center", color=MUTED)
            continue
        panels[0].barh(place, time / seconds, 0.56, color=colour)
        _note(panels[0], time / seconds, place, format_seconds(time))
        panels[1].barh(place - 0.15, real / nbytes, 0.32, color=colour)
        panels[1].barh(place + 0.2, nominal / nbytes, 0.2, color=colour, alpha=0.4)
        _note(panels[1], real / nbytes, place - 0.15, format_bytes(real))
    panels[0].set(title="Virtual time to the target", xlabel=f"virtual time ({second_unit})")
    panels[1].set(title="Bytes to the target: real, and nominal (pale)", xlabel=f"bytes down and up ({byte_unit})")
    panels[0].set_yticks(range(len(runs)), [run.label for run in runs])
    panels[0].set_ylim(len(runs) - 0.5, -0.5)
    for axes in panels:
        axes.set_xlim(0, 1.18 * axes.dataLim.x1)
        _bars(axes)
    return figure


def choices(runs: Sequence[Run]) -> Figure | None:
    """How many clients got each alpha, by round, and what the bandit thought and got."""
    found = [(run, rows) for run in runs if (rows := run.query(CHOSEN))]
    if not found:
        return None
    figure, panels = _panels(2 * len(found), 2, 330)
    alphas = sorted({row["alpha"] for _, rows in found for row in rows})
    shades = dict(zip(alphas, matplotlib.colormaps["YlGnBu"](np.linspace(0.25, 0.95, len(alphas))), strict=True))
    for (run, rows), counted, learned in zip(found, panels[::2], panels[1::2], strict=True):
        rounds = sorted({row["round"] for row in rows})
        counts = {alpha: np.zeros(len(rounds)) for alpha in alphas}
        for row in rows:
            counts[row["alpha"]][rounds.index(row["round"])] = row["clients"]
        _stack(counted, rounds, [(f"α = {alpha}", shades[alpha], counts[alpha]) for alpha in alphas])
        full = [row["round"] for row in rows if row["full_clients"]]
        top = np.sum(list(counts.values()), axis=0).max()
        counted.plot(sorted(set(full)), [1.05 * top] * len(set(full)), "v", color=INK, ms=5, label="full download")
        counted.set(title=f"{run.label}: blocks downloaded", xlabel="round", ylabel="clients")
        counted.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1, borderaxespad=0)
        means = run.query("SELECT round, AVG(value) AS value, AVG(reward) AS reward FROM choices GROUP BY round")
        for key, label, colour in (("value", "V of the chosen α", PALETTE[0]), ("reward", "reward", PALETTE[3])):
            learned.plot([row["round"] for row in means], [row[key] for row in means], color=colour, label=label)
        learned.set(title=f"{run.label}: expected and received", xlabel="round", ylabel="mean over clients (no unit)")
        learned.legend(loc="upper right")
    return figure


def timing(runs: Sequence[Run]) -> Figure | None:
    """Where each round's virtual time went: the slowest client's visit, and the others' waiting for it."""
    found = [(run, rows) for run in runs if (rows := run.query(SLOWEST))]
    if not found:
        return None
    columns = min(2, len(found))
    figure, panels = _panels(len(found), columns, 270, sharey=True)
    scale, unit = _unit((run.rounds["end_s"] - run.rounds["start_s"] for run, _ in found), SECONDS)
    for (run, rows), axes in zip(found, panels, strict=False):
        ends = np.array([[row[key] for key in ("start_s", "down_end_s", "compute_end_s", "up_end_s")] for row in rows])
        spans = np.diff(ends, axis=1) / scale  # (rounds, 3)
        rounds = [row["round"] for row in rows]
        names = ("download", "compute", "upload")
        _stack(axes, rounds, list(zip(names, (DOWN, COMPUTE, UP), spans.T, strict=True)))
        waits = [_others_wait(row) / scale for row in rows]
        axes.plot(rounds, waits, color=INK, linewidth=1.3, linestyle=(0, (4, 2)), label="mean waiting of the others")
        axes.set(title=run.label, xlabel="round")
    for axes in panels[::columns]:
        axes.set(ylabel=f"virtual time ({unit})", ylim=(0, None))
    _legend(figure, panels[0])
    return figure


def blocks(runs: Sequence[Run]) -> Figure | None:
    """Bytes of each block, down and up, beside what a nominal 1/M of the model per block would be."""
    each = [(run, [row for row in run.traffic() if row.name not in NO_BLOCKS]) for run in runs]
    found = [(run, rows) for run, rows in each if rows]
    if not found:
        return None
    columns = min(2, len(found))
    most = max(len(rows) for _, rows in found)
    figure, panels = _panels(len(found), columns, 90 + 32 * most, sharex=True)
    scale, unit = _unit((np.array([[row.down, row.up] for row in rows], float) for _, rows in found), BYTES)
    for (run, rows), axes in zip(found, panels, strict=False):
        place = np.arange(len(rows))
        for offset, colour, name, real, nominal in (
            (-0.19, DOWN, "down", [row.down for row in rows], [row.nominal_down for row in rows]),
            (0.19, UP, "up", [row.up for row in rows], [row.nominal_up for row in rows]),
        ):
            axes.barh(place + offset, np.divide(real, scale), 0.34, color=colour, label=name)
            x, y = np.divide(nominal, scale), place + offset
            axes.vlines(x, y - 0.19, y + 0.19, color=INK, linewidth=1.6)
        axes.set(title=run.label, xlabel=f"bytes ({unit})", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(place, [row.name for row in rows])
        axes.tick_params(labelbottom=True)
        _bars(axes)
    panels[0].set_xlim(left=0)
    _legend(figure, panels[0])
    return figure


def partition(runs: Sequence[Run]) -> Figure | None:
    """Training examples per client and class as a heat map, of the first clients only if there are many."""
    found = next((run.histogram for run in runs if run.histogram), None)
    if found is None:
        return None
    counts = np.array(found[:MAX_CLIENTS], float).T  # (classes, clients)
    figure, (axes,) = _panels(1, 1, min(560, 130 + 20 * len(counts)))
    image = axes.imshow(counts, cmap="YlGnBu", aspect="auto", interpolation="none", vmin=0)
    axes.grid(False)
    axes.set(xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(_whole())
    axes.yaxis.set_major_locator(_whole())
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label("training examples", color=MUTED)
    return figure


CHOSEN = """SELECT round, alpha, COUNT(*) AS clients, SUM("full") AS full_clients FROM choices
    GROUP BY round, alpha ORDER BY round, alpha"""
# Where MAX() stands alone, SQLite takes the other columns of a group from the row that has it: the slowest visit.
SLOWEST = """SELECT v.round, v.start_s, v.down_end_s, v.compute_end_s, MAX(v.up_end_s) AS up_end_s,
    r.end_s, SUM(r.end_s - v.up_end_s) AS waited_s, COUNT(*) AS clients
    FROM visits v JOIN rounds r USING (round) WHERE v.kind = 'train' GROUP BY v.round ORDER BY v.round"""


def _others_wait(row: Any) -> float:
    """Mean seconds from the end of a visit to the end of the round, over all clients but the slowest."""
    slowest = row["end_s"] - row["up_end_s"]
    return float((row["waited_s"] - slowest) / max(row["clients"] - 1, 1))


def _panels(
    count: int, columns: int, height_pixels: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page with ``count`` panels, ``columns`` to a row, each row of the given height."""
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH_PIXELS / PIXELS_PER_INCH, rows * height_pixels / PIXELS_PER_INCH))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flatten()
    for spare in grid[count:]:
        spare.remove()
    return figure, list(grid[:count])


def _unit(amounts: Iterable[Doubles], units: Mapping[str, Any]) -> tuple[float, str]:
    """(scale, name) of the largest unit of which the largest amount holds at least one."""
    known = (amount[np.isfinite(amount)] for amount in amounts)
    largest = max((float(amount.max()) for amount in known if amount.size), default=0.0)
    fitting = [(float(scale), name) for name, scale in units.items() if scale <= largest]
    return max(fitting) if fitting else (1.0, next(name for name, scale in units.items() if scale == 1))


def _lines(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Label -> how its line is drawn: a colour per method, and a dash per run of the same method."""
    dashes, seen = ("-", "--", ":", "-."), dict.fromkeys((run.method for run in runs), 0)
    lines = {}
    for run in runs:
        lines[run.label] = {"color": colours(runs)[run.method], "linestyle": dashes[seen[run.method] % len(dashes)]}
        seen[run.method] += 1
    return lines


def _stack(axes: Axes, rounds: Sequence[int], layers: Sequence[tuple[str, Any, Doubles]]) -> None:
    """Stacked steps, one unit of width per round: (label, colour, heights (rounds,)) from the bottom up."""
    edges = np.append(np.array(rounds) - 0.5, rounds[-1] + 0.5)
    floor = np.zeros(len(rounds))
    for label, colour, heights in layers:
        axes.stairs(floor + heights, edges, baseline=floor, fill=True, color=colour, label=label)
        floor = floor + heights
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_locator(_whole())


def _whole() -> MaxNLocator:
    """Ticks at whole numbers, for axes that count."""
    return MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10])


def _bars(axes: Axes) -> None:
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=INK)


def _legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, under them, since they share their colours."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(handles)))
