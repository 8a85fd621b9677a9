"""Recordings of rates and of whole days: packet series of cellular links, rates over time, and recorded days.

All rates here are the throughput of messages, without headers. The errors name file and line. Nothing here says which
client follows which recording.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from costmodel.arrays import Doubles
from costmodel.files import read_bytes
from costmodel.fleet.csv_table import LARGEST_NBYTES, MOST_CELLS, CsvTable, parse_table
from costmodel.step_series import StepSeries, merged

PACKET_BITS = 8.0 * 1448
"""A packet of 1500 bytes carries 1448 bytes of a message: IP and TCP with timestamps take the rest."""
BIN_MS = 100
"""Packets are counted over 100 ms, about a round trip of a cellular link: a sender cannot follow shorter changes."""
MOST_DIGITS = 12
"""Of a time in milliseconds: 30 years"""
MOST_SERIES_NBYTES = 4 * LARGEST_NBYTES
"""Limit of all files beside one table together"""
ALL = "all"
"""The label of a series that is not of one client"""


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
        return max((_largest(series, begin, end) for begin, end in self.windows(row)), default=0.0)


def _largest(series: StepSeries, begin: float, end: float) -> float:
    first = int(np.searchsorted(series.seconds, begin, side="right")) - 1
    last = int(np.searchsorted(series.seconds, end, side="left"))
    return max(series.values[first:last])


def recorded_days(table: CsvTable) -> RecordedDays:
    """Rows (client, seconds, state from then on), those of each client in order of time."""
    seconds = table.numbers("seconds")
    rows = rows_by_client(table, seconds)
    start = float(seconds.min())
    times = {label: np.concatenate(([0.0], seconds[of][1:] - start)) for label, of in rows.items()}
    latest = float(seconds.max())
    ends = [seconds[of][-2:] for of in rows.values() if seconds[of][-1] == latest]
    last = max((float(pair[1] - pair[0]) for pair in ends if pair.size > 1), default=max(latest - start, 1.0))
    length = latest - start + last

    def series(column: Doubles) -> tuple[StepSeries, ...]:
        pairs = zip(times.values(), rows.values(), strict=True)
        return tuple(merged(begins.tolist(), column[of].tolist(), length) for begins, of in pairs)

    has = table.column
    speed = table.numbers("flops_per_second", positive=True) if "flops_per_second" in has else None
    return RecordedDays(
        tuple(rows),
        length,
        series(table.numbers("down_bits_per_second")),
        series(table.numbers("up_bits_per_second")),
        None if speed is None else series(speed),
        series(_flags(table, "available")) if "available" in has else None,
    )


def _flags(table: CsvTable, column: str) -> Doubles:
    flags = table.numbers(column)
    for row in np.flatnonzero((flags != 0) & (flags != 1))[:1].tolist():
        raise table.error(row, column, f"{flags[row]:g} is neither 0 nor 1")
    return flags


def rate_series(table: CsvTable) -> RateSeries:
    """Rows (seconds, bit/s from then on), optionally of several clients."""
    seconds, rates = table.numbers("seconds"), table.numbers("bits_per_second")
    rows = rows_by_client(table, seconds)
    series = (StepSeries.of(seconds[of] - seconds[of[0]], rates[of]) for of in rows.values())
    return RateSeries(tuple(rows), tuple(series))


def rows_by_client(table: CsvTable, seconds: Doubles) -> dict[str, list[int]]:
    """Client -> its rows, in the order of the first ones; ValueError for a time that does not come after the last."""
    labels = table.texts("client") if "client" in table.column else [ALL] * seconds.size
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        earlier = rows.setdefault(label, [])
        if earlier and seconds[row] <= seconds[earlier[-1]]:
            raise table.error(row, "seconds", f"{seconds[row]:g} does not come after {seconds[earlier[-1]]:g}")
        earlier.append(row)
    return rows


def is_packet_series(raw: bytes) -> bool:
    """Whether a file is in Mahimahi's format: its first line is a whole number."""
    return raw.removeprefix(BOM_UTF8).lstrip()[: MOST_DIGITS + 1].split(b"\n")[0].strip().isdigit()


def packet_series(path: Path, raw: bytes) -> RateSeries:
    """A series in Mahimahi's format (Netravali et al., USENIX ATC 2015): the rates of its bins of `BIN_MS`.

    Each line is a time in milliseconds at which the link delivers one packet of 1500 bytes; the series repeats after
    the last of them. A packet of time t counts for the bin in which t is the end or before it.
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
    return RateSeries((ALL,), (merged(seconds, rates, last / 1e3),))


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


def series_beside(table: CsvTable, column: str) -> dict[str, Path]:
    """Name -> file of the series that a column names; ValueError for a name that is not beside the table."""
    files = {}
    for row, name in enumerate(table.labels(column) if column in table.column else []):
        if name and name not in files:
            file = table.path.with_name(name) if name == Path(name).name else None
            if file is None or not file.is_file():
                raise table.error(row, column, f"{name!r}: there is no such file beside {table.path.name}")
            files[name] = file
    return files


def read_series(files: dict[str, Path]) -> dict[str, StepSeries]:
    """Name -> the series of one link in a file: Mahimahi's format, or CSV with the columns of `rate_series`."""
    found, nbytes = {}, 0
    for name, path in files.items():
        raw = read_bytes(path, LARGEST_NBYTES)
        nbytes += len(raw)
        if nbytes > MOST_SERIES_NBYTES:
            raise ValueError(f"{path}: the series up to it have more than {MOST_SERIES_NBYTES:,} bytes together")
        found[name] = _one_series(path, raw)
    return found


def _one_series(path: Path, raw: bytes) -> StepSeries:
    if is_packet_series(raw):
        return packet_series(path, raw).bits_per_second[0]
    table = parse_table(path, raw)
    for column in ("seconds", "bits_per_second"):
        if column not in table.column:
            raise ValueError(f"{path}, line 1: column {column} is missing")
    series = rate_series(table)
    if len(series.client) > 1:
        raise ValueError(f"{path}: has the series of {len(series.client)} clients; it must be of one link")
    return series.bits_per_second[0]
