"""Recorded traces in files: their kind, their figures in SI units, and errors that name the cell.

A CSV file is recognised by the columns of its first row; columns unknown to its kind are ignored. Every figure of a
known column is checked. A file of whole numbers is a packet series. All rates here are the throughput of messages,
without headers. Nothing here draws a client or reads any file but the one named and those beside it that
`files_beside` lists.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from costmodel.arrays import Doubles
from costmodel.files import read_bytes
from costmodel.fleet import public_traces
from costmodel.fleet.csv_table import LARGEST_NBYTES, MOST_CELLS, CsvTable, parse_table
from costmodel.step_series import StepSeries, merged
from costmodel.units import DAY_SECONDS

PACKET_BITS = 8.0 * 1448
"""A packet of 1500 bytes carries 1448 bytes of a message: IP and TCP with timestamps take the rest."""
BIN_MS = 100
"""Packets are counted over 100 ms, about a round trip of a cellular link: a sender cannot follow shorter changes."""
MOST_DIGITS = 12
"""Of a time in milliseconds: 30 years"""
MOST_SERIES_NBYTES = 4 * LARGEST_NBYTES
"""Limit of all files beside one table together"""
MILLISECONDS = 1e11
"""Seconds since 1970 are fewer for 3,000 years; milliseconds have been more since 1973"""
ALL = "all"
"""The label of a series that is not of one client"""


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


@dataclass(frozen=True)
class RateSeries:
    """Rates over time, one series per client."""

    client: tuple[str, ...]
    bits_per_second: tuple[StepSeries, ...]


@dataclass(frozen=True)
class RecordedDays:
    """Speed, link and presence of each client over time, all from one common start; a tuple has one item per client.

    t = 0 is the first sample of any client; the first state of a client whose samples begin later holds from t = 0 on.
    """

    client: tuple[str, ...]
    length: float
    """Seconds from t = 0 to the latest sample of any client, and as long as that client's last interval more"""
    down: tuple[StepSeries, ...]
    """bit/s; 0 is an outage"""
    up: tuple[StepSeries, ...]
    flops_per_second: tuple[StepSeries, ...] | None
    """None: the file has no such column"""
    available: tuple[StepSeries, ...] | None
    """1 or 0; None: the file has no such column"""

    def windows(self, row: int) -> list[tuple[float, float]]:
        """(begin, end) in seconds of each time in which the client of a row was available."""
        if self.available is None:
            return [(0.0, self.length)]
        series = self.available[row]
        ends = (*series.seconds[1:], self.length)
        return [
            (begin, end) for begin, end, is_there in zip(series.seconds, ends, series.values, strict=True) if is_there
        ]

    def rate_while_available(self, direction: int, row: int) -> float:
        """The largest rate of the client of a row in any time in which it was available; bit/s."""
        series = (self.down, self.up)[direction][row]
        largest = 0.0
        for begin, end in self.windows(row):
            first = int(np.searchsorted(series.seconds, begin, side="right")) - 1
            last = int(np.searchsorted(series.seconds, end, side="left"))
            largest = max(largest, *series.values[first:last])
        return largest


Trace = Capacities | Users | Cases | WindowTrace | Machines | Series | RateSeries | RecordedDays
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


RATE = re.compile("bps|bit|rate|throughput|bandwidth", re.IGNORECASE)
"""In names that rates of links have elsewhere"""


def read(path: Path, named: Mapping[str, tuple[str, float]] = public_traces.NOTHING) -> Trace:
    """The trace in a file; ValueError that names file, line and column of the first error.

    ``named``: of `public_traces.with_known_names`.
    """
    raw = read_bytes(path, LARGEST_NBYTES)
    if _is_packet_series(raw):
        return _packet_series(path, raw)
    if (devices := public_traces.active_times(path, raw)) is not None:
        return _active_devices(devices)
    cells = _table(path, raw, named)
    for kind in KINDS:
        if all(column in cells.column for column in kind.columns):
            return kind.build(cells)
    header = [column for column in cells.column if column not in cells.headings]
    known = "; ".join(f"{kind.name} ({', '.join(kind.columns)})" for kind in KINDS)
    own = [column for column in header if RATE.search(column)]

    def likeness(kind: TraceKind) -> tuple[float, bool]:
        has_rates = any(column.endswith("bits_per_second") for column in kind.columns)
        return sum(column in header for column in kind.columns) / len(kind.columns), has_rates == bool(own)

    nearest = max(KINDS, key=likeness)
    lacks = [column for column in nearest.columns if column not in header]
    of_unit = f" (bit/s, for {', '.join(own)}?)" if own and lacks == ["bits_per_second"] else ""
    without = f"the nearest is {nearest.name}, without {', '.join(lacks)}{of_unit}; "
    hint = without if len(lacks) < len(nearest.columns) else ""
    raise ValueError(f"{path}, line 1: no known trace has the columns {', '.join(header)}; {hint}known are {known}")


