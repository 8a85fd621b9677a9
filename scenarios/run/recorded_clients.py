"""Recordings as the presence, links and speeds of a scenario's clients: which row is whose, and from what time on.

ValueError for recordings that no client can follow. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.recordings import RateSeries, RecordedDays
from costmodel.fleet.speed import RecordedSpeed
from costmodel.fleet.traces import ClientTrace, Machines, Series, WindowTrace, assigned, nominal
from costmodel.network.bandwidth import DOWN, UP, Replay, Samples
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.step_series import StepSeries

LEAST_SECONDS, FACTORS = 1e-3, 1e6
"""Limits of recorded series: the least distance of two samples, and the largest factor and inverse factor."""
MOST_SECONDS = 1e9
"""Length of a recording, 30 years; float64 has digits for the microseconds of a time within it."""


@dataclass(frozen=True)
class TraceAssignment:
    """How the rows of recordings meet clients."""

    clients: int
    is_shuffled: bool
    """Whether rows are permuted; otherwise row k is client k's"""
    start: float
    """Seconds of the recording that are over when the run begins"""
    repeats: bool
    """Whether windows and recorded days are repeated"""
    streams: Streams

    def rows(self, purpose: str, count: int) -> NDArray[np.intp]:
        """(clients,) Each client's row of ``count``."""
        return assigned(count, self.clients, self.streams(purpose, 0, 0) if self.is_shuffled else None)


@dataclass(frozen=True)
class LinkRecording:
    """Clients' links over time."""

    variation: Samples | Replay
    rates: tuple[Doubles | None, Doubles | None] = (None, None)
    """(down, up) Rates of all clients that the factors refer to, bit/s on the wire; None: as drawn"""

    def applied(self, drawn: Fleet) -> Fleet:
        """The fleet with these rates."""
        down, up = self.rates
        return replace(drawn, down=drawn.down if down is None else down, up=drawn.up if up is None else up)


def presence(trace: WindowTrace, assignment: TraceAssignment) -> RecordedIntervals:
    """The recorded windows; of those that do not repeat, what was before the start is over."""
    rows = assignment.rows("availability of a trace", len(trace.devices))
    return _intervals(trace.windows, trace.period if assignment.repeats else None, rows, assignment.start)


def _intervals(
    windows: Sequence[Sequence[tuple[float, float]]], period: Doubles | None, rows: NDArray[np.intp], start: float
) -> RecordedIntervals:
    shifted = [[(begin - start, end - start) for begin, end in row] for row in windows]
    if period is None:
        shifted = [[(max(begin, 0.0), end) for begin, end in row if end > 0] for row in shifted]
    return RecordedIntervals(shifted, period, row_of=rows)


def days_presence(days: RecordedDays, assignment: TraceAssignment) -> RecordedIntervals | None:
    """The presence that recorded days say; None where they say nothing: they repeat, and have no such column."""
    if days.available is None and assignment.repeats:
        return None
    windows = [days.windows(row) for row in range(len(days.client))]
    period = np.full(len(windows), days.length) if assignment.repeats else None
    return _intervals(windows, period, assignment.rows("trace", len(windows)), assignment.start)


def days_speed(days: RecordedDays, assignment: TraceAssignment) -> RecordedSpeed | None:
    """Factors on the mean of each client's recorded speed; None if it is not recorded."""
    if days.flops_per_second is None:
        return None
    series = _factors(days.flops_per_second, assignment.repeats)
    return RecordedSpeed(series, assignment.rows("trace", len(series)), assignment.start)


def trace_link(trace: ClientTrace | None, assignment: TraceAssignment) -> LinkRecording | None:
    """The link over time that rows of devices have; None for a trace of constant rates."""
    if isinstance(trace, RecordedDays):
        down, up = (_factors(series, assignment.repeats) for series in (trace.down, trace.up))
    elif isinstance(trace, Machines) and trace.series is not None:
        down, up = ([_factor(series) for series in each] for each in trace.series)
    else:
        return None
    return LinkRecording(Replay(down, up, assignment.rows("trace", len(down)), assignment.start))


