"""The time that stages of a codec take: seconds of encoding and of decoding, by kind of stage and bytes. Numbers only.

The rates were measured on one core of the reference host (codecs.toml). Another device takes `Device.codec_slowdown`
times as long, which is derived (profiles.toml says how), or what its own row measures (`Device.codecs`,
``fedbr check --calibrate``). Stages of a chain take their time one after another, each on the bytes that reach it:
the raw float32 of a vector, the fewer numbers that a reduction left, or the packed bytes before an entropy coder.
Decoding is counted on the same bytes, those that come out of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from costmodel.files import parse_toml
from costmodel.units import nearest

SIZES = (10_000.0, 250_000.0, 25_000_000.0)
"""Bytes at which rates are measured; in between they are log-interpolated, and beyond the ends constant."""
Direction = Literal["encode", "decode"]
Stages = Sequence[tuple[str, float]]
"""(kind, bytes that reach it) of each stage of a chain"""


@dataclass(frozen=True)
class CodecRates:
    """Bytes per second at `SIZES` of one kind of stage."""

    encode: tuple[float, ...]
    decode: tuple[float, ...]

    def slower(self, slowdown: float) -> CodecRates:
        """Those of a device that takes ``slowdown`` times as long."""
        return CodecRates(*(tuple(rate / slowdown for rate in rates) for rates in (self.encode, self.decode)))


@cache
def reference_rates() -> dict[str, CodecRates]:
    """The rates of the reference host, by kind of stage."""
    tables = parse_toml(Path(__file__).with_name("codecs.toml").read_text())
    return {kind: CodecRates(tuple(row["encode"]), tuple(row["decode"])) for kind, row in tables["stages"].items()}


def codec_seconds(stages: Stages, direction: Direction, rates: Mapping[str, CodecRates] | None = None) -> float:
    """Seconds of all stages one after another, by ``rates``, or on the reference host.

    ValueError for a kind without rates: a stage of one's own needs a row that says which kind it takes as long as.
    """
    known = reference_rates() if rates is None else rates
    seconds = 0.0
    for kind, nbytes in stages:
        if kind not in known:
            raise ValueError(
                f"nothing is known of the time that the codec stage {kind!r} takes: its row must name a stage of the "
                f"same cost as costs_like, {nearest(kind, known)}"
            )
        if nbytes > 0:
            per_second = getattr(known[kind], direction)
            seconds += nbytes / math.exp(float(np.interp(math.log(nbytes), np.log(SIZES), np.log(per_second))))
    return seconds
