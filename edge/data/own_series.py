"""Windows of series as examples: a table with a row for each time, or one such table for each device (``data.series``).

The rows of a device are put in order of time. With ``step`` each row has a place on a grid of that step, from the
midnight before the device's first row; of several rows at one place the first counts, and a place without a row is a
gap. Without it consecutive rows are one step apart. Values that are no numbers, or beyond ``least`` and ``most``, are
gaps, too. An example is a window of values, the target's and those of further columns, without a gap; its targets are
the target's next ``horizon`` values. The last part of each device's time (``test``) is the test set; no window has
values on both sides of the cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.arrays import UNKNOWN
from edge.data.own_tables import ColumnTable, column_table
from edge.data.registry import DataError, DataSet, Split
from edge.protocol.config import Baseline, SeriesReading
from edge.protocol.spelling import nearest

TIMES = ("time", "timestamp", "date", "datetime", "ds", "t")
DEVICES = ("device", "client", "client_id", "station", "sensor", "id")
DAY_SECONDS = 86_400.0
DATE_PARTS = ("year", "month", "day")
"""Columns that together are a date, where there is none of `TIMES`"""


@dataclass
class Rows:
    """The rows of one device, in the order of its table."""

    times: list[float] = field(default_factory=list)
    """Seconds since 1970 of a calendar, or numbers as they are"""
    values: list[list[float]] = field(default_factory=list)
    """The target's, then those of further columns; NaN for a gap"""


@dataclass
class Counts:
    """What was met on the way, for the notes."""

    rows: int = 0
    twice: int = 0
    missing: int = 0
    beyond: int = 0
    gaps: int = 0
    left_out: int = 0

    def notes(self, series: SeriesReading) -> list[str]:
        """In words; what did not occur is left out."""
        rule = "windows with a gap are left out" if series.gaps == "leave" else "a gap has the value before it"
        met = {
            f"{self.twice:,} rows at a time that has one, of which the first counts": self.twice,
            f"{self.missing:,} values that are missing or no numbers, taken as gaps": self.missing,
            f"{self.beyond:,} values below {series.least} or above {series.most}, taken as gaps": self.beyond,
            f"{self.gaps:,} times without a row; {rule}": self.gaps,
            f"{self.left_out:,} windows left out": self.left_out,
        }
        return [f"{self.rows:,} rows: {', '.join(text for text, count in met.items() if count) or 'all whole'}"]


def windows(
    where: str, devices: Mapping[str, Rows], series: SeriesReading, counts: Counts
) -> tuple[Split, Split, tuple[str, ...]]:
    """(training windows, test windows, names of devices in order). DataError for a device with too few rows."""
    if (series.season or 0) > series.window:
        raise DataError(f"{where}: data.series.season = {series.season}: is longer than window = {series.window}")
    names = sorted(devices)
    parts: dict[str, list[Split]] = {"train": [], "test": []}
    for number, name in enumerate(names):
        values = _on_grid(devices[name], series, counts)
        cut = round(len(values) * (1 - series.test))
        for part, own in (("train", values[:cut]), ("test", values[cut:])):
            x, y = _cut(own, series, counts)
            if not len(y) and part == "train":
                need = series.window + series.horizon
                raise DataError(
                    f"{where}: device {name}: has no {need} training steps without a gap in a row, which "
                    f"data.series.window + horizon need, among its {cut:,}; shorten them, or leave the device out"
                )
            parts[part].append(Split(x, y, np.full(len(y), number)))
    train, test = (
        Split(*(np.concatenate([getattr(each, kind) for each in splits]) for kind in ("x", "y", "ids")))
        for splits in parts.values()
    )
    if not len(test.y):
        raise DataError(f"{where}: no device has a whole window in the last {series.test:g} of its time")
    return train, test, tuple(names)


