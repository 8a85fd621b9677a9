"""Recordings as others publish them: the names, units and times of their columns, and files without a header.

Pensieve (Mao et al., SIGCOMM 2017) has two columns by blank or tab, seconds and Mbit/s; the 5G measurements of UCC
(Raca et al., MMSys 2020) have kbit/s and times such as 2019.12.16_11.49.59; FCC's Measuring Broadband America has bytes
a second; Ookla's open data have means of tiles of the map in kbit/s; FedScale (Lai et al., ICML 2022) has the times at
which each device became active and inactive.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from costmodel.fleet.csv_table import MOST_CELLS, CsvTable
from costmodel.units import nearest

KBIT, MBIT = 1e3, 1e6
OTHER_NAMES: Mapping[str, Mapping[str, float]] = {
    "client": {"gateway": 1.0, "router": 1.0, "aggregator": 1.0, "unit_id": 1.0},
    "seconds": {"time": 1.0, "timestamp": 1.0, "Timestamp": 1.0, "dtime": 1.0},
    "bits_per_second": {"kbps": KBIT, "mbps": MBIT, "bytes_sec": 8.0},
    "down_bits_per_second": {"down_kbps": KBIT, "down_mbps": MBIT, "DL_bitrate": KBIT},
    "up_bits_per_second": {"up_kbps": KBIT, "up_mbps": MBIT, "UL_bitrate": KBIT},
    "down_kbps_mean": {"avg_d_kbps": 1.0},
    "up_kbps_mean": {"avg_u_kbps": 1.0},
}
"""Column -> other names of it -> factor to its unit"""
RATES = ("bits_per_second", "down_bits_per_second", "up_bits_per_second")
NOTHING: Mapping[str, tuple[str, float]] = {}
CLOCKS = tuple(OTHER_NAMES["seconds"])
"""Names of columns that may have times of a clock, or dates"""
HEAD_NBYTES = 4096
"""Of a file, in which its first line is looked for"""
FEDSCALE = ("active", "inactive", "finish_time")
_PAIR = re.compile(rb"[-+.\deE]+[ \t]+[-+.\deE]+")
_DOTTED = re.compile(r"(\d{4})\.(\d\d)\.(\d\d)_(\d\d)\.(\d\d)\.(\d\d)")


def with_known_names(table: CsvTable, named: Mapping[str, tuple[str, float]] = NOTHING) -> CsvTable:
    """The table with the names and units that kinds of traces ask for, where a column has one of `OTHER_NAMES`.

    ``named``: column -> its name in the file, and the factor to its unit, as a user says; other rates are then left
    out. ValueError for a name that is not there, and for two columns of the same rates.
    """
    headings, factors = dict[str, str](), dict[str, float]()
    for column, (heading, factor) in named.items():
        if heading not in table.column:
            raise ValueError(f"{table.path}, line 1: has no column {heading!r}; {nearest(heading, table.column)}")
        headings[column], factors[column] = heading, factor
    has_rates = any(column in RATES for column in named)
    for column, others in OTHER_NAMES.items():
        if column in table.column or column in headings or (has_rates and column in RATES):
            continue
        found = [other for other in others if other in table.column]
        if len(found) > 1 and column in RATES:
            raise ValueError(f"{table.path}, line 1: {' and '.join(found)} are the same rates; keep one")
        if found:
            headings[column], factors[column] = found[0], others[found[0]]
    places = {name: place for name, place in table.column.items() if not (has_rates and name in RATES)}
    places |= {column: table.column[heading] for column, heading in headings.items()}
    return replace(table, column=places, headings=headings, factors=factors)


def pairs(path: Path, raw: bytes) -> CsvTable | None:
    """The rate series of a file of two columns by blank or tab without a header, in Mbit/s; None for any other file."""
    if not _PAIR.fullmatch(raw[:HEAD_NBYTES].removeprefix(BOM_UTF8).lstrip().split(b"\n", 1)[0].strip()):
        return None
    lines = raw.removeprefix(BOM_UTF8).split(b"\n")
    if len(lines) > MOST_CELLS // 2:
        raise ValueError(f"{path}: more than {MOST_CELLS // 2:,} lines")
    numbers, rows = [], []
    for number, line in enumerate(lines, 1):
        cells = line.decode(errors="replace").split()
        if cells:
            if len(cells) != 2:
                raise ValueError(f"{path}, line {number}: {len(cells)} cells; the lines before have seconds and Mbit/s")
            numbers.append(number)
            rows.append(cells)
    columns = {"seconds": 0, "bits_per_second": 1}
    return CsvTable(path, columns, numbers, rows, {"bits_per_second": "2 (Mbit/s)"}, {"bits_per_second": MBIT})


def since_1970(text: str) -> float | None:
    """The seconds of a time of a clock (08:15), which is of the first day, or of a date; None for any other text."""
    text = _DOTTED.sub(r"\1-\2-\3T\4:\5:\6", text)
    try:
        moment = datetime.fromisoformat(text if "-" in text else f"1970-01-01T{text}")
    except ValueError:
        return None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC if moment.tzinfo else None)).total_seconds()


def active_times(path: Path, raw: bytes) -> dict[str, tuple[list[tuple[float, float]], float]] | None:
    """Device -> its (start, end) windows and the seconds after which they come again, of FedScale's JSON.

    None for a file that is no JSON object. ValueError names the device of a wrong one.
    """
    if not raw[:HEAD_NBYTES].removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
        return None
    try:
        devices = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from None
    found = {}
    for name, own in devices.items():
        times: list[Any] = [own.get(key) if isinstance(own, dict) else None for key in FEDSCALE]
        begins, ends, last = times
        if not (_are_times(begins) and _are_times(ends) and _are_times([last])):
            raise ValueError(f"{path}: device {name}: must have {', '.join(FEDSCALE)}, in seconds")
        if len(begins) != len(ends):
            raise ValueError(f"{path}: device {name}: becomes active {len(begins)} times, inactive {len(ends)} times")
        for begin, end in zip(begins, ends, strict=True):
            if not 0 <= begin <= end <= last:
                raise ValueError(f"{path}: device {name}: is active from {begin:g} to {end:g} s, of {last:g} s")
        found[str(name)] = list(zip(begins, ends, strict=True)), float(last)
    if not found:
        raise ValueError(f"{path}: there are no devices")
    return found


def _are_times(values: Any) -> bool:
    return isinstance(values, list) and all(type(each) in (int, float) and abs(each) < 1e12 for each in values)
