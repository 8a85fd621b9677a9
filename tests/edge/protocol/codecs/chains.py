"""Chains of stages that tests go through, frames of theirs, and what can be wrong with these."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from edge.protocol.codecs.codec import Tensors
from edge.protocol.codecs.registry import make_codec
from edge.protocol.payload import Floats
from edge.protocol.rng import keyed_generator

TENSORS: Tensors = ((9, 8), (9,), (4, 3, 2))
COUNT = 72 + 9 + 24
QUANTIZE = {"kind": "quantize", "bucket": 32}
TOPK = {"kind": "topk", "ratio": 0.3}
RANDK = {"kind": "randk", "ratio": 0.3}
POWERSGD = {"kind": "powersgd", "rank": 1}
COARSE = {"kind": "quantize", "levels": 3, "norm": "l2", "bucket": COUNT}
"""Its integers are small, so that ``elias`` shortens them"""
TERNARY = {"kind": "ternary"}
ZSTD = {"kind": "zstd"}
ELIAS = {"kind": "elias"}
CHAINS: list[list[dict[str, Any]]] = [
    [],
    [TOPK],
    [RANDK],
    [POWERSGD],
    [{"kind": "fp16"}],
    [{"kind": "bf16"}],
    [QUANTIZE],
    [{"kind": "quantize", "bits": 3}],
    [{"kind": "quantize", "bits": 11}],
    [COARSE],
    [TERNARY],
    [{"kind": "sign"}],
    [TOPK, QUANTIZE],
    [RANDK, TERNARY],
    [POWERSGD, {"kind": "fp16"}],
    [ZSTD],
    [QUANTIZE, ZSTD],
    [TOPK, ZSTD],
    [COARSE, ELIAS],
    [{"kind": "ternary", "clip": 0}, ELIAS],
    [TOPK, ELIAS],
    [TOPK, {"kind": "fp16"}, ELIAS],
    [TOPK, COARSE, ELIAS],
    [RANDK, COARSE, ELIAS],
]


def name(stages: list[dict[str, Any]]) -> str:
    """For the ids of tests."""
    return "+".join(str(stage["kind"]) for stage in stages) or "raw"


def stream(draw: int = 0) -> np.random.Generator:
    """The generator of a message, another one for each ``draw``."""
    return keyed_generator(1, "codec", draw, 3)


def vector(seed: int = 0) -> Floats:
    """Of `TENSORS`; mostly small numbers, as updates are."""
    return (np.random.default_rng(seed).normal(size=COUNT) ** 3).astype(np.float32)


def frame(stages: list[dict[str, Any]], seed: int = 0) -> bytes:
    """Of this vector."""
    return make_codec(stages).encode(vector(seed), TENSORS, stream()).frame.tobytes()


def mutated(draw: random.Random, valid: bytes) -> bytes:
    """A frame with a few bytes or bits changed, cut, repeated or added; or noise."""
    raw = bytearray(valid)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        kind, place = draw.randrange(7), draw.randrange(len(raw) + 1)
        if kind == 0:
            raw[place:] = b""
        elif kind == 1:
            raw[place:place] = draw.randbytes(draw.choice((1, 4, 100)))
        elif kind == 2:
            raw[place : place + 4] = draw.choice((b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff" * 4))
        elif kind == 3:
            raw = bytearray(draw.randbytes(len(raw)))
        elif place < len(raw):
            raw[place] = draw.randrange(256) if kind == 4 else raw[place] ^ 1 << draw.randrange(8)
    return bytes(raw)
