"""The variation of a client's own link in time: a factor on its nominal rate, constant between two changes.

Every answer is a pure function of client, direction and time, whatever the order and number of queries. Only the
clients of a query are computed. Nothing here knows of rates, messages or shared links.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.step_series import StepSeries

DOWN, UP = 0, 1
PURPOSE = "bandwidth"
OUTAGES = "outages"
LENGTH_SIGMA = 1.0
"""Sigma of the logarithm of an outage's length (assumed)."""
CHUNK = 32
"""Outages drawn at a time."""
CACHED_NBYTES = 1 << 27
"""Limit of cached factors; evicted ones are computed again."""
CACHED_CLIENTS = 1 << 16


class Variation(Protocol):
    """A model of varying links. Times are finite seconds since the start of the run, >= 0."""

    @property
    def has_outages(self) -> bool:
        """Whether there may be outages."""

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor >= 0 from t on; absolute time > t of the next change, inf if never)."""

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether the factor is 0 at ``t`` and what is sent is lost; otherwise it waits for the next change."""


class Constant:
    """Links at their nominal rates."""

    has_outages = False

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(1.0, inf)"""
        return 1.0, math.inf

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """False"""
        return False


class OrnsteinUhlenbeck:
    """A stationary Ornstein-Uhlenbeck process in the logarithm of the rate, each direction its own.

    dx = -x / tau dt + sigma sqrt(2 / tau) dB, so x has the standard deviation sigma and the autocorrelation
    exp(-dt / tau). It is sampled at the multiples of ``step`` by its exact step
    x' = a x + sigma sqrt(1 - a^2) e with a = exp(-step / tau) and normal e. The factor is exp(x - sigma^2 / 2): its
    mean is 1. sigma = 0 is a link that never varies.

    Time is cut into chunks of at least 40 tau. The first x of a chunk follows from the noise of the chunk before: older
    noise contributes less than exp(-40) < 1e-17 of it, below the precision of a float64.
    """

    CHUNK_TAUS = 40.0
    has_outages = False

    def __init__(self, sigma: ArrayLike, tau: float, step: float, streams: Streams) -> None:
        """``sigma``: for all clients, or (clients, 2) for download and upload; ``tau`` and ``step`` in seconds.

        ValueError for a figure out of its range. `sigma_of_cv` gives sigma from a coefficient of variation.
        """
        for name, seconds in (("tau", tau), ("step", step)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, not {seconds!r}")
        self._sigma = np.asarray(sigma, np.float64)
        assert self._sigma.ndim == 0 or self._sigma.shape[1:] == (2,), self._sigma.shape
        if not (np.isfinite(self._sigma) & (self._sigma >= 0)).all():
            raise ValueError(f"sigma must be at least 0, not {float(self._sigma.min())!r}")
        self._step, self._streams = step, streams
        self._samples = max(math.ceil(self.CHUNK_TAUS * tau / step), 1)
        # (samples,) weights a^-j, at most exp(40), of the noise of sample j.
        self._growth = np.exp(np.arange(self._samples) * (step / tau))
        self._decay = math.exp(-step / tau)
        self._scale = math.sqrt(-math.expm1(-2.0 * step / tau))
        self._factors = lru_cache(max(CACHED_NBYTES // (16 * self._samples), 64))(self._chunk)
        self._driven = lru_cache(64)(self._drive)

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor from t on, absolute time of the next multiple of the step)."""
        if (self._sigma if self._sigma.ndim == 0 else self._sigma[client, direction]) == 0.0:
            return 1.0, math.inf
        sample = int(t // self._step)
        # The change at a multiple of the step belongs to the new sample, also where the division rounds below it.
        if (sample + 1) * self._step <= t:
            sample += 1
        chunk, place = divmod(sample, self._samples)
        return float(self._factors(client, chunk)[direction, place]), (sample + 1) * self._step

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """False"""
        return False

    def _chunk(self, client: int, chunk: int) -> Doubles:
        """(2, samples) factors."""
        begin = self._driven(client, chunk - 1)[:, -1:]
        x = np.hstack([begin, begin * self._decay / self._growth[:-1] + self._driven(client, chunk)[:, :-1]])
        sigma = np.broadcast_to(self._sigma if self._sigma.ndim == 0 else self._sigma[client], 2)[:, None]
        factors: Doubles = np.exp(sigma * x - sigma**2 / 2.0)
        return factors

    def _drive(self, client: int, chunk: int) -> Doubles:
        """(2, samples) x / sigma just after each sample, had it been 0 at the beginning of the chunk."""
        noise = self._streams(PURPOSE, chunk + 1, client).standard_normal((2, self._samples))
        driven: Doubles = self._scale * np.cumsum(noise * self._growth, axis=1) / self._growth
        return driven


class Samples:
    """Recorded series of factors, repeated.

    Each client follows one of the series, drawn at random, from a random time in it. Without series of their own,
    uploads follow that of the downloads; with them, both directions begin at the same time of the recording.
    """

    def __init__(self, series: Sequence[StepSeries], streams: Streams, up: Sequence[StepSeries] | None = None) -> None:
        """Factors >= 0, one series for each recorded client; ``up``: for uploads, of the same clients."""
        self._series = (series, series if up is None else up)
        assert len(self._series[DOWN]) == len(self._series[UP]) > 0, (len(series), up)
        self.has_outages = any(each.has_outage for both in self._series for each in both)
        self._streams = streams
        self._place = lru_cache(CACHED_CLIENTS)(self._draw)

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor from t on, absolute time of the next sample)."""
        series, offset = self._place(client)
        return self._series[direction][series].at(t, offset)

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether the factor is 0 at ``t``, in a series whose zeros are outages."""
        series = self._series[direction][self._place(client)[0]]
        return series.has_outage and self.factor(client, direction, t)[0] == 0.0

    def series_of(self, client: int) -> int:
        """The index of the series that the client follows."""
        return self._place(client)[0]

    def _draw(self, client: int) -> tuple[int, float]:
        """(index of the client's series, its offset in it in seconds)."""
        rng = self._streams(PURPOSE, 0, client)
        series = int(rng.integers(len(self._series[DOWN])))
        place = float(rng.random())
        down = self._series[DOWN][series]
        length = down.length if len(down.seconds) > 1 else self._series[UP][series].length
        return series, place * length


