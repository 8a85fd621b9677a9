"""Recorded traces in files: their kind, their figures in SI units, and errors that name the cell.

A CSV file is recognised by the columns of its first row; columns unknown to its kind are ignored. Every figure of a
known column is checked. A file of whole numbers is a packet series. Nothing here draws a client or reads any file but
the one named and those beside it that `files_beside` lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.files import read_bytes
from costmodel.fleet.csv_table import LARGEST_NBYTES, CsvTable, parse_table, read_table
from costmodel.fleet.recordings import (
    RateSeries,
    RecordedDays,
    is_packet_series,
    packet_series,
    rate_series,
    read_series,
    recorded_days,
    rows_by_client,
    series_beside,
)
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.step_series import StepSeries
from costmodel.units import DAY_SECONDS


@dataclass(frozen=True)
class Capacities:
    """Speeds and links as in FedScale's device capacities (Lai et al., ICML 2022); (rows,) each."""

    compute_seconds: Doubles
    """Computing time of one example"""
    bits_per_second: Doubles
    """Rate of the client's link in either direction"""


@dataclass(frozen=True)
class Users:
    """Repeated measurements of users' links, as in FLASH (Yang et al., WWW 2021); (rows,) each."""

    down: Doubles
    """Mean, bit/s"""
    up: Doubles
    """Mean, bit/s"""
    down_cv: Doubles
    """Standard deviation of one user's measurements over their mean"""
    up_cv: Doubles


@dataclass(frozen=True)
class Cases:
    """Populations of links by number, as in FLHetBench (CVPR 2024): case -> (mean bit/s, cv), (slots,) each."""

    cases: Mapping[int, tuple[Doubles, Doubles]]


@dataclass(frozen=True)
class WindowTrace:
    """When each device was available, for `costmodel.fleet.availability.RecordedIntervals`.

    t = 0 is a midnight of the recording's clock, and each device's trace starts within the day that follows.
    """

    devices: tuple[str, ...]
    windows: tuple[tuple[tuple[float, float], ...], ...]
    """(start, end) in seconds of each device's windows, within its trace"""
    trace_start: Doubles
    """(devices,) seconds, less than a day"""
    trace_end: Doubles
    """(devices,) seconds, whole days after the start, so that a repeated trace keeps the time of day"""

    @property
    def period(self) -> Doubles:
        """(devices,) seconds after which a device's windows repeat, whole days."""
        return self.trace_end - self.trace_start


@dataclass(frozen=True)
class Machines:
    """Speed and link of each client; (rows,) each."""

    client: tuple[str, ...]
    flops_per_second: Doubles
    down: Doubles
    """bit/s"""
    up: Doubles
    """bit/s"""
    rtt_seconds: Doubles | None
    """None: the file has no such column"""
    series: tuple[tuple[StepSeries | None, ...], tuple[StepSeries | None, ...]] | None = None
    """(down, up) bit/s over time of each row's link, with its mean in ``down`` and ``up``; None: constant"""


@dataclass(frozen=True)
class Series:
    """Factors on a nominal rate over time, one series per client, for `costmodel.network.bandwidth.Samples`."""

    client: tuple[str, ...]
    seconds: tuple[Doubles, ...]
    """(samples,) for each client, from 0 on, increasing"""
    factor: tuple[Doubles, ...]
    """(samples,) for each client, >= 0, not all of them 0"""


Trace = Capacities | Users | Cases | WindowTrace | Machines | Series | RateSeries | RecordedDays


def read(path: Path) -> Trace:
    """The trace in a file; ValueError that names file, line and column of the first error."""
    raw = read_bytes(path, LARGEST_NBYTES)
    if is_packet_series(raw):
        return packet_series(path, raw)
    cells = parse_table(path, raw)
    for kind in KINDS:
        if all(column in cells.column for column in kind.columns):
            return kind.build(cells)
    raise ValueError(f"{path}, line 1: {_unknown(list(cells.column))}")


