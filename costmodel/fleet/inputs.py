"""The content of the files that a fleet names: the user's rows, and recordings, with the notes on them.

Everything that depends on these files takes one record of them: the fleet, the identity of a run, notes and reports.
`scenarios.config.fleet_files` finds the files. ValueError names the key of an unusable one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from costmodel.config import AccessLinks, AvailabilityConfig, BandwidthConfig, FleetConfig, RateColumns
from costmodel.files import read_bytes
from costmodel.fleet import carbon, traces
from costmodel.fleet.board_table import StepFlops, is_table, read_boards, unread_columns
from costmodel.fleet.csv_table import LARGEST_NBYTES, CsvTable, parse_table
from costmodel.fleet.devices import Device, Network, devices, own_rows, with_new_names
from costmodel.fleet.implausible import RATE, doubt_of_series, doubts_of_row, doubts_of_tables, doubts_of_trace
from costmodel.fleet.recording import recording
from costmodel.fleet.traces import (
    ClientTrace,
    Machines,
    RateSeries,
    RecordedDays,
    Series,
    Trace,
    WindowTrace,
    row_count,
)
from costmodel.fleet.variation import counts
from costmodel.network.bandwidth import DOWN, UP
from costmodel.step_series import StepSeries
from costmodel.units import DAY_SECONDS, format_seconds

LEAST_SECONDS, FACTORS = 1e-3, 1e6
"""Limits of recorded series: the least distance of two samples, and the largest factor and inverse factor."""
MOST_SECONDS = 1e9
"""Length of a recording, 30 years; float64 has digits for the microseconds of a time within it."""
TOO_LONG = f"client {{}}: its samples span {{:g}} s, the most is {MOST_SECONDS:g} (30 years)"
GROUPS = {"fleet.tiers.file": ("aggregator",), "fleet.gateways.file": ("gateway", "router")}
"""Key of a file with a row for each client -> names that the column of its aggregator or gateway may have"""
RECORDS = 4
"""Records that are kept, so that a file is parsed once for all that depends on it."""
WITH_FILES_BESIDE = ("fleet.trace", "fleet.availability.file", "fleet.tiers.availability.file")
"""Keys of files that may name others beside them"""
Rows = tuple[dict[str, Device], dict[str, Network]]
"""The user's devices and networks, by name"""
Link = tuple[Series | RateSeries, Series | RateSeries | None]
"""Rates over time, down and up; up None: as down"""


class InputFile(NamedTuple):
    """A file that a fleet reads."""

    key: str
    """The scenario's key, and for a file beside another one its name"""
    name: str
    """As the scenario has it"""
    path: Path
    sha256: str


