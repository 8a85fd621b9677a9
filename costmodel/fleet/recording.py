"""What a recording says, for people who want to know how their file was understood: its length, its rates, its gaps.

Nothing here decides how a recording is followed (`costmodel.fleet.traces`, `costmodel.network.bandwidth`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import Doubles
from costmodel.fleet.traces import (
    Capacities,
    Cases,
    Machines,
    RateSeries,
    RecordedDays,
    Series,
    Trace,
    Users,
    WindowTrace,
)
from costmodel.step_series import StepSeries
from costmodel.units import format_flops, format_rate, format_seconds

BINS = 60
"""Equal parts of a recording's length, in each of which it is drawn as one mean"""
RATE, FACTOR, SPEED, SHARE, SECONDS = "bit/s", "factor", "FLOP/s", "share", "s"
LEVELS = " ▁▂▃▄▅▆▇█"
"""From nothing to the most, for a line of text"""
AVAILABILITY, LINK, CLIENTS = "fleet.availability.file", "fleet.bandwidth.file", "fleet.trace"


@dataclass(frozen=True)
class RecordedFigure:
    """One figure of a recording: over time, or of its rows."""

    name: str
    unit: str
    least: float
    median: float
    """Over the time of all members, or over rows"""
    most: float
    gap_seconds: float | None = None
    """The longest time that a value of a member holds; None: it has no times, or one value"""
    silences: int = 0
    """Times in which it is 0"""
    silent_seconds: float = 0.0
    """In all of them together, of all members"""
    means: tuple[float, ...] = ()
    """(`BINS`,) over members, by time; empty without times"""

    def text(self) -> str:
        """``down: 1.2 to 34 Mbit/s, median 20 Mbit/s, each held at most 2 s, 3 silences of 5 s in all``."""
        parts = [f"{self.name}: {_shown(self.least, self.unit)} to {_shown(self.most, self.unit)}"]
        parts.append(f"median {_shown(self.median, self.unit)}")
        if self.gap_seconds is not None:
            parts.append(f"each held at most {format_seconds(self.gap_seconds)}")
        if self.silences:
            several = f"{self.silences} silences" if self.silences > 1 else "a silence"
            parts.append(f"{several} of {format_seconds(self.silent_seconds)}{' in all' * (self.silences > 1)}")
        return ", ".join(parts)

    def drawn(self) -> str:
        """Its means as a line of `LEVELS`; '' without times. A mean above 0 is never blank."""
        most = max(self.means, default=0.0)
        if most <= 0:
            return ""
        return "".join(LEVELS[int(np.ceil(mean / most * (len(LEVELS) - 1)))] for mean in self.means)


@dataclass(frozen=True)
class Recording:
    """How a file was understood."""

    kind: str
    key: str
    """The scenario's key that takes it"""
    members: int
    """Clients, devices or links that it has figures of"""
    rows: int
    """Values, each of which holds until it changes; windows; or rows"""
    seconds: float | None
    """From its first to the end of its last sample; None: it has no times"""
    figures: tuple[RecordedFigure, ...]

    def text(self) -> str:
        """``rates over time: 60 values of 1 link, 59 s``."""
        of, rows = ("device", "windows") if self.key == AVAILABILITY else ("link", "values")
        if self.seconds is None:
            return f"{self.kind}: {self.rows:,} rows"
        members = f"{self.members:,} {of}{'s' * (self.members != 1)}"
        return f"{self.kind}: {self.rows:,} {rows} of {members}, {format_seconds(self.seconds)}"


def recording(trace: Trace) -> Recording:
    """What a trace has, over all of its members."""
    if isinstance(trace, RateSeries):
        series = trace.bits_per_second
        return _over_time("rates over time", LINK, max(each.length for each in series), {("rate", RATE): series})
    if isinstance(trace, Series):
        of = [StepSeries.of(*pair) for pair in zip(trace.seconds, trace.factor, strict=True)]
        return _over_time("factors over time", LINK, max(each.length for each in of), {("factor", FACTOR): of})
    if isinstance(trace, RecordedDays):
        named = {("down", RATE): trace.down, ("up", RATE): trace.up}
        if trace.flops_per_second is not None:
            named["speed", SPEED] = trace.flops_per_second
        if trace.available is not None:
            named["available", SHARE] = trace.available
        is_link = trace.flops_per_second is None and trace.available is None
        kind, key = ("both directions over time", LINK) if is_link else ("clients over time", CLIENTS)
        return _over_time(kind, key, trace.length, named)
    if isinstance(trace, WindowTrace):
        return _windows(trace)
    rows, figures_of_rows = _population(trace)
    figures = tuple(_figure(name, unit, values) for name, unit, values in figures_of_rows)
    return Recording("a population of clients", CLIENTS, rows, rows, None, figures)