def _unknown(header: list[str]) -> str:
    """The message about a header that belongs to no kind."""
    known = "; ".join(f"{kind.name} ({', '.join(kind.columns)})" for kind in KINDS)
    nearest = max(KINDS, key=lambda kind: sum(column in header for column in kind.columns) / len(kind.columns))
    lacks = [column for column in nearest.columns if column not in header]
    hint = f"the nearest is {nearest.name}, without {', '.join(lacks)}; " if len(lacks) < len(nearest.columns) else ""
    return f"no known trace has the columns {', '.join(header)}; {hint}known are {known}"


def _capacities(table: CsvTable) -> Capacities:
    return Capacities(
        compute_seconds=table.numbers("computation_ms_per_sample", positive=True) / 1e3,
        bits_per_second=table.numbers("communication_kbps", positive=True) * 1e3,
    )


def _users(table: CsvTable) -> Users:
    down, up = table.numbers("down_kbps_mean", positive=True), table.numbers("up_kbps_mean", positive=True)
    down_cv, up_cv = table.numbers("down_kbps_std") / down, table.numbers("up_kbps_std") / up
    return Users(down * 1e3, up * 1e3, down_cv, up_cv)


def _cases(table: CsvTable) -> Cases:
    numbers, mean = table.numbers("case"), table.numbers("kbps_mean", positive=True)
    cv = table.numbers("kbps_std") / mean
    for row, number in enumerate(numbers.tolist()):
        if not number.is_integer():
            raise table.error(row, "case", f"{number:g} is not a whole number")
    return Cases({int(case): (mean[numbers == case] * 1e3, cv[numbers == case]) for case in np.unique(numbers)})


def _windows(table: CsvTable) -> WindowTrace:
    begins, ends = table.numbers("start_s").tolist(), table.numbers("end_s").tolist()
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if end < begin:
            raise table.error(row, "end_s", f"the window ends at {end:g} before it starts at {begin:g}")
    labels, spans = _spans(table, math.ceil(max(ends) / DAY_SECONDS) * DAY_SECONDS)
    windows: dict[str, list[tuple[float, float]]] = {label: [] for label in spans}
    for row, (label, begin, end) in enumerate(zip(labels, begins, ends, strict=True)):
        first, last = spans[label]
        if begin < first or end > last:
            column = "start_s" if begin < first else "end_s"
            raise table.error(row, column, f"the trace of device {label} lasts from {first:g} to {last:g}")
        midnight = first // DAY_SECONDS * DAY_SECONDS
        windows[label].append((begin - midnight, end - midnight))
    start = np.array([first % DAY_SECONDS for first, _ in spans.values()])
    days = np.array([max(math.ceil((last - first) / DAY_SECONDS), 1) for first, last in spans.values()])
    return WindowTrace(tuple(spans), tuple(tuple(row) for row in windows.values()), start, start + days * DAY_SECONDS)


def _spans(table: CsvTable, last: float) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """(device of each window, (start, end) of each device's trace).

    The file beside the windows has the start and end of each trace, also of devices without any window. Without that
    file, all traces start at 0 and end at ``last``.
    """
    labels = table.texts("device")
    beside = _devices_beside(table.path)
    if beside is None:
        return labels, dict.fromkeys(labels, (0.0, last))
    devices = read_table(beside)
    for column in ("device", "trace_start_s", "trace_end_s"):
        if column not in devices.column:
            raise ValueError(f"{beside}, line 1: column {column} is missing")
    starts, ends = devices.numbers("trace_start_s").tolist(), devices.numbers("trace_end_s").tolist()
    names = devices.distinct("device")
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end <= start:
            raise devices.error(row, "trace_end_s", f"the trace ends at {end:g}, not after its start at {start:g}")
    spans = dict(zip(names, zip(starts, ends, strict=True), strict=True))
    for row, label in enumerate(labels):
        if label not in spans:
            raise table.error(row, "device", f"{label!r} is not in {beside.name}")
    return labels, spans


