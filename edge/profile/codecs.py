"""The CPU time of encoding and decoding by each stage of codecs on this host. Never torch, no file is written.

Each stage works on float32 numbers drawn from a standard normal, alone in a chain and with its default options; entropy
coders work behind the default `quantize`. The bytes of a rate are those that reach the stage, as of
`edge.protocol.codecs.registry.work_of_stages`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np

from edge.protocol.codecs.codec import Chain, EntropyCoder, Tensors
from edge.protocol.codecs.registry import CODECS, make_codec, work_of_stages
from edge.protocol.rng import keyed_generator

BEHIND = "quantize"
"""Entropy coders are measured on its frames."""
CALLS = range(3, 1000)
"""Calls measured of one kind: more if they are short."""
ENOUGH_SECONDS = 0.15
FLOAT_NBYTES = 4


def codec_rates(sizes: Sequence[float], calls: range = CALLS) -> dict[str, dict[str, list[float]]]:
    """kind -> ``encode`` and ``decode`` -> bytes per CPU second at each of these sizes, in bytes that reach the stage.

    The median of at least ``calls.start`` calls counts.
    """
    rates = {}
    for kind in CODECS:
        pairs = [_seconds_per_byte(kind, size, calls) for size in sizes]
        rates[kind] = {
            direction: [1 / pair[place] for pair in pairs] for place, direction in enumerate(("encode", "decode"))
        }
    return rates