def _factors(series: Sequence[StepSeries], repeats: bool) -> list[StepSeries]:
    pairs = zip(series, nominal(series).tolist(), strict=True)
    return [replace(each.over(mean), repeats=repeats) for each, mean in pairs]


def _factor(series: StepSeries | None) -> StepSeries:
    return StepSeries((0.0,), (1.0,), 1.0) if series is None else series.over(series.mean())


def bandwidth_link(
    down: Series | RateSeries, up: Series | RateSeries | None, assignment: TraceAssignment
) -> LinkRecording:
    """The link over time of series of factors or rates; without ``up``, uploads follow ``down``."""
    up = down if up is None else up
    if down.client != up.client:
        raise ValueError("has other clients than fleet.bandwidth.file")
    factors = _factor_series(down), _factor_series(up)
    variation: Samples | Replay
    if assignment.is_shuffled:
        variation = samples = Samples(factors[DOWN], assignment.streams, factors[UP])
        count = len(down.client)
        rows = np.array([samples.series_of(client) if count > 1 else 0 for client in range(assignment.clients)])
    else:
        rows = assignment.rows("", len(down.client))
        variation = Replay(*factors, rows, assignment.start)
    return LinkRecording(variation, (_wire_rates(down, rows), _wire_rates(up, rows)))


def _factor_series(series: Series | RateSeries) -> list[StepSeries]:
    if isinstance(series, RateSeries):
        return [_factor(each) for each in series.bits_per_second]
    return [StepSeries.of(*samples) for samples in zip(series.seconds, series.factor, strict=True)]


def _wire_rates(series: Series | RateSeries, rows: NDArray[np.intp]) -> Doubles | None:
    return WIRE_FACTOR * nominal(series.bits_per_second)[rows] if isinstance(series, RateSeries) else None


# --- recordings that nothing can follow -------------------------------------------------------------------------------


def check_series(series: Series | RateSeries) -> None:
    """Check that samples are not too close, and that each link works at some time, within limits."""
    if isinstance(series, RateSeries):
        for client, rates in zip(series.client, series.bits_per_second, strict=True):
            _check_rates(client, rates)
        return
    for client, seconds, factor in zip(series.client, series.seconds, series.factor, strict=True):
        _check_length(client, float(seconds[-1]))
        some = factor[factor > 0]
        if (np.diff(seconds) < LEAST_SECONDS).any() or some.max() > FACTORS or some.min() < 1 / FACTORS:
            raise ValueError(
                f"client {client}: seconds must be {LEAST_SECONDS:g} or more apart, and factors 0 or within "
                f"{1 / FACTORS:g} and {FACTORS:g}"
            )


def check_days(days: RecordedDays) -> None:
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


def check_links(machines: Machines) -> None:
    """Check the series of rates beside a table of clients as `check_series` does."""
    for rates in machines.series or ():
        for client, series in zip(machines.client, rates, strict=True):
            if series is not None:
                _check_rates(client, series)


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
    _check_length(client, series.seconds[-1])
    if (np.diff(series.seconds) < LEAST_SECONDS).any():
        raise ValueError(f"client {client}: seconds must be {LEAST_SECONDS:g} or more apart")


def _check_length(client: str, seconds: float) -> None:
    if seconds > MOST_SECONDS:
        raise ValueError(f"client {client}: its samples span {seconds:g} s, the most is {MOST_SECONDS:g} (30 years)")


def note(key: str, rows: int, clients: int, names: tuple[str, str] = ("row", "rows")) -> str:
    """How so many rows meet so many clients; '' if there are as many. ``names``: of one row, and of several."""
    if rows == clients:
        return ""
    counts = f"{key}: {rows} {names[rows > 1]} for {clients} clients"
    if rows > clients:
        unused = rows - clients
        return f"{counts}: {unused} {names[unused > 1]} unused"
    least, more = divmod(clients, rows)
    return f"{counts}: each {names[0]} serves {f'{least} or {least + 1}' if more else least} clients"
