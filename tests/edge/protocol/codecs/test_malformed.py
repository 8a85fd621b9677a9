"""Frames that no encoder makes are refused with the reason; and the same message makes the same frame anywhere."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.protocol.codecs.elias import omega_bits
from edge.protocol.codecs.registry import make_codec
from edge.protocol.plugins import ROOT
from edge.protocol.wire import WireError
from tests.edge.protocol.codecs.chains import (
    CHAINS,
    COUNT,
    ELIAS,
    TENSORS,
    TERNARY,
    ZSTD,
    frame,
    mutated,
    name,
    stream,
)

ONE = struct.pack("<f", 1)
NAN, INFINITY = b"\0\0\xc0\x7f", b"\0\0\x80\x7f"
FOUR = {"kind": "quantize", "bits": 4}
THREE = {"kind": "quantize", "bits": 3}
HALF = {"kind": "topk", "ratio": 0.5}
MOST_BITS = {"kind": "quantize", "bits": 16}


def stream_of(*numbers: int) -> bytes:
    """Omega codes."""
    return np.packbits(np.concatenate(omega_bits(np.array(numbers)))).tobytes()


@pytest.mark.parametrize(
    ("stages", "count", "raw", "reason"),
    [
        ([], 2, bytes(7), "7 bytes instead of 8"),
        ([], 2, bytes(4) + NAN, "a number is not finite"),
        ([{"kind": "fp16"}], 1, b"\0\x7c", "a number is not finite"),
        ([FOUR], 2, NAN + b"\0", "is not finite"),
        ([FOUR], 2, ONE + b"\xf0", "a level is beyond 7"),
        ([FOUR], 3, ONE + b"\0\x10", "ends with byte 16, of which 4 bits count"),
        ([THREE], 1, ONE + b"\x07", "a level is beyond 3"),
        ([MOST_BITS], 1, ONE + b"\xff\xff", "a level is beyond 32767"),
        ([TERNARY], 5, ONE + b"\xf3", "a byte of five ternary digits is above 242"),
        ([{"kind": "sign"}], 3, ONE + b"\x08", "ends with byte 8, of which 3 bits count"),
        ([{"kind": "sign"}], 3, struct.pack("<f", -1) + b"\0", "negative where none may be"),
        ([HALF], 4, struct.pack("<II", 1, 1) + 2 * ONE, "indices are not in ascending order, or not below 4"),
        ([ZSTD], 2, b"", "0 bytes instead of 1 to 9"),
        ([ZSTD], 2, b"\2" + bytes(8), "begins with 2 instead of 0 or 1"),
        ([ZSTD], 2, b"\0" + bytes(7), "7 bytes instead of 8"),
        ([ZSTD], 2, b"\1" + bytes(8), "8 coded bytes for 8"),
        ([ZSTD], 9, b"\1\x28\xb5\x2f\xfd\x20\x24\1\0\0", "zstd: "),  # 36 bytes, and a last block of none
        ([ZSTD], 9, b"\1\x50\x2a\x4d\x18\x24\0\0\0" + bytes(20), "zstd: "),  # a frame to be skipped
        # of 100 ternary digits: one more non-zero level than values; a run beyond the end; a level of 2
        ([TERNARY, ELIAS], 100, b"\1" + ONE + stream_of(102), "elias: a number is above 101"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE + stream_of(3, 60, 60), "elias: a level is not within 100"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE + stream_of(2, 1, 2), "a level is beyond 1"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE + stream_of(2, 1, 2**31), "elias: a number is above 2147483647"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE + stream_of(99), "elias: 16 bits end within a code"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE, "elias: 0 bits end within a code"),
        ([TERNARY, ELIAS], 100, b"\1" + ONE + b"\0\0", "elias: 15 bits are left"),
        # 2 of 20 indices: 3 bits each behind unary ones
        ([{"kind": "topk", "ratio": 0.1}, ELIAS], 20, b"\1" + 2 * ONE + b"\x80\0", "elias: 1 indices instead of 2"),
        ([{"kind": "topk", "ratio": 0.1}, ELIAS], 20, b"\1" + 2 * ONE + b"\x31\xff", "elias: an index is not below 20"),
        ([{"kind": "topk", "ratio": 0.1}, ELIAS], 20, b"\1" + 2 * ONE + b"\x50", "elias: 8 bits end within a code"),
    ],
)
def test_a_malformed_frame_is_refused_with_the_reason(
    stages: list[dict[str, Any]], count: int, raw: bytes, reason: str
) -> None:
    with pytest.raises(WireError) as refused:
        make_codec(stages).decode(raw, ((count,),), stream())
    assert reason in str(refused.value)


@pytest.mark.parametrize("stages", CHAINS, ids=name)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_whatever_bytes_come_they_are_refused_or_finite_numbers(stages: list[dict[str, Any]], seed: int) -> None:
    raw = mutated(random.Random(seed), frame(stages))
    try:
        numbers = make_codec(stages).decode(raw, TENSORS, stream())
    except WireError as error:
        assert str(error)
    else:
        assert numbers.shape == (COUNT,) and numbers.dtype == np.float32 and np.isfinite(numbers).all()


FRAMES = """
import hashlib
from tests.edge.protocol.codecs.chains import CHAINS, frame
print(hashlib.sha256(b"".join(map(frame, CHAINS))).hexdigest())
"""


def test_another_process_makes_the_same_frames_with_fewer_instructions_of_the_processor() -> None:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3 AVX512F AVX2 FMA3"}
    words = [sys.executable, "-W", "ignore", "-c", FRAMES]
    theirs = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert theirs.stdout.strip() == hashlib.sha256(b"".join(map(frame, CHAINS))).hexdigest()