@dataclass(frozen=True)
class FleetInputs:
    """The content of all files of one fleet."""

    devices: Mapping[str, Device] = field(default_factory=dict)
    """The user's, by name"""
    networks: Mapping[str, Network] = field(default_factory=dict)
    """The user's, by name"""
    trace: ClientTrace | None = None
    """Clients' speeds and links"""
    link: Link | None = None
    """Rates over time, down and up; up None: as down"""
    windows: WindowTrace | None = None
    """Availability"""
    gateway_link: Link | None = None
    """Rates of gateways over time (``fleet.gateways.bandwidth``)"""
    gateway_names: tuple[str, ...] = ()
    aggregators: FleetInputs | None = None
    """The recordings of aggregators (``fleet.tiers``), whose devices and networks are among those above"""
    memberships: CsvTable | None = None
    """The rows of ``fleet.tiers.file`` or ``fleet.gateways.file``: each client's aggregator or gateway"""
    files: tuple[InputFile, ...] = ()
    """All files, also of recordings that the fleet does not follow"""

    @property
    def sha256(self) -> dict[str, str]:
        """Key -> SHA-256 of each file."""
        return {file.key: file.sha256 for file in self.files}

    def notes(self, config: FleetConfig, clients: int) -> list[str]:
        """How shares that look like counts, and rows of recordings, meet clients, where their numbers differ."""
        notes = []
        for key, chosen in (("fleet.devices", config.devices), ("fleet.networks", config.networks)):
            if isinstance(chosen, Mapping) and max(chosen.values()) > 1 and sum(chosen.values()) not in (clients, 100):
                pairs = zip(chosen, counts(chosen, clients), strict=True)
                numbers = ", ".join(f"{name} {number}" for name, number in pairs)
                notes.append(f"{key}: shares are normalised, and data.clients = {clients}: {numbers}")
        if self.trace is not None:
            notes.append(note("fleet.trace", row_count(self.trace, config.trace_case), clients))
            notes += [f"fleet.trace = {config.trace!r}, {text}" for text in doubts_of_trace(self.trace) if text]
        for file in self.files:
            if file.key == "fleet.device_file" and is_table(file.path) and (unread := unread_columns(file.path)):
                mix = "; fleet.devices says how many of each" if {"count", "share", "number"} & set(unread) else ""
                notes.append(f"{file.key} = {file.name!r}: columns that are not read: {', '.join(unread)}{mix}")
        notes += [
            text for rows in (self.devices, self.networks) for row in rows.values() for text in doubts_of_row(row)
        ]
        notes += doubts_of_tables(config)
        notes += doubts_of_link("fleet.gateways", config.gateways.bandwidth, self.gateway_link)
        notes += self._notes_of_links("fleet", config, clients, "client")
        if self.gateway_link is not None and len(self.gateway_link[0].client) < config.gateways.count:
            notes.append(
                note("fleet.gateways.bandwidth.file", 1, config.gateways.count, ("series", "series"), "gateway")
            )
        if self.aggregators is not None:
            notes += self.aggregators._notes_of_links("fleet.tiers", config, config.tiers.count, "aggregator")
        notes.append(carbon.note(config.carbon))
        return [text for text in notes if text]

    def understood(self) -> list[str]:
        """What each recording has that the fleet follows, in words."""
        found: list[tuple[str, Trace | None]] = [("fleet.trace", self.trace)]
        above = self.aggregators or FleetInputs()
        for table, link in (("fleet", self.link), ("fleet.gateways", self.gateway_link), ("fleet.tiers", above.link)):
            ways = ("", " (up)")[: len(link or ())]
            found += [(f"{table}.bandwidth.file{way}", rates) for way, rates in zip(ways, link or (), strict=True)]
        found += [("fleet.availability.file", self.windows), ("fleet.tiers.availability.file", above.windows)]
        read = [(key, recording(trace)) for key, trace in found if trace is not None]
        return [f"{key}: {'; '.join((of.text(), *(figure.text() for figure in of.figures)))}" for key, of in read]

    def _notes_of_links(self, table: str, config: FleetConfig, size: int, member: str) -> Iterator[str]:
        """Likewise for the files of ``table`` over time, and the ``size`` clients or aggregators of it (``member``)."""
        if self.link is not None:
            key, series = f"{table}.bandwidth.file", len(self.link[0].client)
            bandwidth = config.bandwidth if table == "fleet" else config.tiers.bandwidth
            yield from doubts_of_link(table, bandwidth, self.link)
            if config.trace_assign == "by_client" or series == 1:
                yield note(key, series, size, ("series", "series"), member)
            else:
                yield f"{key}: {series} series for {size} {member}s: each {member} draws one of them"
        if self.windows is not None:
            key = f"{table}.availability.file"
            yield note(key, len(self.windows.devices), size, member=member)
            repeats = (config if table == "fleet" else config.tiers).availability.repeat
            windows = [window for own in self.windows.windows for window in own]
            seconds = max((end for _, end in windows), default=0.0) - min((begin for begin, _ in windows), default=0.0)
            if repeats and seconds < DAY_SECONDS:
                recorded = f"{key}: records {format_seconds(seconds)}"
                yield f"{recorded}, which come again after a whole day ({table}.availability.repeat)"


def doubts_of_link(table: str, bandwidth: BandwidthConfig, link: Link | None) -> Iterator[str]:
    """The notes on rates of a link over time, of the files of ``bandwidth``; '' where they may be right."""
    for way, rates in zip(("down", "up"), link or (), strict=False):
        if isinstance(rates, RateSeries):
            of_up = way == "up" and bandwidth.up_file is not None
            key, name = ("up_file", bandwidth.up_file) if of_up else ("file", bandwidth.file)
            has_both = bandwidth.up_file is None and link is not None and link[1] is not None
            column = f"{way}_bits_per_second" if has_both else "bits_per_second"
            yield doubt_of_series(f"{table}.bandwidth.{key} = {name!r}, column {column}:", rates.bits_per_second, RATE)


