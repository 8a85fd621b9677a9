"""Intervals of time in words. `costmodel.units` has the durations of virtual time, and `costmodel` imports nothing."""

from __future__ import annotations

import re

SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}
_INTERVAL = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(SECONDS)})")


def interval_seconds(given: object) -> object:
    """Seconds of "30 min" or "1 day"; numbers as they are. ValueError for other texts."""
    if not isinstance(given, str):
        return given
    match = _INTERVAL.fullmatch(given.strip())
    if match is None:
        raise ValueError(f"must be an interval, such as 30 min; units are {', '.join(SECONDS)}")
    return float(match[1]) * SECONDS[match[2]]