def _devices_beside(path: Path) -> Path | None:
    """The file beside a file of windows with the start and end of each trace; None if there is none."""
    beside = path.with_name(path.name.replace("_windows", "_devices"))
    return beside if beside != path and beside.exists() else None


LINK_SERIES = (("down_series", "down_bits_per_second"), ("up_series", "up_bits_per_second"))
"""Columns with the file of each row's series, and those with the rate of rows without one."""


def _machines(table: CsvTable) -> Machines:
    down, up = (table.numbers(column, positive=True) for _, column in LINK_SERIES)
    series = None
    if any(column in table.column for column, _ in LINK_SERIES):
        found = read_series(_named_series(table))
        series = _link_series(table, "down_series", found), _link_series(table, "up_series", found)
        down, up = (_means(rates, of) for rates, of in zip((down, up), series, strict=True))
    return Machines(
        client=tuple(table.distinct("client")),
        flops_per_second=table.numbers("flops_per_second", positive=True),
        down=down,
        up=up,
        rtt_seconds=table.numbers("rtt_seconds") if "rtt_seconds" in table.column else None,
        series=series,
    )


def _named_series(table: CsvTable) -> dict[str, Path]:
    """Name -> file of every series that the table names."""
    return {name: file for column, _ in LINK_SERIES for name, file in series_beside(table, column).items()}


def _link_series(table: CsvTable, column: str, found: Mapping[str, StepSeries]) -> tuple[StepSeries | None, ...]:
    """The series of each row; None for an empty cell."""
    names = table.labels(column) if column in table.column else [""] * len(table.rows)
    for row, name in enumerate(names):
        if name and not any(found[name].values):
            raise table.error(row, column, f"every rate of {name!r} is 0")
    return tuple(found[name] if name else None for name in names)


def _means(rates: Doubles, series: tuple[StepSeries | None, ...]) -> Doubles:
    pairs = zip(rates.tolist(), series, strict=True)
    return np.array([rate if of is None else of.mean() for rate, of in pairs], np.float64)


def files_beside(path: Path) -> list[Path]:
    """The files that `read` reads beside the one named; ValueError if that cannot be read."""
    devices = _devices_beside(path)
    with_devices = [] if devices is None else [devices]
    raw = read_bytes(path, LARGEST_NBYTES)
    if not any(column.encode() in raw.split(b"\n", 1)[0] for column, _ in LINK_SERIES):
        return with_devices
    return [*with_devices, *_named_series(parse_table(path, raw)).values()]


def _series(table: CsvTable) -> Series:
    seconds, factor = table.numbers("seconds"), table.numbers("factor")
    rows = rows_by_client(table, seconds)
    for label, of in rows.items():
        if not factor[of].any():
            raise table.error(of[0], "factor", f"every factor of client {label} is 0")
    series = rows.values()
    return Series(
        tuple(rows), tuple(seconds[row] - seconds[row[0]] for row in series), tuple(factor[row] for row in series)
    )


@dataclass(frozen=True)
class TraceKind:
    """A kind of trace file."""

    name: str
    columns: tuple[str, ...]
    """The columns that it needs"""
    build: Callable[[CsvTable], Trace]


KINDS = (
    TraceKind("client capacities", ("client_id", "computation_ms_per_sample", "communication_kbps"), _capacities),
    TraceKind("network users", ("down_kbps_mean", "down_kbps_std", "up_kbps_mean", "up_kbps_std"), _users),
    TraceKind("network cases", ("case", "kbps_mean", "kbps_std"), _cases),
    TraceKind("availability windows", ("device", "start_s", "end_s"), _windows),
    TraceKind("recorded days", ("client", "seconds", "down_bits_per_second", "up_bits_per_second"), recorded_days),
    TraceKind("machines", ("client", "flops_per_second", "down_bits_per_second", "up_bits_per_second"), _machines),
    TraceKind("bandwidth series", ("seconds", "factor"), _series),
    TraceKind("rate series", ("seconds", "bits_per_second"), rate_series),
)


