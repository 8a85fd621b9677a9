"""The CPU time of encoding and decoding by each stage of a codec on this host. Never torch, and no file is written.

A stage has its default options, and works on numbers of a standard normal, as one square matrix; entropy coders work on
what `BEHIND` makes of such numbers. The bytes of a rate are those that reach the stage, as of
`edge.protocol.codecs.registry.stage_nbytes`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from edge.protocol.codecs.codec import EntropyCoder, Everything, Float32, PlainStages
from edge.protocol.codecs.registry import CODECS, make_codec
from edge.protocol.rng import keyed_generator

BEHIND = "quantize"
CALLS = range(3, 501)
"""Calls of one kind: more if they are short (`ENOUGH_SECONDS`)."""
ENOUGH_SECONDS = 0.1
PIECE = 1_000_000
"""Numbers whose bytes an entropy coder gets at a time: floats for all of them may not fit a board's memory."""


def codec_rates(sizes: Sequence[float], calls: range = CALLS) -> dict[str, dict[str, list[float]]]:
    """kind -> ``encode``, ``decode`` -> bytes per CPU second at each of these sizes, by the median of some calls."""
    rates: dict[str, dict[str, list[float]]] = {}
    for kind in CODECS:
        rates[kind] = {"encode": [], "decode": []}
        for size in sizes:
            side = math.isqrt(round(size / 4))
            for direction, call in zip(rates[kind], encode_and_decode(kind, side), strict=True):
                rates[kind][direction].append(4 * side**2 / call_seconds(call, calls))
    return rates


def call_seconds(call: Callable[[], Any], calls: range = CALLS) -> float:
    """The median CPU time of at least ``calls.start`` and fewer than ``calls.stop`` calls."""
    taken = list[float]()
    while len(taken) < calls.stop - 1 and (len(taken) < calls.start or sum(taken) < ENOUGH_SECONDS):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return median(taken)


def encode_and_decode(kind: str, side: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Calls of one stage, which ``4 * side**2`` bytes reach."""
    tensors, count, rng = ((side, side),), side**2, keyed_generator(0, "calibrate codecs")
    if not issubclass(CODECS[kind].stage, EntropyCoder):
        codec, values = make_codec([{"kind": kind}]), rng.standard_normal(count, np.float32)
        kept = codec.encode(values, tensors, rng).kept
        frame = codec.encode(values, tensors, rng, kept).frame
        return lambda: codec.encode(values, tensors, rng, kept), lambda: codec.decode(frame.data, tensors, rng)
    codec = make_codec([{"kind": BEHIND}, {"kind": kind}])
    coder, before = codec.entropy_coder, codec.number_format
    assert coder is not None, kind
    if coder.needs_integers:
        chain = PlainStages(Everything(None), before, tensors)
        plain = before.pack(rng.standard_normal(count, np.float32), rng)
    else:
        chain = PlainStages(Everything(None), Float32(None), tensors)
        piece = before.nbytes(PIECE)
        pieces = [before.pack(rng.standard_normal(PIECE, np.float32), rng) for _ in range(0, 4 * count, piece)]
        plain = np.concatenate(pieces)[: 4 * count]
    coded = coder.shorten(plain, chain)
    return lambda: coder.shorten(plain, chain), lambda: coder.lengthen(coded, chain)
