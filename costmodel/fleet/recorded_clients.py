"""Recordings as the figures, presence, links and speeds of clients: which row is whose, and from what time on.

ValueError for recordings that contradict the fleet's other keys. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.config import FleetConfig
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.csv_table import CsvTable
from costmodel.fleet.inputs import GROUPS, FleetInputs, group_column
from costmodel.fleet.speed import RecordedSpeed
from costmodel.fleet.traces import (
    Capacities,
    Cases,
    ClientTrace,
    Machines,
    RateSeries,
    RecordedDays,
    Series,
    Users,
    row_count,
)
from costmodel.network.bandwidth import DOWN, UP, OrnsteinUhlenbeck, Replay, Samples, sigma_of_cv
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.step_series import StepSeries
from costmodel.units import HOUR_SECONDS


@dataclass(frozen=True)
class ClientFigures:
    """The figures that a trace has of each client; (clients,) each, None: not in the trace."""

    flops_per_second: Doubles | None = None
    relative_speed: Doubles | None = None
    """To that of the trace's median row"""
    down: Doubles | None = None
    """bit/s on the wire: traces have measured throughput, so headers are added"""
    up: Doubles | None = None
    rtt: Doubles | None = None
    """seconds"""
    bandwidth_cv: Doubles | None = None
    """(clients, 2) standard deviation over mean of the rates down and up"""


@dataclass(frozen=True)
class LinkRecording:
    """Clients' links over time."""

    variation: Samples | Replay | OrnsteinUhlenbeck
    rates: tuple[Doubles | None, Doubles | None] = (None, None)
    """(down, up) Rates of all clients that the factors refer to, bit/s on the wire; None: as drawn"""


@dataclass(frozen=True)
class RecordedClients:
    """What the recordings of a fleet say of its clients; None: nothing."""

    figures: ClientFigures = field(default_factory=ClientFigures)
    link: LinkRecording | None = None
    presence: RecordedIntervals | None = None
    speed: RecordedSpeed | None = None
    """Factors on the mean of each client's recorded speed"""


@dataclass(frozen=True)
class _Assignment:
    """How the rows of recordings meet clients."""

    clients: int
    streams: Streams
    is_shuffled: bool
    """Whether rows are permuted; otherwise row k is client k's"""
    start: float
    """Seconds of the recording that are over when the run begins"""
    repeats: bool
    """Whether windows and recorded days are repeated"""

    def rows(self, purpose: str, count: int) -> NDArray[np.intp]:
        """(clients,) Each client's row of ``count``, each row once before any comes twice."""
        order = self.streams(purpose, 0, 0).permutation(count) if self.is_shuffled else np.arange(count)
        return order[np.arange(self.clients) % count]


def recorded_clients(clients: int, config: FleetConfig, inputs: FleetInputs, streams: Streams) -> RecordedClients:
    """Let the rows of a fleet's recordings meet its clients, in a random order or in that of the files."""
    availability, trace = config.availability, inputs.trace
    assignment = _Assignment(
        clients, streams, config.trace_assign == "shuffled", availability.start_hour * HOUR_SECONDS, availability.repeat
    )
    figures = ClientFigures() if trace is None else _figures(trace, config.trace_case, assignment)
    link, presence, speed = _recorded_link(config, inputs, assignment), None, None
    if isinstance(trace, RecordedDays):
        # Days that repeat, and have no such column, say nothing of presence.
        if trace.available is not None or not assignment.repeats:
            windows = [trace.windows(row) for row in range(len(trace.client))]
            period = np.full(len(windows), trace.length) if assignment.repeats else None
            presence = _intervals(windows, period, assignment.rows("trace", len(windows)), assignment.start)
        if trace.flops_per_second is not None:
            series = _factors(trace.flops_per_second, assignment.repeats)
            speed = RecordedSpeed(series, assignment.rows("trace", len(series)), assignment.start)
    if presence is not None and availability.form != "always":
        raise ValueError(
            f'fleet.availability.kind = {availability.form}: fleet.trace says who is available; choose "always"'
        )
    if presence is None and inputs.windows is not None:
        recorded = inputs.windows
        rows = assignment.rows("availability of a trace", len(recorded.devices))
        presence = _intervals(recorded.windows, recorded.period if assignment.repeats else None, rows, assignment.start)
    return RecordedClients(figures, link, presence, speed)