def note(key: str, rows: int, size: int, names: tuple[str, str] = ("row", "rows"), member: str = "client") -> str:
    """How so many rows meet so many clients; '' if there are as many. ``names``: of one row, and of several;
    ``member``: a client, or what there is in its place."""
    if rows == size:
        return ""
    counts = f"{key}: {rows} {names[rows > 1]} for {size} {member}s"
    if rows > size:
        unused = rows - size
        return f"{counts}: {unused} {names[unused > 1]} unused"
    least, more = divmod(size, rows)
    return f"{counts}: each {names[0]} serves {f'{least} or {least + 1}' if more else least} {member}s"


@contextmanager
def _errors_of(key: str) -> Iterator[None]:
    """Put the key before the text of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def read_rows(
    device_file: Path | None,
    network_file: Path | None,
    names: Iterable[str],
    calibrated: Callable[[str], Path | None],
    step_flops: StepFlops,
) -> Rows:
    """The user's devices and networks, of these files; and ``calibrated`` devices among those of these ``names``.

    ``step_flops``: FLOPs of models of which a table of boards has the seconds of a step.
    """
    user_devices: dict[str, Device] = {}
    user_networks: dict[str, Network] = {}
    if device_file is not None:
        with _errors_of("fleet.device_file"):
            if is_table(device_file):
                user_devices = with_new_names(device_file, read_boards(device_file, step_flops))
            else:
                user_devices = own_rows(device_file, Device)
    if network_file is not None:
        with _errors_of("fleet.network_file"):
            user_networks = own_rows(network_file, Network)
    for name in dict.fromkeys(names):  # a million names can stand for few devices
        if name in devices() or name in user_devices:
            continue
        file = calibrated(name)
        if file is None:
            break  # an unknown device: the check of names stops here, too
        with _errors_of("fleet.devices"):
            user_devices |= own_rows(file, Device)
    return user_devices, user_networks


def read_inputs(paths: Mapping[str, Path], config: FleetConfig, rows: Rows) -> FleetInputs:
    """The content of all files of a fleet, by key; ``rows``: of `read_rows`."""
    named = [(key, config.file_names[key], path) for key, path in paths.items()]
    for key in WITH_FILES_BESIDE:
        if key in paths:
            with _errors_of(key):
                beside = traces.files_beside(paths[key])
            named += [(f"{key}, {path.name}", path.name, path) for path in beside]
    files = []
    for key, name, path in named:
        with _errors_of(key):
            files.append(InputFile(key, name, path, hashlib.sha256(read_bytes(path, LARGEST_NBYTES)).hexdigest()))
    tiers = config.tiers
    of_tiers = (tiers.bandwidth, tiers.availability) if tiers.count else None
    recordings = _read_recordings(
        tuple(files),
        config.trace_case,
        config.bandwidth,
        config.availability,
        config.gateways,
        of_tiers,
    )
    if recordings.aggregators is not None:
        aggregators = replace(recordings.aggregators, devices=rows[0], networks=rows[1])
        recordings = replace(recordings, aggregators=aggregators)
    return replace(recordings, devices=rows[0], networks=rows[1])


@lru_cache(RECORDS)
def _read_recordings(
    files: tuple[InputFile, ...],
    trace_case: int,
    bandwidth: BandwidthConfig,
    availability: AvailabilityConfig,
    gateways: AccessLinks,
    of_tiers: tuple[BandwidthConfig, AvailabilityConfig] | None,
) -> FleetInputs:
    """The recordings in these files that a fleet with these tables follows; the same content is one record."""
    by_key = {file.key: file for file in files}
    trace = _client_trace(by_key["fleet.trace"], trace_case) if "fleet.trace" in by_key else None
    link, windows = _link_and_windows("fleet", by_key, bandwidth, availability)
    gateway_link, aggregators = None, None
    if gateways.count:
        gateway_link, _ = _link_and_windows("fleet.gateways", by_key, gateways.bandwidth, AvailabilityConfig())
    if of_tiers is not None:
        of_link, of_windows = _link_and_windows("fleet.tiers", by_key, *of_tiers)
        aggregators = FleetInputs(link=of_link, windows=of_windows)
    memberships = _memberships(by_key)
    return FleetInputs(
        trace=trace,
        link=link,
        windows=windows,
        gateway_link=gateway_link,
        gateway_names=_gateway_names(gateways, gateway_link, memberships, by_key),
        aggregators=aggregators,
        memberships=memberships,
        files=files,
    )


def _link_and_windows(
    table: str, by_key: Mapping[str, InputFile], bandwidth: BandwidthConfig, availability: AvailabilityConfig
) -> tuple[Link | None, WindowTrace | None]:
    """The fields of `FleetInputs` of these names, for the tables ``bandwidth`` and ``availability`` of ``table``."""
    link = windows = None
    for name, kind in (("bandwidth", bandwidth.form), ("availability", availability.form)):
        if kind == "trace" and f"{table}.{name}.file" not in by_key:
            raise ValueError(f'{table}.{name}.kind = "trace" needs {table}.{name}.file')
    if bandwidth.form == "trace":
        files = by_key[f"{table}.bandwidth.file"], by_key.get(f"{table}.bandwidth.up_file")
        link = _link_series(*files, bandwidth.columns)
    if availability.form == "trace":
        file = by_key[f"{table}.availability.file"]
        content = _trace(file)
        if not isinstance(content, WindowTrace):
            raise ValueError(f"{file.key} = {file.name!r}: has no windows of availability")
        windows = content
    return link, windows


def _memberships(by_key: Mapping[str, InputFile]) -> CsvTable | None:
    """The rows of a file of `GROUPS`; `costmodel.fleet.recorded_clients.members` reads them."""
    for file in (by_key[key] for key in GROUPS if key in by_key):
        with _errors_of(file.key):
            table = parse_table(file.path, read_bytes(file.path, LARGEST_NBYTES))
            for column in ("client", group_column(table, GROUPS[file.key])):
                if column not in table.column:
                    raise ValueError(f"{file.path}, line 1: column {column} is missing")
            return table
    return None


def group_column(table: CsvTable, names: Sequence[str]) -> str:
    """The name of the column of clients' aggregators or gateways: the first of these, if there is none."""
    return next((name for name in names if name in table.column), names[0])