class Replay:
    """Recorded series of factors of each client, all from one common time of the recording on."""

    def __init__(
        self, down: Sequence[StepSeries], up: Sequence[StepSeries], rows: NDArray[np.intp], start: float = 0.0
    ) -> None:
        """Factors >= 0 by row; ``rows`` (clients,) is each client's, and ``start`` the recording's time at t = 0."""
        assert len(down) == len(up) > int(rows.max()), (len(down), len(up))
        self._series, self._rows, self._start = (down, up), rows, start
        self.has_pauses = any(0.0 in series.values for series in (*down, *up))
        self.has_outages = any(series.has_outage for series in (*down, *up))

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor from t on, absolute time of the next sample)."""
        return self._series[direction][int(self._rows[client])].at(t, self._start)

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether the factor is 0 at ``t``, in a series whose zeros are outages."""
        series = self._series[direction][int(self._rows[client])]
        return series.has_outage and series.at(t, self._start)[0] == 0.0


def behind_sites(variation: Variation, sites: Variation, site_of: NDArray[np.intp]) -> Variation:
    """A variation of clients' own links, each behind the link of a site; ``site_of``: (clients,) its index."""
    if isinstance(sites, Replay) and not sites.has_pauses:
        return variation
    return variation if isinstance(sites, OrnsteinUhlenbeck) else BehindSites(variation, sites, site_of)


class BehindSites:
    """A variation of clients' own links, of which none carries anything while the link of its site carries nothing."""

    def __init__(self, variation: Variation, sites: Variation, site_of: NDArray[np.intp]) -> None:
        """``site_of``: (clients,) index of each client's site."""
        self._variation, self._sites, self._site_of = variation, sites, site_of.tolist()
        self.has_outages = variation.has_outages or sites.has_outages

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor >= 0 from t on, absolute time > t of the next change)."""
        passes, change = self._sites.factor(self._site_of[client], direction, t)
        if passes == 0:
            return 0.0, change
        factor, own_change = self._variation.factor(client, direction, t)
        return factor, min(change, own_change)

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether the site's link has an outage at ``t``, or the client's own."""
        at_site = self._sites.is_outage(self._site_of[client], direction, t)
        return at_site or self._variation.is_outage(client, direction, t)


class WithOutages:
    """A variation of links, interrupted by outages: times in which nothing passes.

    An outage hits both directions of a client's link at once. Times between outages are exponential, lengths lognormal
    around their median: many are short, a few long. Nothing here knows what TCP makes of an outage.
    """

    def __init__(self, variation: Variation, per_hour: Doubles, seconds: Doubles, streams: Streams) -> None:
        """``per_hour``, ``seconds``: (clients,) outages in an hour without any, and their median length; 0: none."""
        assert per_hour.shape == seconds.shape, (per_hour.shape, seconds.shape)
        self._variation, self._streams = variation, streams
        self._between = np.divide(3600.0, per_hour, out=np.full(per_hour.size, math.inf), where=per_hour > 0).tolist()
        self._seconds = seconds.tolist()
        self.has_outages = variation.has_outages or bool(((per_hour > 0) & (seconds > 0)).any())
        self._changes = lru_cache(CACHED_CLIENTS)(lambda client: [0.0])
        self._drawn = lru_cache(CACHED_CLIENTS)(self._draw)

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor >= 0 from t on, absolute time > t of the next change)."""
        is_down, until = self._outage(client, t)
        if is_down:
            return 0.0, until
        factor, change = self._variation.factor(client, direction, t)
        return factor, min(until, change)

    def is_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether there is an outage at ``t``, of these or of the variation's own."""
        return self._outage(client, t)[0] or self._variation.is_outage(client, direction, t)

    def _outage(self, client: int, t: float) -> tuple[bool, float]:
        """(whether there is one at t, absolute time of its end or of the next one's begin)."""
        if math.isinf(self._between[client]) or self._seconds[client] == 0:
            return False, math.inf
        chunk_begins = self._changes(client)
        while chunk_begins[-1] <= t:
            chunk_begins.append(self._drawn(client, len(chunk_begins) - 1, chunk_begins[-1])[-1])
        chunk = bisect_right(chunk_begins, t) - 1
        changes = self._drawn(client, chunk, chunk_begins[chunk])
        place = bisect_right(changes, t)
        return place % 2 == 1, changes[place]

    def _draw(self, client: int, chunk: int, begin: float) -> list[float]:
        """(2 CHUNK,) begin and end of each outage of a chunk, which begins at ``begin`` with the link up."""
        rng = self._streams(OUTAGES, chunk, client)
        between = self._between[client] * rng.standard_exponential(CHUNK)
        lengths = self._seconds[client] * np.exp(LENGTH_SIGMA * rng.standard_normal(CHUNK))
        changes: list[float] = (begin + np.cumsum(np.stack([between, lengths], axis=1).ravel())).tolist()
        return changes


def sigma_of_cv(cv: float) -> float:
    """The sigma at which the factor's standard deviation is ``cv`` times its mean: sqrt(ln(1 + cv^2))."""
    return math.sqrt(math.log1p(cv * cv))