def _figures(trace: ClientTrace, case: int, assignment: _Assignment) -> ClientFigures:
    rows = assignment.rows("trace", row_count(trace, case))
    if isinstance(trace, Capacities):
        rate = WIRE_FACTOR * trace.bits_per_second[rows]
        relative = float(np.median(trace.compute_seconds)) / trace.compute_seconds
        return ClientFigures(relative_speed=relative[rows], down=rate, up=rate)
    if isinstance(trace, Cases):
        mean, cv = trace.cases[case]
        return ClientFigures(down=WIRE_FACTOR * mean[rows], bandwidth_cv=np.stack([cv, cv], axis=1)[rows])
    if isinstance(trace, RecordedDays):
        speed = None if trace.flops_per_second is None else nominal(trace.flops_per_second)[rows]
        down, up = (WIRE_FACTOR * nominal(series)[rows] for series in (trace.down, trace.up))
        return ClientFigures(speed, down=down, up=up)
    down, up = WIRE_FACTOR * trace.down[rows], WIRE_FACTOR * trace.up[rows]
    if isinstance(trace, Users):
        return ClientFigures(down=down, up=up, bandwidth_cv=np.stack([trace.down_cv, trace.up_cv], axis=1)[rows])
    rtt = None if trace.rtt_seconds is None else trace.rtt_seconds[rows]
    return ClientFigures(trace.flops_per_second[rows], down=down, up=up, rtt=rtt)


def nominal(series: Sequence[StepSeries]) -> Doubles:
    """(series,) The figure that the factors of a recording refer to: its mean; 1 for a link that never works."""
    return np.array([each.mean() or 1.0 for each in series], np.float64)


def _intervals(
    windows: Sequence[Sequence[tuple[float, float]]], period: Doubles | None, rows: NDArray[np.intp], start: float
) -> RecordedIntervals:
    """The recorded windows; of those that do not repeat, what was before the start is over."""
    shifted = [[(begin - start, end - start) for begin, end in row] for row in windows]
    if period is None:
        shifted = [[(max(begin, 0.0), end) for begin, end in row if end > 0] for row in shifted]
    return RecordedIntervals(shifted, period, row_of=rows)


# --- who is behind which link -----------------------------------------------------------------------------------------


def members(table: CsvTable, key: str, clients: int, names: Sequence[str]) -> NDArray[np.intp]:
    """(clients,) The aggregator or gateway of each client, as the rows of a file say: a place in ``names``.

    ``key``: the one of `GROUPS` that names the file.
    ValueError for cells that name no client or none of ``names``, a client twice, or leave a client or a name out.
    """
    kind, place = group_column(table, GROUPS[key]), {name: number for number, name in enumerate(names)}
    numbered = tuple(names) == tuple(map(str, range(len(names))))
    group_of = np.full(clients, -1, np.intp)
    numbers = table.numbers("client")
    for row, label in enumerate(table.texts(kind)):
        number = numbers[row]
        if number != int(number) or number >= clients:
            raise table.error(row, "client", f"{number:g} is none of the {clients} clients, 0 to {clients - 1}")
        if label not in place:
            known = f"0 to {len(names) - 1}" if numbered else f"choose from {', '.join(names)}"
            raise table.error(row, kind, f"{label} is none of the {len(names)} {kind}s, {known}")
        if group_of[int(number)] >= 0:
            raise table.error(row, "client", f"{number:g} is in an earlier row already")
        group_of[int(number)] = place[label]
    for client in np.flatnonzero(group_of < 0)[:1].tolist():
        raise ValueError(f"{table.path}: client {client} is missing: every client needs a row")
    for name in names:
        if place[name] not in group_of:
            raise ValueError(f"{table.path}: no client is behind {kind} {name}: name it in a row, or leave it out")
    return group_of


def gateway_of(clients: int, config: FleetConfig, inputs: FleetInputs) -> NDArray[np.intp]:
    """(clients,) The gateway of each client, by ``fleet.gateways.assign``."""
    gateways, numbers = config.gateways, np.arange(clients)
    if gateways.assign == "file":
        assert inputs.memberships is not None
        try:
            return members(inputs.memberships, "fleet.gateways.file", clients, inputs.gateway_names)
        except ValueError as error:
            raise ValueError(f"fleet.gateways.file: {error}") from None
    return numbers * gateways.count // clients if gateways.assign == "place" else numbers % gateways.count


