"""Whether the stages of a codec keep their contract: frames of random vectors, as they are, broken and averaged.

Nothing is trained, and no frame leaves the process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np

from edge.protocol.codecs.codec import LARGEST, Codec, Tensors, size
from edge.protocol.codecs.registry import make_codec
from edge.protocol.config import Chain
from edge.protocol.payload import Floats
from edge.protocol.plugins import error_text
from edge.protocol.rng import keyed_generator
from edge.protocol.wire import WireError

SHAPES: tuple[Tensors, ...] = (((1,),), ((9, 8), (9,), (4, 3, 2)), ((64, 33), (1000,)))
"""A number alone, a few small tensors, and some thousands of numbers"""
DRAWS, BROKEN = 300, 300
"""Of one vector, for its mean; and of frames"""
MOST_DEVIATION = 10.0
"""Of the squared error of a mean, in expectations of it: 1.1 for many independent numbers; where all depend on one
draw, 10 has the probability 0.0016"""

Verdict = tuple[bool, str]


def codec_findings(stages: Chain) -> Iterator[tuple[str, bool, str]]:
    """(name, whether it holds, detail) of each line of the contract; the others follow only if frames come back."""
    codec = make_codec(stages)
    frames = _tried(codec, _frames)
    yield "frames", *frames
    if frames[0]:
        yield "malformed", *_tried(codec, _malformed)
        yield "mean", *_tried(codec, _mean)


def _tried(codec: Codec, judge: Callable[[Codec], Verdict]) -> Verdict:
    try:
        return judge(codec)
    except Exception as error:  # a user's stage may raise anything
        return False, error_text(error)


def _frames(codec: Codec) -> Verdict:
    """Of zeros, small numbers and the largest: the same again, as long as foreseen, and finite numbers back."""
    vectors = 0
    for tensors in SHAPES:
        for values in _vectors(size(tensors)):
            values.flags.writeable = False  # what encoding took from it is its difference from what comes back
            foreseen = codec.nbytes(tensors)
            kept = None
            for use in range(2):  # the second with what the first has kept
                first, again = (codec.encode(values, tensors, _stream(use), kept) for _ in range(2))
                about = f"{values.size} numbers, the largest {np.abs(values).max():.3g}"
                if not np.array_equal(first.frame, again.frame):
                    return False, f"{about}: two frames for the same draws"
                nbytes = first.frame.size
                if nbytes > foreseen or (codec.is_fixed_length and nbytes != foreseen):
                    return False, f"{about}: {nbytes} bytes instead of {foreseen}"
                back = codec.decode(first.frame.tobytes(), tensors, _stream(use))
                if back.shape != values.shape or back.dtype != np.float32:
                    return False, f"{about}: {back.dtype} numbers of shape {back.shape} come back"
                if not np.isfinite(back).all():
                    return False, f"{about}: a number that is not finite comes back"
                kept = first.kept
            vectors += 1
    n, most = size(SHAPES[-1]), codec.nbytes(SHAPES[-1])
    length = f"{most:,}" if codec.is_fixed_length else f"at most {most:,}"
    return True, f"{vectors} vectors come back finite, and the same; {length} bytes for {n:,} numbers"


def _malformed(codec: Codec) -> Verdict:
    """Frames that are cut, longer, changed or noise: a WireError, or finite numbers as a frame of this length has."""
    tensors, draw = SHAPES[1], random.Random(0)
    valid = codec.encode(_vectors(size(tensors))[1], tensors, _stream(0)).frame.tobytes()
    refused = 0
    for number in range(BROKEN):
        raw, place = bytearray(valid), draw.randrange(len(valid))
        match number % 4:
            case 0:
                del raw[place:]
            case 1:
                raw += draw.randbytes(draw.choice((1, 4, 100)))
            case 2:
                raw[place] ^= 1 << draw.randrange(8)
            case _:
                raw[:] = draw.choice((draw.randbytes(len(raw)), b"\xff" * len(raw)))
        try:
            back = codec.decode(bytes(raw), tensors, _stream(0))
        except WireError:
            refused += 1
            continue
        if codec.is_fixed_length and len(raw) != len(valid):
            return False, f"{len(raw)} bytes instead of {len(valid)} are read as numbers"
        if back.shape != (size(tensors),) or not np.isfinite(back).all():
            return False, "a broken frame gives numbers that are not finite, or too few"
    return True, f"of {BROKEN} broken frames {refused} are refused; the others are numbers"


def _mean(codec: Codec) -> Verdict:
    """The squared error of the mean of many draws, beside its expectation for a mean that is what was sent."""
    if not codec.is_unbiased:
        if not codec.contracts:
            return True, "says that it is biased: what comes back has more noise than numbers, and is not fed back"
        return True, "says that it is biased: clients keep residuals unless codec.error_feedback = false"
    tensors, n = SHAPES[1], size(SHAPES[1])
    values = _vectors(n)[1]
    back = np.empty((DRAWS, n))
    for draw in range(DRAWS):
        back[draw] = codec.decode(codec.encode(values, tensors, _stream(draw)).frame.data, tensors, _stream(draw))
    squares = float(np.square(back.mean(axis=0) - values).sum())
    rounding = float(np.square(values * 1e-6, dtype=np.float64).sum())
    expected = float(back.var(axis=0, ddof=1).sum()) / DRAWS + rounding
    holds, error = squares <= MOST_DEVIATION * expected, math.sqrt(squares / float(np.square(values).sum()))
    words = "is" if holds else "is not"
    return holds, f"the mean of {DRAWS} draws {words} what was sent: it differs by {error:.2g} of its norm"


def _vectors(count: int) -> list[Floats]:
    """Zeros; mostly small numbers, as updates have; and the largest beside the smallest."""
    small = (1e-3 * np.random.default_rng(count).normal(size=count) ** 3).astype(np.float32)
    extreme = np.resize(np.array([LARGEST, -LARGEST, 1e-30, 0, -1e-42, 1], np.float32), count)
    return [np.zeros(count, np.float32), small, extreme]


def _stream(draw: int) -> np.random.Generator:
    return keyed_generator(0, "check-plugin", draw, 0)
