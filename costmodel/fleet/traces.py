"""Recorded traces in CSV files: their kind, their figures in SI units, and errors that name the cell.

A file is recognised by the columns of its first row; columns unknown to its kind are ignored. Every figure of a known
column is checked. Nothing here draws a client or reads any file but the one named and, for windows, the one beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from costmodel.arrays import Doubles, Streams
from costmodel.fleet.csv_table import CsvTable, read_table
from costmodel.network.tcp import WIRE_FACTOR
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


@dataclass(frozen=True)
class Series:
    """Factors on a nominal rate over time, one series per client, for `costmodel.network.bandwidth.Samples`."""

    client: tuple[str, ...]
    seconds: tuple[Doubles, ...]
    """(samples,) for each client, from 0 on, increasing"""
    factor: tuple[Doubles, ...]
    """(samples,) for each client, > 0"""


Trace = Capacities | Users | Cases | WindowTrace | Machines | Series


def read(path: Path) -> Trace:
    """The trace in a file; ValueError that names file, line and column of the first error."""
    cells = read_table(path)
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
    beside = table.path.with_name(table.path.name.replace("_windows", "_devices"))
    if beside == table.path or not beside.exists():
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


def _machines(table: CsvTable) -> Machines:
    return Machines(
        client=tuple(table.distinct("client")),
        flops_per_second=table.numbers("flops_per_second", positive=True),
        down=table.numbers("down_bits_per_second", positive=True),
        up=table.numbers("up_bits_per_second", positive=True),
        rtt_seconds=table.numbers("rtt_seconds") if "rtt_seconds" in table.column else None,
    )


def _series(table: CsvTable) -> Series:
    seconds, factor = table.numbers("seconds"), table.numbers("factor", positive=True)
    labels = table.texts("client") if "client" in table.column else ["all"] * seconds.size
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        earlier = rows.setdefault(label, [])
        if earlier and seconds[row] <= seconds[earlier[-1]]:
            raise table.error(row, "seconds", f"{seconds[row]:g} does not come after {seconds[earlier[-1]]:g}")
        earlier.append(row)
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
    TraceKind("machines", ("client", "flops_per_second", "down_bits_per_second", "up_bits_per_second"), _machines),
    TraceKind("bandwidth series", ("seconds", "factor"), _series),
)


ClientTrace = Capacities | Users | Cases | Machines
"""The traces of clients' speeds and links; other traces have availability and rates over time."""


class TraceColumns:
    """The columns of a trace over clients; each method returns ``otherwise`` where the trace has no such column."""

    def __init__(self, trace: ClientTrace | None, case: int, clients: int, streams: Streams) -> None:
        """``case`` is the number of a population of `Cases`; ValueError if the trace does not have it."""
        self._speed: Doubles | None = None
        self._flops: Doubles | None = None
        self._rates: list[Doubles | None] = [None, None]
        self._rtt: Doubles | None = None
        self._cv: list[Doubles] | None = None
        if isinstance(trace, Capacities):
            self._speed = float(np.median(trace.compute_seconds)) / trace.compute_seconds
            self._rates = [trace.bits_per_second] * 2
        elif isinstance(trace, Users):
            self._rates, self._cv = [trace.down, trace.up], [trace.down_cv, trace.up_cv]
        elif isinstance(trace, Cases):
            if case not in trace.cases:
                raise ValueError(
                    f"there is no case {case} in the trace: choose from {', '.join(map(str, trace.cases))}"
                )
            mean, cv = trace.cases[case]
            self._rates, self._cv = [mean, None], [cv, cv]
        elif isinstance(trace, Machines):
            self._flops, self._rates, self._rtt = trace.flops_per_second, [trace.down, trace.up], trace.rtt_seconds
        rows = next((column.size for column in self._rates if column is not None), 1)
        self._rows = streams("trace", 0, 0).permutation(rows)[np.arange(clients) % rows]

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