def _over_time(
    kind: str, key: str, length: float, figures: Mapping[tuple[str, str], Sequence[StepSeries]]
) -> Recording:
    """``figures``: (name, unit) -> the series of each member."""
    first = next(iter(figures.values()))
    rows = sum(max(len(series[member].seconds) for series in figures.values()) for member in range(len(first)))
    found = tuple(_series_figure(name, unit, series) for (name, unit), series in figures.items())
    return Recording(kind, key, len(first), rows, length, found)


def _series_figure(name: str, unit: str, series: Sequence[StepSeries]) -> RecordedFigure:
    lasting = [np.diff([*each.seconds, each.length]) for each in series]
    gaps = [float(seconds[:-1].max()) for seconds in lasting if seconds.size > 1]
    silent = [np.array(each.values) == 0 for each in series]
    silences = sum(int((np.diff(np.concatenate([[0], of.astype(int)])) > 0).sum()) for of in silent)
    nothing = sum(float(seconds[of].sum()) for seconds, of in zip(lasting, silent, strict=True))
    values, weights = np.concatenate([np.array(each.values) for each in series]), np.concatenate(lasting)
    order = np.argsort(values, kind="stable")
    half = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    means = np.mean([_means(each) for each in series], axis=0)
    return RecordedFigure(
        name,
        unit,
        *(float(values.min()), float(values[order][half]), float(values.max())),
        max(gaps, default=None),
        silences,
        nothing,
        tuple(means.tolist()),
    )


def _means(series: StepSeries) -> Doubles:
    """(`BINS`,) Means over equal parts of the length."""
    edges = np.array([*series.seconds, series.length])
    area = np.concatenate([[0.0], np.cumsum(np.diff(edges) * np.array(series.values))])
    at = np.interp(np.linspace(0.0, series.length, BINS + 1), edges, area)
    means: Doubles = np.diff(at) / (series.length / BINS)
    return means


def _windows(trace: WindowTrace) -> Recording:
    """Availability: the share of devices that are there, over the longest trace."""
    end = float((trace.trace_end - trace.trace_start).max())
    edges = np.linspace(0.0, end, BINS + 1)
    there, spans = np.zeros(BINS), list[float]()
    for own in trace.windows:
        for begin, until in own:
            there += np.clip(np.minimum(until, edges[1:]) - np.maximum(begin, edges[:-1]), 0.0, None)
            spans.append(until - begin)
    share = there / (len(trace.devices) * end / BINS)
    lengths = np.array(spans or [0.0])
    figures = (
        RecordedFigure("available", SHARE, *_three(share), means=tuple(share.tolist())),
        _figure("a window", SECONDS, lengths),
    )
    return Recording("windows of availability", AVAILABILITY, len(trace.devices), len(spans), end, figures)


def _population(trace: Trace) -> tuple[int, Iterator[tuple[str, str, Doubles]]]:
    """Rows, and (name, unit, values) of each figure of a population."""
    if isinstance(trace, Capacities):
        named = [("an example", SECONDS, trace.compute_seconds), ("link", RATE, trace.bits_per_second)]
    elif isinstance(trace, Cases):
        named = [(f"case {case}", RATE, mean) for case, (mean, _) in trace.cases.items()]
    elif isinstance(trace, Users):
        named = [("down", RATE, trace.down), ("up", RATE, trace.up)]
    else:
        assert isinstance(trace, Machines)
        named = [("speed", SPEED, trace.flops_per_second), ("down", RATE, trace.down), ("up", RATE, trace.up)]
    return max(values.size for _, _, values in named), iter(named)


def _figure(name: str, unit: str, values: Doubles) -> RecordedFigure:
    return RecordedFigure(name, unit, *_three(values))


def _three(values: Doubles) -> tuple[float, float, float]:
    """(least, median, most)."""
    return float(values.min()), float(np.median(values)), float(values.max())


def _shown(value: float, unit: str) -> str:
    """A value in a unit that fits it."""
    formats: dict[str, Callable[[float], str]] = {RATE: format_rate, SECONDS: format_seconds}
    if unit in formats:
        return formats[unit](value)
    if unit == SHARE:
        return f"{100 * value:.3g} %"
    return f"{format_flops(value)}/s" if unit == SPEED else f"{value:.3g}"