def _table(path: Path, raw: bytes, named: Mapping[str, tuple[str, float]] = public_traces.NOTHING) -> CsvTable:
    """The cells of a file, under the names that kinds of traces ask for."""
    return public_traces.pairs(path, raw) or public_traces.with_known_names(parse_table(path, raw), named)


def _capacities(table: CsvTable) -> Capacities:
    return Capacities(
        compute_seconds=table.numbers("computation_ms_per_sample", positive=True) / 1e3,
        bits_per_second=table.numbers("communication_kbps", positive=True) * 1e3,
    )


def _users(table: CsvTable) -> Users:
    down, up = table.numbers("down_kbps_mean", positive=True), table.numbers("up_kbps_mean", positive=True)
    down_cv, up_cv = table.numbers("down_kbps_std") / down, table.numbers("up_kbps_std") / up
    return Users(down * 1e3, up * 1e3, down_cv, up_cv)


def _mean_users(table: CsvTable) -> Users:
    """Means without deviations: each link keeps its mean."""
    down, up = table.numbers("down_kbps_mean", positive=True), table.numbers("up_kbps_mean", positive=True)
    return Users(down * 1e3, up * 1e3, np.zeros(down.size), np.zeros(up.size))


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


def _active_devices(devices: Mapping[str, tuple[list[tuple[float, float]], float]]) -> WindowTrace:
    """Windows that begin at a midnight, and come again after whole days."""
    days = np.array([math.ceil(last / DAY_SECONDS) for _, last in devices.values()])
    windows = tuple(tuple(windows) for windows, _ in devices.values())
    return WindowTrace(tuple(devices), windows, np.zeros(len(devices)), days * DAY_SECONDS)


def _spans(table: CsvTable, last: float) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """(device of each window, (start, end) of each device's trace).

    The file beside the windows has the start and end of each trace, also of devices without any window. Without that
    file, all traces start at 0 and end at ``last``.
    """
    labels = table.texts("device")
    beside = _devices_beside(table.path)
    if beside is None:
        return labels, dict.fromkeys(labels, (0.0, last))
    devices = parse_table(beside, read_bytes(beside, LARGEST_NBYTES))
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
        found = _read_series(_named_series(table))
        series = _link_series(table, "down_series", found), _link_series(table, "up_series", found)
        for rates, of in zip((down, up), series, strict=True):
            for row, each in enumerate(of):
                rates[row] = rates[row] if each is None else each.mean()
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
    return {name: file for column, _ in LINK_SERIES for name, file in _series_beside(table, column).items()}


def _link_series(table: CsvTable, column: str, found: Mapping[str, StepSeries]) -> tuple[StepSeries | None, ...]:
    """The series of each row; None for an empty cell."""
    names = table.labels(column) if column in table.column else [""] * len(table.rows)
    for row, name in enumerate(names):
        if name and not any(found[name].values):
            raise table.error(row, column, f"every rate of {name!r} is 0")
    return tuple(found[name] if name else None for name in names)


def first_line(path: Path, label: str, named: Mapping[str, tuple[str, float]]) -> str:
    """File, line and column of the first row of a client, or of what a recording has in its place."""
    table = _table(path, read_bytes(path, LARGEST_NBYTES), named)
    row = table.labels("client").index(label)
    return f"{path}, line {table.lines[row]}, column {table.headings.get('client', 'client')}"


def files_beside(path: Path) -> list[Path]:
    """The files that `read` reads beside the one named; ValueError if that cannot be read."""
    devices = _devices_beside(path)
    with_devices = [] if devices is None else [devices]
    raw = read_bytes(path, LARGEST_NBYTES)
    if not any(column.encode() in raw.split(b"\n", 1)[0] for column, _ in LINK_SERIES):
        return with_devices
    return [*with_devices, *_named_series(parse_table(path, raw)).values()]