def _gateway_names(
    gateways: AccessLinks, link: Link | None, memberships: CsvTable | None, by_key: Mapping[str, InputFile]
) -> tuple[str, ...]:
    """(count,) The names of gateways: those in the recording of their rates, or in the rows of clients, in the order in
    which they come there; or else their numbers."""
    count = gateways.count
    numbers = tuple(map(str, range(count)))
    recorded = "fleet.gateways.bandwidth.file"
    labels = () if link is None or link[0].client == (traces.ALL,) else link[0].client
    if labels:
        with _errors_of(recorded):
            if set(labels) <= set(numbers):
                for name in numbers:
                    if name not in labels:
                        raise ValueError(f"{by_key[recorded].path}: gateway {name} of {count} is missing")
                return numbers
            if len(labels) > count:
                line = traces.first_line(by_key[recorded].path, labels[count], gateways.bandwidth.columns.named)
                raise ValueError(
                    f"{line}: {labels[count]!r} is gateway {count + 1}, but fleet.gateways.count = {count}"
                )
            if len(labels) < count:
                why = f"has rates of {len(labels)} ({', '.join(labels)}), but fleet.gateways.count = {count}"
                raise ValueError(f"{by_key[recorded].path}: {why}")
            return labels
    if memberships is not None and "fleet.gateways.file" in by_key:
        names = tuple(dict.fromkeys(memberships.labels(group_column(memberships, GROUPS["fleet.gateways.file"]))))
        if not set(names) <= set(numbers) and len(names) == count:
            return names
    return numbers


def _trace(file: InputFile, columns: RateColumns | None = None) -> traces.Trace:
    with _errors_of(file.key):
        return traces.read(file.path, {} if columns is None else columns.named)


