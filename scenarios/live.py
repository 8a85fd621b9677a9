"""What the user sees while a run works: a live table on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coordinator.federation import Progress
from costmodel.units import format_bytes, format_seconds
from scenarios.load import Loaded

KEPT_ROWS = 12
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass
class _Run:
    """What is known of one run of the table."""

    name: str
    rounds_max: int
    started: float
    accuracies: list[float] = field(default_factory=list)
    last: Progress | None = None
    ended: float | None = None

    @property
    def wall(self) -> float:
        return (self.ended or time.monotonic()) - self.started

    @property
    def eta(self) -> float | None:
        """Seconds until the last round, at the pace so far."""
        if self.last is None or self.ended is not None:
            return None
        return self.wall / self.last.rounds * (self.rounds_max - self.last.rounds) if self.last.rounds else None


class Show:
    """Takes `on_start` and `on_round` of any number of runs, one after another."""

    def __init__(self, stream: IO[str] | None = None, quiet: bool = False) -> None:
        self._console = Console(file=stream or sys.stderr)
        self._quiet = quiet
        self._runs: list[_Run] = []
        self._rows: list[tuple[str, ...]] = []
        self._live: Live | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The live table, where there is a terminal."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, get_renderable=self._table) as self._live:
            yield

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """A run begins."""
        if self._runs:
            self._runs[-1].ended = time.monotonic()
        self._runs.append(_Run(loaded.scenario.method, loaded.scenario.rounds.max, time.monotonic()))
        if self._live is None and not self._quiet:
            self._console.print(
                f"{loaded.name}: {loaded.scenario.method}, run folder {folder}", highlight=False, soft_wrap=True
            )

    def on_round(self, progress: Progress) -> None:
        """A round has been committed."""
        run = self._runs[-1]
        run.last = progress
        if progress.row.accuracy is not None:
            run.accuracies.append(progress.row.accuracy)
        if progress.rounds == run.rounds_max:
            run.ended = time.monotonic()
        cells = _cells(run, progress)
        self._rows = [*self._rows, cells][-KEPT_ROWS:]
        if self._live is None and not self._quiet:
            self._console.print("  ".join(cell for cell in _plain(cells)), highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title, justify in COLUMNS:
            table.add_column(title, justify="left" if justify == "left" else "right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        for run in self._runs:
            if run.accuracies:
                table.add_row(run.name, "", "", _spark(run.accuracies), style="cyan")
        return table


COLUMNS = (
    ("method", "left"),
    ("round", "right"),
    ("accuracy", "right"),
    ("virtual time", "right"),
    ("down", "right"),
    ("up", "right"),
    ("clients", "right"),
    ("alpha histogram", "left"),
    ("wall", "right"),
    ("ETA", "right"),
)


def _cells(run: _Run, progress: Progress) -> tuple[str, ...]:
    row = progress.row
    return (
        run.name,
        f"{progress.rounds}/{run.rounds_max}",
        "-" if row.accuracy is None else f"{100 * row.accuracy:.2f} %",
        format_seconds(row.end_s),
        format_bytes(progress.bytes_down),
        format_bytes(progress.bytes_up),
        str(row.participants),
        alphas(progress.alphas),
        format_seconds(run.wall),
        "" if run.eta is None else format_seconds(run.eta),
    )


def _plain(cells: tuple[str, ...]) -> list[str]:
    names = ("", "round", "accuracy", "virtual", "down", "up", "clients", "alpha", "wall", "ETA")
    return [f"{name} {cell}".strip() for name, cell in zip(names, cells, strict=True) if cell]


def alphas(counts: Mapping[int, int]) -> str:
    """``1×4 3×6``: how many visits got which alpha."""
    return " ".join(f"{alpha}×{count}" for alpha, count in sorted(counts.items()))


def _spark(values: list[float]) -> str:
    """The curve so far in one line of blocks, from 0 to 1."""
    step = max(1, len(values) // 40)
    return "".join(SPARKS[min(7, int(8 * value))] for value in values[::step])