def gateway_variation(config: FleetConfig, inputs: FleetInputs, streams: Streams) -> LinkRecording | None:
    """The rates of gateways over time, from the beginning of their recordings on; None: constant."""
    varies, count = config.gateways.bandwidth, config.gateways.count
    if inputs.gateway_link is not None:
        start = config.availability.start_hour * HOUR_SECONDS
        series = inputs.gateway_link[0].client
        places = {name: row for row, name in enumerate(series)}
        rows = np.array([places.get(name, 0) for name in inputs.gateway_names], np.intp)
        assignment = _Assignment(count, streams, is_shuffled=False, start=start, repeats=True)
        return _bandwidth_link(*inputs.gateway_link, assignment, "fleet.gateways.bandwidth", varies.up_file, rows)
    if varies.form == "ou" and count:
        sigma = np.float64(sigma_of_cv(varies.cv))

        def of_gateways(purpose: str, index: int, gateway: int) -> np.random.Generator:
            return streams(f"gateways: {purpose}", index, gateway)

        return LinkRecording(OrnsteinUhlenbeck(sigma, varies.tau, varies.step, of_gateways))
    return None


# --- links ------------------------------------------------------------------------------------------------------------


def _recorded_link(config: FleetConfig, inputs: FleetInputs, assignment: _Assignment) -> LinkRecording | None:
    """Recorded links: of ``fleet.trace`` or of ``fleet.bandwidth``; None if there are none."""
    trace, kind = inputs.trace, config.bandwidth.form
    link, key = None, "fleet.trace"
    if isinstance(trace, RecordedDays) or (isinstance(trace, Machines) and trace.series is not None):
        if kind != "constant":
            raise ValueError(f'fleet.bandwidth.kind = {kind}: fleet.trace has rates over time; choose "constant"')
        if isinstance(trace, RecordedDays):
            down, up = (_factors(series, assignment.repeats) for series in (trace.down, trace.up))
        else:
            down, up = ([_factor(series) for series in each] for each in trace.series or ())
        link = LinkRecording(Replay(down, up, assignment.rows("trace", len(down)), assignment.start))
    if inputs.link is not None:
        link = _bandwidth_link(*inputs.link, assignment, "fleet.bandwidth", config.bandwidth.up_file)
        key = "fleet.bandwidth.file"
    has_rates = link is not None and (key == "fleet.trace" or any(rates is not None for rates in link.rates))
    if has_rates and config.rates is not None:
        raise ValueError(f"fleet.rates = {list(config.rates)}: {key} has rates; leave one of them out")
    return link


def _factors(series: Sequence[StepSeries], repeats: bool) -> list[StepSeries]:
    pairs = zip(series, nominal(series).tolist(), strict=True)
    return [replace(each.over(mean), repeats=repeats) for each, mean in pairs]


def _factor(series: StepSeries | None) -> StepSeries:
    return StepSeries((0.0,), (1.0,), 1.0) if series is None else series.over(series.mean())


def _bandwidth_link(
    down: Series | RateSeries,
    up: Series | RateSeries | None,
    assignment: _Assignment,
    table: str,
    up_file: str | None,
    chosen: NDArray[np.intp] | None = None,
) -> LinkRecording:
    """The link over time of series of factors or rates; without ``up``, uploads follow ``down``.

    ``table``: the key of the table that names the files; ``chosen``: each member's series, if it is known.
    """
    up = down if up is None else up
    if down.client != up.client:
        raise ValueError(f"{table}.up_file = {up_file!r}: has other clients than {table}.file")
    factors: list[list[StepSeries]] = []
    for series in (down, up):
        if isinstance(series, RateSeries):
            factors.append([_factor(each) for each in series.bits_per_second])
        else:
            factors.append([StepSeries.of(*samples) for samples in zip(series.seconds, series.factor, strict=True)])
    variation: Samples | Replay
    if assignment.is_shuffled:
        variation = samples = Samples(factors[DOWN], assignment.streams, factors[UP])
        count = len(down.client)
        rows = np.array([samples.series_of(client) if count > 1 else 0 for client in range(assignment.clients)])
    else:
        rows = assignment.rows("", len(down.client)) if chosen is None else chosen
        variation = Replay(factors[DOWN], factors[UP], rows, assignment.start)
    of_down, of_up = (
        WIRE_FACTOR * nominal(series.bits_per_second)[rows] if isinstance(series, RateSeries) else None
        for series in (down, up)
    )
    return LinkRecording(variation, (of_down, of_up))