def _client_trace(file: InputFile, case: int) -> ClientTrace:
    """The trace of ``fleet.trace``; ValueError for a file that belongs to another key, or has no such case."""
    trace = _trace(file)
    if isinstance(trace, WindowTrace | Series | RateSeries):
        key = "availability.file" if isinstance(trace, WindowTrace) else "bandwidth.file"
        raise ValueError(f"fleet.trace = {file.name!r}: has no columns of devices or links; it belongs to fleet.{key}")
    if isinstance(trace, traces.Cases) and case not in trace.cases:
        cases = ", ".join(map(str, trace.cases))
        raise ValueError(f"fleet.trace_case = {case}: {file.name} has the cases {cases}")
    with _errors_of(file.key):
        if isinstance(trace, RecordedDays):
            _check_days(trace)
        if isinstance(trace, Machines):
            for series in trace.series or ():
                for client, rates in zip(trace.client, series, strict=True):
                    if rates is not None:
                        _check_rates(client, rates)
    return trace


def _link_series(file: InputFile, up_file: InputFile | None, columns: RateColumns) -> Link:
    """Rates over time, down and up, of a file each or of one for both."""
    trace = _trace(file, columns)
    if isinstance(trace, RecordedDays) and trace.flops_per_second is None and trace.available is None:
        if up_file is not None:
            raise ValueError(f"{up_file.key} = {up_file.name!r}: {file.name} has both directions; leave one out")
        down, up = RateSeries(trace.client, trace.down), RateSeries(trace.client, trace.up)
        return _checked_series(file, down), _checked_series(file, up)
    return _checked_series(file, trace), None if up_file is None else _checked_series(up_file, _trace(up_file, columns))


def _checked_series(file: InputFile, series: traces.Trace) -> Series | RateSeries:
    """Rates over time, of samples that are not too close, and of links that work at some time, within limits."""
    if not isinstance(series, Series | RateSeries):
        raise ValueError(f"{file.key} = {file.name!r}: has no columns seconds and factor or bits_per_second")
    with _errors_of(f"{file.key} = {file.name!r}"):
        if isinstance(series, RateSeries):
            for client, rates in zip(series.client, series.bits_per_second, strict=True):
                _check_rates(client, rates)
            return series
        for client, seconds, factor in zip(series.client, series.seconds, series.factor, strict=True):
            if seconds[-1] > MOST_SECONDS:
                raise ValueError(TOO_LONG.format(client, float(seconds[-1])))
            some = factor[factor > 0]
            if (np.diff(seconds) < LEAST_SECONDS).any() or some.max() > FACTORS or some.min() < 1 / FACTORS:
                raise ValueError(
                    f"client {client}: seconds must be {LEAST_SECONDS:g} or more apart, and factors 0 or within "
                    f"{1 / FACTORS:g} and {FACTORS:g}"
                )
    return series


# --- recordings that no client can follow -----------------------------------------------------------------------------


def _check_days(days: RecordedDays) -> None:
    """Check that samples are not too close, that a client comes, and that each that comes has a link at some time."""
    if not any(days.windows(row) for row in range(len(days.client))):
        raise ValueError("available is 0 in all rows: no client ever comes")
    for row, client in enumerate(days.client):
        for direction, series in ((DOWN, days.down[row]), (UP, days.up[row])):
            if not days.windows(row):
                continue
            if days.rate_while_available(direction, row) == 0:
                name = ("down", "up")[direction]
                raise ValueError(f"client {client}: its {name}_bits_per_second is 0 whenever the client is available")
            _check_rates(client, series)
        _check_steps(client, days.available[row] if days.available else None)
        speed = days.flops_per_second[row] if days.flops_per_second else None
        _check_steps(client, speed)
        if speed is not None and min(speed.values) < 1:
            raise ValueError(f"client {client}: computes at {min(speed.values):g} FLOP/s; the least is 1")


def _check_rates(client: str, series: StepSeries) -> None:
    _check_steps(client, series)
    rates = np.array(series.values)
    if not rates.any():
        raise ValueError(f"client {client}: every rate is 0")
    if (least := rates[rates > 0].min()) < 1:
        raise ValueError(f"client {client}: has a rate of {least:g} bit/s; the least is 1, or 0 for an outage")


def _check_steps(client: str, series: StepSeries | None) -> None:
    if series is None:
        return
    if series.seconds[-1] > MOST_SECONDS:
        raise ValueError(TOO_LONG.format(client, series.seconds[-1]))
    if (np.diff(series.seconds) < LEAST_SECONDS).any():
        raise ValueError(f"client {client}: seconds must be {LEAST_SECONDS:g} or more apart")
