"""Who took part: training visits per client, of which some did not count, and clients that never had one.

Of asynchronous runs also how stale each client's updates were, against the length of its visits.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coordinator.records.schema import DOWNLOAD_ONLY, NO_TRAINING, TRAIN, TRAINED
from costmodel.units import SECONDS
from scenarios.report import plot_style, reflow, theme
from scenarios.report.run_reader import RecordedRun

MOST_BARS = 40
VISITS = f"""SELECT client, kind IN ({", ".join(f"'{kind}'" for kind in TRAINED)}) AS counted, COUNT(*) AS n
    FROM visits WHERE kind NOT IN ({", ".join(f"'{kind}'" for kind in (*NO_TRAINING, DOWNLOAD_ONLY))})
    GROUP BY client, counted"""
STALENESS = f"""SELECT client, AVG(staleness) AS staleness, AVG(up_end_s - start_s) AS seconds
    FROM visits WHERE kind = '{TRAIN}' GROUP BY client ORDER BY client"""


@dataclass(frozen=True)
class Participation:
    """Training visits per client of one run; visits that only evaluate or download are none."""

    clients: int
    counted: Mapping[int, int]
    """Client -> visits that counted, for clients with any"""
    wasted: Mapping[int, int]
    """Client -> visits that did not count, for clients with any"""

    @property
    def never(self) -> int:
        """Clients without any training visit."""
        return self.clients - len(self.counted.keys() | self.wasted.keys())

    def histogram(self) -> dict[int, int]:
        """Visits that counted -> number of clients with so many, 0 among them."""
        numbers = Counter(self.counted.values())
        numbers[0] = self.clients - len(self.counted)
        return dict(sorted((visits, clients) for visits, clients in numbers.items() if clients))

    def per_client(self) -> list[int]:
        """(clients,) visits that counted, ascending."""
        return [0] * (self.clients - len(self.counted)) + sorted(self.counted.values())

    def quartiles(self) -> tuple[float, float, float]:
        """(fewest, median, most) visits per client that counted."""
        every = self.per_client() or [0]
        return every[0], statistics.median(every), every[-1]

    def busiest_share(self) -> float | None:
        """Share of the visits that counted which the busiest tenth of the clients had; None without visits."""
        every = self.per_client()
        busiest = every[-max(1, len(every) // 10) :]
        return sum(busiest) / sum(every) if any(every) else None


def participation(run: RecordedRun) -> Participation:
    """The visits per client of a run."""
    counts: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for row in run.query(VISITS):
        counts[bool(row["counted"])][int(row["client"])] = int(row["n"])
    seen = {client for known in counts.values() for client in known}
    stated = (run.scenario.get("data") or {}).get("clients") or 0
    return Participation(max(int(stated), len(seen)), counts[True], counts[False])


def visits(runs: Sequence[RecordedRun], colours: Mapping[str, str]) -> Figure | None:
    """A histogram per run: clients by the number of their visits that counted; those without any are grey."""
    found = [(run, own) for run in runs if (own := participation(run)).clients and (own.counted or own.wasted)]
    if not found:
        return None
    columns = min(3, len(found))
    figure, panels = plot_style.panels(len(found), columns, 230)
    for (run, own), axes in zip(found, panels, strict=True):
        _histogram(axes, own, colours[run.method])
        title = reflow.wide_title(f"{run.label}: {own.never} of {own.clients} never visited", columns)
        axes.set(title=title, xlabel="visits that counted")
    for axes in panels[::columns]:
        axes.set_ylabel("clients")
    return figure


def _histogram(axes: Axes, found: Participation, colour: str) -> None:
    numbers = found.histogram()
    width = max(numbers) // MOST_BARS + 1
    bins: Counter[int] = Counter()
    for number, clients in numbers.items():
        if number:
            bins[(number - 1) // width] += clients
    centres = [1 + width * place + (width - 1) / 2 for place in bins]
    if numbers.get(0):
        axes.bar([0], [numbers[0]], 0.9, color=theme.NOBODY, label="none")
    axes.bar(centres, list(bins.values()), 0.9 * width, color=colour, label=f"{width} wide" if width > 1 else "clients")
    axes.grid(False, axis="x")
    axes.xaxis.set_major_locator(plot_style.whole())
    axes.yaxis.set_major_locator(plot_style.whole())


def staleness(runs: Sequence[RecordedRun], colours: Mapping[str, str]) -> Figure | None:
    """A mark per client of each asynchronous run: its mean staleness against the mean length of its visits."""
    found = [(run, rows) for run in runs if run.is_asynchronous and (rows := run.query(STALENESS))]
    if not found:
        return None
    columns = min(2, len(found))
    figure, panels = plot_style.panels(len(found), columns, 260)
    scale, unit = plot_style.unit((np.array([row["seconds"] for row in rows], float) for _, rows in found), SECONDS)
    for (run, rows), axes in zip(found, panels, strict=True):
        seconds, ages = [row["seconds"] / scale for row in rows], [row["staleness"] for row in rows]
        axes.scatter(seconds, ages, s=24, alpha=0.75, color=colours[run.method], linewidths=0)
        axes.set(title=reflow.wide_title(run.label, columns), xlabel=f"mean length of a visit ({unit})")
        axes.set(xlim=(0, None), ylim=(0, None))
    for axes in panels[::columns]:
        axes.set_ylabel("mean staleness (server steps)")
    return figure
