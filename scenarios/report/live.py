"""Progress of runs on stderr: a live table on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from coordinator.records.schema import HostEvent
from coordinator.rounds.amounts import EPSILON
from coordinator.rounds.budget import RunLimits
from coordinator.rounds.run import RoundFinished
from costmodel.units import format_bytes, format_seconds
from edge.protocol.config import ACCURACY
from edge.protocol.plugins import display_name
from edge.protocol.submodels import RATE
from scenarios.config.load import Loaded
from scenarios.config.schema import StopSection
from scenarios.report.columns import fitting, widths
from scenarios.run.observer import RunObserver
from scenarios.run.score import OF_ACCURACY, RunScore, score_of

SHOWN_ROUNDS = 10
SHOWN_RUNS = 12
"""Of a run set with more runs, those around the current one are shown: a live table that is too high is cut below."""
REFRESHES_PER_SECOND = 4
LISTENING, JOINED, ENDED = "listening", "worker_joined", "worker_died"
"""Kinds of `HostEvent` that are shown."""
COLUMNS = ("round", ACCURACY, "virtual", "down", "up", "clients", "bottleneck", "wall")
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24


@dataclass
class _RunProgress:
    """The progress of one run."""

    name: str
    rounds_max: int | None = 0
    """None where the run does not say how many rounds it will have"""
    column: str = ""
    """The column of the method's own table that is counted, or the rate of parts of the model; '' for neither"""
    values: Sequence[float] = ()
    """The values that this column counts."""
    started: float | None = None
    """Wall-clock seconds; None while the run is queued."""
    ended: float | None = None
    scores: list[float] = field(default_factory=list)
    """The values by which the run is judged, of evaluated rounds"""
    score: RunScore = OF_ACCURACY
    progress: list[tuple[RoundFinished, float]] = field(default_factory=list)
    """The last rounds, each with its wall seconds since the start."""
    first: tuple[int, float] | None = None
    """Rounds and wall seconds at the end of the first round here, before which workers started; None before it."""
    may_end_sooner: bool = False
    """Whether a target or a budget can end the run before its last round."""

    @property
    def rounds(self) -> int:
        """The number of rounds that have ended."""
        return self.progress[-1][0].rounds if self.progress else 0

    def of_rounds(self, number: object) -> str:
        """``3/60``, or ``3`` where the number of rounds is unknown."""
        return str(number) if self.rounds_max is None else f"{number}/{self.rounds_max}"

    def wall_seconds(self) -> float:
        """Seconds since the start of the run, up to its end."""
        if self.started is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def eta_seconds(self) -> float | None:
        """Seconds until the last round, at the pace since the first one; None before the second and after the end."""
        if self.first is None or self.ended is not None or self.rounds == self.first[0] or self.rounds_max is None:
            return None
        last, wall_seconds = self.progress[-1]
        pace = (wall_seconds - self.first[1]) / (last.rounds - self.first[0])
        return max(0.0, pace * (self.rounds_max - last.rounds) - (self.wall_seconds() - wall_seconds))

    def eta_text(self) -> str:
        """``ETA 20 s``, or ``ETA at most 20 s`` where the run may end sooner; '' if it is not known."""
        eta = self.eta_seconds()
        at_most = "at most " if self.may_end_sooner else ""
        return "" if eta is None else f"ETA {at_most}{format_seconds(round(eta))}"