ClientTrace = Capacities | Users | Cases | Machines | RecordedDays
"""The traces of clients' speeds and links; other traces have availability and rates over time."""


def row_count(trace: ClientTrace, case: int) -> int:
    """The rows of a trace over clients, of the population ``case`` of `Cases`; ValueError if there is no such one."""
    if isinstance(trace, Capacities):
        return trace.compute_seconds.size
    if isinstance(trace, Cases):
        if case not in trace.cases:
            raise ValueError(f"there is no case {case} in the trace: choose from {', '.join(map(str, trace.cases))}")
        return trace.cases[case][0].size
    return trace.down.size if isinstance(trace, Users | Machines) else len(trace.client)


def assigned(rows: int, clients: int, shuffle: np.random.Generator | None) -> NDArray[np.intp]:
    """(clients,) Each client's row, each row once before any comes twice; by default in the order of the file."""
    order = np.arange(rows) if shuffle is None else shuffle.permutation(rows)
    return order[np.arange(clients) % rows]


class TraceColumns:
    """The columns of a trace over clients; each method returns ``otherwise`` where the trace has no such column."""

    def __init__(self, trace: ClientTrace | None, case: int, clients: int, shuffle: np.random.Generator | None) -> None:
        """``case`` is the number of a population of `Cases`; ValueError if the trace does not have it.

        Clients have rows in the order that ``shuffle`` draws, by default in that of the file.
        """
        self._speed: Doubles | None = None
        self._flops: Doubles | None = None
        self._rates: list[Doubles | None] = [None, None]
        self._rtt: Doubles | None = None
        self._cv: list[Doubles] | None = None
        self._rows = assigned(1 if trace is None else row_count(trace, case), clients, shuffle)
        if isinstance(trace, Capacities):
            self._speed = float(np.median(trace.compute_seconds)) / trace.compute_seconds
            self._rates = [trace.bits_per_second] * 2
        elif isinstance(trace, Users):
            self._rates, self._cv = [trace.down, trace.up], [trace.down_cv, trace.up_cv]
        elif isinstance(trace, Cases):
            mean, cv = trace.cases[case]
            self._rates, self._cv = [mean, None], [cv, cv]
        elif isinstance(trace, Machines):
            self._flops, self._rates, self._rtt = trace.flops_per_second, [trace.down, trace.up], trace.rtt_seconds
        elif isinstance(trace, RecordedDays):
            self._flops = None if trace.flops_per_second is None else nominal(trace.flops_per_second)
            self._rates = [nominal(trace.down), nominal(trace.up)]

    @property
    def figures(self) -> frozenset[str]:
        """The figures that the trace has of its own; relative speeds (`Capacities`) are none."""
        by_name = {"flops_per_second": self._flops, "down": self._rates[0], "up": self._rates[1], "rtt": self._rtt}
        return frozenset(name for name, column in by_name.items() if column is not None)

    def speed(self, otherwise: Doubles) -> Doubles:
        """FLOP/s: the trace's, or ``otherwise`` times the client's speed relative to the trace's median row."""
        if self._flops is not None:
            return self._flops[self._rows]
        return otherwise if self._speed is None else otherwise * self._speed[self._rows]

    def rate(self, direction: int, otherwise: Doubles) -> Doubles:
        """bit/s on the wire: traces have measured throughput, so headers are added."""
        column = self._rates[direction]
        return otherwise if column is None else WIRE_FACTOR * column[self._rows]

    def rtt(self, otherwise: Doubles) -> Doubles:
        """Round-trip times in seconds."""
        return otherwise if self._rtt is None else self._rtt[self._rows]

    def cv(self) -> Doubles | None:
        """(clients, 2) standard deviation over mean of the rates down and up; None: not in the trace."""
        return None if self._cv is None else np.stack(self._cv, axis=1)[self._rows]


def nominal(series: Sequence[StepSeries]) -> Doubles:
    """(series,) The figure that the factors of a recording refer to: its mean; 1 for a link that never works."""
    return np.array([each.mean() or 1.0 for each in series], np.float64)
