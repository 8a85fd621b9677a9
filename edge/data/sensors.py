"""Fleets of sensors that ship as data sets: car parks and wind stations, each a client that forecasts its own series.

``parking``: occupancy of 30 car parks of Birmingham, every half hour from 8:00 to 16:30 on 77 days of 2016 (Stolfi,
Alba and Yao, UCI Machine Learning Repository, 2019): the next hour, two values, from the four hours before. Windows
with values below 0 or above the capacity, or across a night, are left out. ``wind``: daily means in knots at twelve
Irish stations, 1961 to 1978 (Haslett and Raftery, Applied Statistics 1989): the next day from 14 days. Other windows
and horizons of the same files are ``data.file`` and ``data.series``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge.data.own_series import Counts, Rows, read_devices, row_times, row_values, windows
from edge.data.own_tables import column_table
from edge.data.registry import DataSet, Decoded, Names
from edge.protocol.config import SeriesReading

PARKING = SeriesReading(
    target="Occupancy",
    time="LastUpdated",
    device="SystemCodeNumber",
    window=8,
    horizon=2,
    step=1800.0,
    least=0.0,
    most="Capacity",
)
WIND = SeriesReading(target="station", window=14)
STATIONS = ("RPT", "VAL", "ROS", "KIL", "SHA", "BIR", "DUB", "CLA", "MUL", "CLO", "BEL", "MAL")


def read(row: DataSet, files: Sequence[Path]) -> Decoded:
    """Both splits, client by client; DataError naming file, line and column of what does not fit."""
    counts, series = Counts(), PARKING if row.name == "parking" else WIND
    devices = read_devices([(files[0], "")], series, counts) if row.name == "parking" else _stations(files[0], counts)
    train, test, names = windows(str(files[0]), devices, series, counts)
    train, test = (replace(split, x=split.x.reshape(len(split.x), -1)) for split in (train, test))
    return Decoded(train, test, "", Names(clients=names), tuple(counts.notes(series)))


def _stations(file: Path, counts: Counts) -> dict[str, Rows]:
    """The columns of the table, a series each."""
    table = column_table(file)
    times = row_times(table, WIND)
    devices = {}
    for station in STATIONS:
        column = row_values(table, "station", station)
        counts.rows += len(times)
        devices[station] = Rows(list(times), [[value] for value in column.tolist()])
    return devices
