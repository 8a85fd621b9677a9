"""The figure of docs/evidence/scale.md: measured rounds beside perfect ones, and machines per coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.scale_parts.model import CoordinatorCost

RATES = np.geomspace(1e8, 1e11, 40)
MOST = 100_000


def draw(
    rows: Sequence[Mapping[str, Any]], cost: CoordinatorCost, models: Mapping[str, int], workers: int, path: Path
) -> None:
    """``rows``: those of `benchmarks.scale`, with the setting's fields; ``models``: name -> bytes."""
    figure = Figure((9.6, 3.8), layout="constrained")
    measured, limits = figure.subplots(1, 2)
    _draw_measured(measured, rows)
    _draw_limits(limits, cost, models, workers)
    figure.savefig(path, dpi=150)


def _draw_measured(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for link, style in zip(dict.fromkeys(row["link"] for row in rows), ("-", "--"), strict=False):
        for colour, nbytes in enumerate(sorted({row["model_nbytes"] for row in rows if row["link"] == link})):
            chosen = [row for row in rows if row["link"] == link and row["model_nbytes"] == nbytes]
            axes.plot(
                [row["agents"] for row in chosen],
                [100 * row["perfect"] / row["seconds"] for row in chosen],
                style,
                marker="o",
                color=f"C{colour}",
                label=f"{link}, {nbytes / 1e3:,.0f} kB",
            )
    axes.set(xlabel="machines of four workers", ylabel="time of a perfect round, %", ylim=(0, 105), xscale="log")
    ticks = sorted({row["agents"] for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize=7)
    axes.set_title("Measured rounds of ten visits of 0.1 s a worker", fontsize=9)


def _draw_limits(axes: Axes, cost: CoordinatorCost, models: Mapping[str, int], workers: int) -> None:
    for colour, (name, nbytes) in enumerate(models.items()):
        for seconds, style in ((1.0, "-"), (10.0, "--")):
            most = [min(MOST, cost.most_machines(workers, 4, seconds, nbytes, rate)) for rate in RATES]
            axes.plot(RATES / 1e9, most, style, color=f"C{colour}", label=f"{name}, visits of {seconds:g} s")
    axes.set(xlabel="link of the coordinator, Gbit/s", ylabel=f"machines of {workers} workers", xscale="log")
    axes.set_yscale("log")
    axes.legend(fontsize=7)
    axes.set_title("Model: most machines at 90 % of a perfect round", fontsize=9)