def _series(table: CsvTable) -> Series:
    seconds, factor = _seconds(table), table.numbers("factor")
    rows = _rows_by_client(table, seconds)
    for label, of in rows.items():
        if not factor[of].any():
            raise table.error(of[0], "factor", f"every factor of client {label} is 0")
    series = rows.values()
    return Series(
        tuple(rows), tuple(seconds[row] - seconds[row[0]] for row in series), tuple(factor[row] for row in series)
    )


def _recorded_days(table: CsvTable) -> RecordedDays:
    """Rows (client, seconds, state from then on), those of each client in order of time."""
    has = table.column
    available = table.numbers("available") if "available" in has else None
    for row, flag in enumerate([] if available is None else available.tolist()):
        if flag not in (0.0, 1.0):
            raise table.error(row, "available", f"{flag:g} is neither 0 nor 1")
    speed = table.numbers("flops_per_second", positive=True) if "flops_per_second" in has else None
    down, up = (table.numbers(f"{way}_bits_per_second") for way in ("down", "up"))
    recorded = _over_time(table, (down, up, speed, available), is_link=speed is None and available is None)
    times = [seconds for seconds, _ in recorded.values()]
    start, latest = min(float(own[0]) for own in times), max(float(own[-1]) for own in times)
    ends = [own[-2:] for own in times if own[-1] == latest]
    last = max((float(pair[1] - pair[0]) for pair in ends if pair.size > 1), default=max(latest - start, 1.0))
    length = latest - start + last

    def series(place: int) -> tuple[StepSeries, ...]:
        return tuple(
            merged([0.0, *(seconds[1:] - start).tolist()], columns[place].tolist(), length)
            for seconds, columns in recorded.values()
        )

    return RecordedDays(
        tuple(recorded),
        length,
        series(0),
        series(1),
        None if speed is None else series(2),
        None if available is None else series(3),
    )


def _rate_series(table: CsvTable) -> RateSeries:
    """Rows (seconds, bit/s from then on), optionally of several clients."""
    recorded = _over_time(table, (table.numbers("bits_per_second"),), is_link=True)
    series = (StepSeries.of(seconds - seconds[0], rates) for seconds, (rates, *_) in recorded.values())
    return RateSeries(tuple(recorded), tuple(series))


def _over_time(
    table: CsvTable, columns: Sequence[Doubles | None], is_link: bool
) -> dict[str, tuple[Doubles, list[Doubles]]]:
    """Client -> its times, and the columns at these; of a link, rows of the same time are their mean."""
    seconds, recorded = _seconds(table), {}
    for label, of in _rows_by_client(table, seconds, may_be_equal=is_link).items():
        times, place, count = np.unique(seconds[of], return_inverse=True, return_counts=True)
        means = [np.zeros(0) if own is None else np.bincount(place, own[of]) / count for own in columns]
        recorded[label] = times, means
    return recorded


def _seconds(table: CsvTable) -> Doubles:
    """(rows,) The column seconds; one of another name may have times of a clock (08:15), dates (ISO 8601), or
    milliseconds since 1970, which are `MILLISECONDS` or more."""
    if "seconds" not in table.headings:
        return table.numbers("seconds")
    texts = table.texts("seconds")
    if not any(":" in text or "_" in text for text in texts):
        numbers = table.numbers("seconds")
        return numbers / 1e3 if numbers.min() >= MILLISECONDS else numbers
    times = [public_traces.since_1970(text) for text in texts]
    for row, text in enumerate(texts):
        if times[row] is None:
            why = f"{text!r} is no number of seconds, no time such as 08:15:00, and no date and time (ISO 8601)"
            raise table.error(row, "seconds", why)
    return np.array(times, np.float64)


def _rows_by_client(table: CsvTable, seconds: Doubles, may_be_equal: bool = False) -> dict[str, list[int]]:
    """Client -> its rows, in the order of the first ones; ValueError for a time that does not come after the last.

    ``may_be_equal``: it may be the last.
    """
    labels = table.texts("client") if "client" in table.column else [ALL] * seconds.size
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        earlier = rows.setdefault(label, [])
        if earlier and (
            seconds[row] < seconds[earlier[-1]] or (not may_be_equal and seconds[row] == seconds[earlier[-1]])
        ):
            raise table.error(row, "seconds", f"{seconds[row]:g} does not come after {seconds[earlier[-1]]:g}")
        earlier.append(row)
    return rows


def _is_packet_series(raw: bytes) -> bool:
    """Whether a file is in Mahimahi's format: its first line is a whole number."""
    return raw.removeprefix(BOM_UTF8).lstrip()[: MOST_DIGITS + 1].split(b"\n")[0].strip().isdigit()