class LiveTable(RunObserver):
    """The progress of runs that follow each other, one for each of ``methods``, and the remote workers of a run."""

    def __init__(
        self,
        methods: Sequence[str],
        stream: IO[str] | None = None,
        quiet: bool = False,
        names: Mapping[str, str] = MappingProxyType({}),
        first_wait_seconds: float | None = None,
        shows_address: bool = True,
    ) -> None:
        """``names``: public key of a remote worker -> the name to show; ``first_wait_seconds``: for the first remote
        worker, of a run that has no others; ``shows_address``: whether somebody needs it to have remote workers join.
        """
        file = stream or sys.stderr
        # Asked here, since rich takes a notebook, and any process with FORCE_COLOR, for a terminal.
        self._console = Console(file=file, force_terminal=file.isatty(), force_jupyter=False)
        self._quiet = quiet
        self._runs = [_RunProgress(display_name(method)) for method in methods]
        self._current = -1
        self._is_live = False
        self._live: Live | None = None
        self._names = names
        wait = "" if first_wait_seconds is None else f"; waiting for the first for {first_wait_seconds:g} s at most"
        self._how = f"for remote workers (fedbr worker --connect){wait}"
        self._shows_address = shows_address
        self._address = ""
        self._joined: dict[str, str] = {}

    def add(self, names: Sequence[str]) -> None:
        """Further runs will follow."""
        self._runs += [_RunProgress(display_name(name)) for name in names]

    def __enter__(self) -> Self:
        """Show the live table, if stderr is a terminal."""
        self._is_live = not self._quiet and self._console.is_terminal
        if self._is_live:
            self._live = Live(
                console=self._console, refresh_per_second=REFRESHES_PER_SECOND, get_renderable=self.render
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """Take note that a run begins, and that the run before it, if any, has ended."""
        if self._current >= 0:
            self._runs[self._current].ended = time.monotonic()
        self._current += 1
        self._begin(self._runs[self._current], folder, loaded)

    def _begin(self, run: _RunProgress, folder: Path, loaded: Loaded) -> None:
        run.started = time.monotonic()
        run.rounds_max = loaded.scenario.rounds.max if loaded.method.app is None else None
        stop, budget = loaded.scenario.stop, loaded.scenario.budget
        run.may_end_sooner = (stop, budget) != (StopSection(), RunLimits())
        run.score = score_of(loaded.scenario.train)
        objective = loaded.method.objective
        if (progress := objective.records.progress) is not None:
            run.column, run.values = progress.column, progress.values(loaded.blocks)
        elif objective.submodels is not None:
            run.column, run.values = RATE, loaded.scenario.submodel.levels
        begun = sum(run.started is not None for run in self._runs)
        ended = [run.wall_seconds() for run in self._runs if run.ended is not None]
        seconds = sum(ended) / max(1, len(ended)) * (len(self._runs) - len(ended))
        pace = f", the rest takes about {format_seconds(round(seconds))} at this pace" if ended else ""
        rest = f"; run {begun} of {len(self._runs)}{pace}" if len(self._runs) > 1 else ""
        self._line(f"{loaded.name}: {run.name}, run folder {folder}{rest}")

    def on_round(self, progress: RoundFinished) -> None:
        """Take note of a round that has been committed."""
        run = self._runs[self._current]
        run.progress = [*run.progress, (progress, run.wall_seconds())][-SHOWN_ROUNDS:]
        run.first = run.first or (progress.rounds, run.wall_seconds())
        if progress.row.judged is not None:
            run.scores.append(progress.row.judged)
        if progress.rounds == run.rounds_max or _is_cut(progress):
            run.ended = time.monotonic()
        self._line(line(run))

    def on_event(self, event: HostEvent) -> None:
        """Take note of the address for remote workers, and of those that come and go."""
        if event.kind == LISTENING and self._shows_address:
            self._address = event.detail
            self._line(f"listening at {event.detail} {self._how}")
        elif event.kind == JOINED:
            key = event.detail.rpartition(" ")[2]
            self._joined[event.worker] = self._names.get(key, key)
            self._line(f"{self._joined[event.worker]} joined; {self._guests()}")
        elif event.kind == ENDED and event.worker in self._joined:
            self._line(f"{self._joined.pop(event.worker)} left ({event.detail}); {self._guests()}")

    def _guests(self) -> str:
        """The remote workers that are there."""
        names = ", ".join(self._joined.values())
        return f"remote workers: {names or 'none'}"

    def _line(self, text: str) -> None:
        if not self._is_live and not self._quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """All runs, and the last rounds of the current run."""
        width = self._console.width
        parts: list[RenderableType] = [_overview(self._runs, self._current, width)]
        if self._address:
            parts.append(f"listening at {self._address}; {self._guests()}")
        elif not self._shows_address:
            parts.append(self._guests())
        if self._current >= 0:
            parts += ["", _rounds(self._runs[self._current], width)]
        return Group(*parts)


class ParallelTable(LiveTable):
    """The progress of runs that are made at the same time, by their names."""

    def __init__(self, names: Sequence[str], stream: IO[str] | None = None, quiet: bool = False) -> None:
        super().__init__(names, stream, quiet)
        self._numbers = {name: number for number, name in enumerate(names)}

    def add(self, names: Sequence[str]) -> None:
        self._numbers |= {name: number for number, name in enumerate(names, start=len(self._runs))}
        super().add(names)

    def about(self, name: str, has_ended: bool = False) -> None:
        """The next calls are about this run; ``has_ended``: it has just ended or failed."""
        self._current = self._numbers[name]
        run = self._runs[self._current]
        if has_ended and run.ended is None:
            run.ended = time.monotonic()

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """Take note that a run begins; others go on."""
        self._begin(self._runs[self._current], folder, loaded)

    def render(self) -> RenderableType:
        """The runs around the one that was told of last."""
        return _overview(self._runs, self._current, self._console.width)


def _is_cut(progress: RoundFinished) -> bool:
    """Whether this row is a round that was cut, or an evaluation after the last round.

    Rounds are numbered from 0, and counted when the server has made its step. A round in which no visit counted is
    whole.
    """
    return bool(progress.row.cut_by) or progress.row.round == progress.rounds


def _overview(runs: Sequence[_RunProgress], current: int, width: int) -> Table:
    first = max(0, min(current - SHOWN_RUNS // 2, len(runs) - SHOWN_RUNS))
    last = min(len(runs), first + SHOWN_RUNS)
    rows = [_state(run) for run in runs[first:last]]
    stay = fitting(widths(rows), width, 2, (SPARK, ETA, WALL)) if rows else []
    table = Table.grid(padding=(0, 2))
    for number in stay:
        table.add_column(no_wrap=True, justify="left" if number in (0, SPARK) else "right")
    if first:
        table.add_row(f"{first} earlier runs", style="dim")
    for run, row in zip(runs[first:last], rows, strict=True):
        style = "dim" if run.started is None else "bold" if run.ended is None else ""
        table.add_row(*(row[index] for index in stay), style=style)
    if last < len(runs):
        table.add_row(f"{len(runs) - last} more runs", style="dim")
    return table


WALL, ETA, SPARK = 3, 4, 5
"""Columns of `_state`"""


def _state(run: _RunProgress) -> list[str]:
    """Name, rounds, score, wall time, time left, and the curve of scores."""
    if run.started is None:
        return [run.name, "queued" if run.ended is None else "ended", "", "", "", ""]
    return [
        run.name,
        run.of_rounds(run.rounds) if run.progress or run.ended is not None else "starting",
        run.score.text(run.scores[-1]) if run.scores else "",
        format_seconds(float(f"{run.wall_seconds():.1f}")),
        run.eta_text(),
        spark(run.scores if run.score.is_share else _in_range(run.scores)),
    ]


DISPENSABLE = ("bottleneck", "clients", "up", "down", "wall")
"""Columns of rounds that a narrow terminal leaves out, the first one first; the method's own goes before them"""


def _named(run: _RunProgress) -> list[str]:
    """`COLUMNS`, with the metric by which the run is judged."""
    return [run.score.metric if name == ACCURACY else name for name in COLUMNS]


def _in_range(values: Sequence[float]) -> list[float]:
    """Values of any unit as places between the least and the largest of them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def _rounds(run: _RunProgress, width: int) -> Table:
    columns = _named(run)
    if any(progress.row.epsilon is not None for progress, _ in run.progress):
        columns.append(EPSILON.heading)
    if run.column and any(progress.chosen for progress, _ in run.progress):
        columns.append(f"{run.column} {run.values[0]:g}..")
    rows = [columns]
    for progress, wall_seconds in run.progress:
        cells = _cells(run, progress, wall_seconds)
        rows.append([*cells, *[""] * (len(columns) - len(cells))])
    own = range(len(COLUMNS), len(columns))
    stay = fitting(widths(rows), width, 1, [*own, *map(COLUMNS.index, DISPENSABLE)])
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for index in stay:
        table.add_column(columns[index], justify="left" if index in own else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*(row[index] for index in stay))
    return table


def _cells(run: _RunProgress, progress: RoundFinished, wall_seconds: float) -> list[str]:
    row = progress.row
    number = str(progress.rounds)
    if _is_cut(progress):
        number = f"{row.round + 1} cut" if row.busy_s else "end"  # an evaluation after the last round is no round
    cells = [
        number,
        "-" if row.judged is None else run.score.text(row.judged),
        format_seconds(row.end_s),
        format_bytes(progress.bytes_down),
        format_bytes(progress.bytes_up),
        str(row.participants),
        row.bottleneck or "-",
        format_seconds(wall_seconds),
    ]
    if row.epsilon is not None:
        cells.append(f"{row.epsilon:.4g}")
    return [*cells, counts(progress.chosen, run.values)] if progress.chosen else cells


def line(run: _RunProgress) -> str:
    """The last round of a run as one line of text."""
    progress, wall_seconds = run.progress[-1]
    first, *cells = _cells(run, progress, wall_seconds)
    own = [] if progress.row.epsilon is None else [EPSILON.heading]
    names = [*_named(run)[1:], *own, run.column]
    number, *cut = first.split()
    if number != "end":
        number = " ".join([run.of_rounds(number), *cut])
    parts = [f"{run.name} {number}", *(f"{name} {cell}" for name, cell in zip(names, cells, strict=False))]
    eta = run.eta_text()
    return "  ".join([*parts, *([eta] if eta else [])])


def counts(chosen: Mapping[float, int], values: Sequence[float]) -> str:
    """The numbers of visits with each of the values, such as ``4/0/6``."""
    return "/".join(str(chosen.get(value, 0)) for value in values)


def spark(values: Sequence[float]) -> str:
    """A curve of values from 0 to 1 as at most `SPARK_WIDTH` block characters; the last one shows the last value."""
    step = -(-len(values) // SPARK_WIDTH) or 1
    return "".join(SPARKS[min(7, int(8 * value))] for value in values[::-1][::step][::-1])