def _on_grid(rows: Rows, series: SeriesReading, counts: Counts) -> NDArray[np.float64]:
    """(steps, columns) in order of time, NaN for gaps."""
    times, values = np.array(rows.times), np.array(rows.values, np.float64)
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    if series.step is not None:
        places = np.rint((times - times[0] // DAY_SECONDS * DAY_SECONDS) / series.step).astype(np.int64)
        places -= places[0]
    else:
        places = np.cumsum(np.diff(times, prepend=times[0] - 1) != 0) - 1
    first = np.unique(places, return_index=True)[1]
    counts.twice += len(places) - len(first)
    grid = np.full((int(places[-1]) + 1, values.shape[1]), np.nan)
    grid[places[first]] = values[first]
    counts.gaps += len(grid) - len(first)
    if series.gaps == "last":
        known = np.maximum.accumulate(np.where(np.isnan(grid), -1, np.arange(len(grid))[:, None]), axis=0)
        grid = np.where(known >= 0, np.take_along_axis(grid, np.maximum(known, 0), axis=0), np.nan)
    return grid


def _cut(
    values: NDArray[np.float64], series: SeriesReading, counts: Counts
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The windows of a stretch of time: (examples, columns, window) and targets (examples, horizon)."""
    length, columns = series.window + series.horizon, values.shape[1]
    if len(values) < length:
        return np.zeros((0, columns, series.window), np.float32), np.zeros((0, series.horizon), np.float32)
    every = np.lib.stride_tricks.sliding_window_view(values, length, axis=0)[:: series.every]
    # Of further columns, what is behind the window is not asked for.
    whole = np.isfinite(every[:, :, : series.window]).all(axis=(1, 2)) & np.isfinite(every[:, 0]).all(axis=1)
    counts.left_out += int((~whole).sum())
    chosen = every[whole].astype(np.float32)
    return chosen[:, :, : series.window], chosen[:, 0, series.window :]


# --- tables -----------------------------------------------------------------------------------------------------------


def read_devices(files: Sequence[tuple[Path, str]], series: SeriesReading, counts: Counts) -> dict[str, Rows]:
    """Device -> its rows, of these (table, device that its path says); DataError names file, line and column."""
    devices: dict[str, Rows] = {}
    for file, of_path in files:
        _add(column_table(file), of_path, series, counts, devices)
    return devices


def _add(table: ColumnTable, of_path: str, series: SeriesReading, counts: Counts, devices: dict[str, Rows]) -> None:
    target = _named(table, "target", series.target)
    columns = [target, *(_named(table, "features", name) for name in series.features)]
    device = _found(table, "device", series.device, DEVICES)
    times = row_times(table, series)
    numbers = [_numbers(table, name) for name in columns]
    counts.rows += len(times)
    counts.missing += sum(int(np.isnan(column).sum()) for column in numbers)
    beyond = np.zeros(len(times), bool)
    for limit, key, is_wrong in ((series.least, "least", np.less), (series.most, "most", np.greater)):
        if limit is not None:
            bound = _numbers(table, _named(table, key, limit)) if isinstance(limit, str) else limit
            beyond |= is_wrong(numbers[0], bound)
    counts.beyond += int(beyond.sum())
    numbers[0] = np.where(beyond, np.nan, numbers[0])
    names = [of_path or table.file.stem] * len(times) if device is None else list(map(str, table.columns[device]))
    for place, (name, time, *values) in enumerate(zip(names, times, *(each.tolist() for each in numbers), strict=True)):
        if not name:
            raise DataError(f"{table.at(place)}, column {device}: the device is missing")
        rows = devices.setdefault(name, Rows())
        rows.times.append(time)
        rows.values.append(values)


def _named(table: ColumnTable, key: str, name: str) -> str:
    if name not in table.columns:
        raise DataError(f"{table.file}: data.series.{key}: has no column {name!r}; {nearest(name, table.columns)}")
    return name


def _found(table: ColumnTable, key: str, name: str | None, known: Sequence[str]) -> str | None:
    """The column that ``data.series`` names, or the first with one of the known names."""
    if name is not None:
        return _named(table, key, name)
    return next((column for word in known for column in table.columns if column.lower() == word), None)


def row_values(table: ColumnTable, key: str, name: str) -> NDArray[np.float64]:
    """A column of numbers that ``data.series`` names, NaN where there is none."""
    return _numbers(table, _named(table, key, name))


def _numbers(table: ColumnTable, name: str) -> NDArray[np.float64]:
    """A column of numbers, NaN where there is none."""
    column = table.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    numbers = np.full(len(column), np.nan)
    for place, cell in enumerate(column):
        if str(cell).lower() in UNKNOWN:
            continue
        try:
            numbers[place] = float(cell)
        except (TypeError, ValueError):
            raise DataError(f"{table.at(place)}, column {name}: {str(cell)[:40]!r} is no number") from None
    return np.where(np.isfinite(numbers), numbers, np.nan)


def row_times(table: ColumnTable, series: SeriesReading) -> list[float]:
    """The time of each row: numbers as they are, texts as dates in ISO 8601; columns year, month and day together."""
    name = _found(table, "time", series.time, TIMES)
    parts = [next((column for column in table.columns if column.lower() == part), None) for part in DATE_PARTS]
    if name is None and all(parts):
        dates = zip(*(_numbers(table, part).tolist() for part in parts if part), strict=True)
        return [_seconds(table, place, "year", "-".join(_padded(date))) for place, date in enumerate(dates)]
    if name is None:
        columns = ", ".join(table.columns)
        raise DataError(f"{table.file}: which column is the time? Say data.series.time; it has {columns}")
    column = table.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return [float(number) for number in column]
    return [_seconds(table, place, name, str(cell)) for place, cell in enumerate(column)]


def _padded(date: tuple[Any, ...]) -> tuple[str, str, str]:
    """Year, month and day as ISO 8601 has them; years of two digits are of the last century."""
    year, month, day = map(int, date)
    return f"{year + 1900 if year < 100 else year:04}", f"{month:02}", f"{day:02}"


def _seconds(table: ColumnTable, place: int, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(
            f"{table.at(place)}, column {name}: {text[:40]!r} is no time; write 2016-10-04 08:00:00, or seconds"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# --- forecasts that need no model -------------------------------------------------------------------------------------


def baselines(row: DataSet, test: Split) -> list[Baseline]:
    """The last value, and the value of one season before where there is a season, on windows in their units; none for
    examples that are no windows."""
    targets = row.targets
    if not targets.window or not len(test.y):
        return []
    own = test.x.reshape(len(test.x), -1)[:, : targets.window].astype(np.float64)
    foreseen = {"last value": np.repeat(own[:, -1:], targets.numbers, axis=1)}
    if targets.season:
        behind = np.arange(targets.numbers) % targets.season
        foreseen["a season before"] = own[:, targets.window - targets.season + behind]
    errors = {name: test.y - values for name, values in foreseen.items()}
    return [Baseline(name, float(np.sqrt((e**2).mean())), float(np.abs(e).mean())) for name, e in errors.items()]