def _packet_series(path: Path, raw: bytes) -> RateSeries:
    """A series in Mahimahi's format (Netravali et al., USENIX ATC 2015): the rates of its bins of `BIN_MS`.

    Each line is a time in milliseconds at which the link delivers one packet of 1500 bytes; the series repeats after
    the last of them. A packet of time t counts for the bin in which t is the end or before it. In a bin without packets
    what is sent waits: a sender sends no more than its window without acknowledgements, and the queue holds that.
    Measured on links of 5 Mbit/s with queues of 64 and 250 kB, pauses of 0.15 to 10 s took as long as they lasted.
    """
    times = np.array(_milliseconds(path, raw), np.int64)
    last = int(times[-1])
    if last == 0:
        raise ValueError(f"{path}: the series lasts for 0 ms")
    bins, packets = np.unique(np.maximum(times - 1, 0) // BIN_MS, return_counts=True)
    seconds: list[float] = []
    rates: list[float] = []
    end = 0
    for place, count in zip(bins.tolist(), packets.tolist(), strict=True):
        begin = place * BIN_MS
        if begin > end:  # a silence
            seconds.append(end / 1e3)
            rates.append(0.0)
        end = min(begin + BIN_MS, last)
        seconds.append(begin / 1e3)
        rates.append(count * PACKET_BITS * 1e3 / (end - begin))
    return RateSeries((ALL,), (merged(seconds, rates, last / 1e3, zero_waits=True),))


def _milliseconds(path: Path, raw: bytes) -> list[int]:
    if raw.count(b"\n") > MOST_CELLS:
        raise ValueError(f"{path}: more than {MOST_CELLS:,} lines")
    times: list[int] = []
    for line, text in enumerate(raw.removeprefix(BOM_UTF8).split(b"\n"), 1):
        cell = text.strip()
        if not cell:
            continue
        if not cell.isdigit() or len(cell) > MOST_DIGITS:
            shown = cell[:40].decode(errors="replace")
            raise ValueError(f"{path}, line {line}: {shown!r} is not a whole number of milliseconds below 10^12")
        time = int(cell)
        if times and time < times[-1]:
            raise ValueError(f"{path}, line {line}: {time} comes before {times[-1]}")
        times.append(time)
    return times


def _series_beside(table: CsvTable, column: str) -> dict[str, Path]:
    """Name -> file of the series that a column names; ValueError for a name that is not beside the table."""
    files = {}
    for row, name in enumerate(table.labels(column) if column in table.column else []):
        if name and name not in files:
            file = table.path.with_name(name) if name == Path(name).name else None
            if file is None or not file.is_file():
                raise table.error(row, column, f"{name!r}: there is no such file beside {table.path.name}")
            files[name] = file
    return files


def _read_series(files: dict[str, Path]) -> dict[str, StepSeries]:
    """Name -> the series of one link in a file: Mahimahi's format, or CSV with the columns of a rate series."""
    found, nbytes = {}, 0
    for name, path in files.items():
        raw = read_bytes(path, LARGEST_NBYTES)
        nbytes += len(raw)
        if nbytes > MOST_SERIES_NBYTES:
            raise ValueError(f"{path}: the series up to it have more than {MOST_SERIES_NBYTES:,} bytes together")
        if _is_packet_series(raw):
            found[name] = _packet_series(path, raw).bits_per_second[0]
            continue
        table = _table(path, raw)
        for column in ("seconds", "bits_per_second"):
            if column not in table.column:
                raise ValueError(f"{path}, line 1: column {column} is missing")
        series = _rate_series(table)
        if len(series.client) > 1:
            raise ValueError(f"{path}: has the series of {len(series.client)} clients; it must be of one link")
        found[name] = series.bits_per_second[0]
    return found


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
    TraceKind("means of networks", ("down_kbps_mean", "up_kbps_mean"), _mean_users),
    TraceKind("network cases", ("case", "kbps_mean", "kbps_std"), _cases),
    TraceKind("availability windows", ("device", "start_s", "end_s"), _windows),
    TraceKind("recorded days", ("seconds", "down_bits_per_second", "up_bits_per_second"), _recorded_days),
    TraceKind("machines", ("client", "flops_per_second", "down_bits_per_second", "up_bits_per_second"), _machines),
    TraceKind("bandwidth series", ("seconds", "factor"), _series),
    TraceKind("rate series", ("seconds", "bits_per_second"), _rate_series),
)
