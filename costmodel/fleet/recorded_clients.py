"""Recordings as the presence, links and speeds of clients: which row is whose, and from what time on.

ValueError for recordings that no client can follow. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.config import FleetConfig
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.recordings import RateSeries, RecordedDays
from costmodel.fleet.speed import RecordedSpeed
from costmodel.fleet.traces import ClientTrace, Machines, Series, WindowTrace, assigned, nominal
from costmodel.network.bandwidth import DOWN, UP, Replay, Samples
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.step_series import StepSeries
from costmodel.units import HOUR_SECONDS


@dataclass(frozen=True)
class TraceAssignment:
    """How the rows of recordings meet clients."""

    clients: int
    config: FleetConfig
    streams: Streams

    @property
    def is_shuffled(self) -> bool:
        """Whether rows are permuted; otherwise row k is client k's."""
        return self.config.trace_assign == "shuffled"

    @property
    def start(self) -> float:
        """Seconds of the recording that are over when the run begins."""
        return self.config.availability.start_hour * HOUR_SECONDS

    @property
    def repeats(self) -> bool:
        """Whether windows and recorded days are repeated."""
        return self.config.availability.repeat

    def rows(self, purpose: str, count: int) -> NDArray[np.intp]:
        """(clients,) Each client's row of ``count``."""
        return assigned(count, self.clients, self.streams(purpose, 0, 0) if self.is_shuffled else None)


@dataclass(frozen=True)
class LinkRecording:
    """Clients' links over time."""

    variation: Samples | Replay
    rates: tuple[Doubles | None, Doubles | None] = (None, None)
    """(down, up) Rates of all clients that the factors refer to, bit/s on the wire; None: as drawn"""


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
