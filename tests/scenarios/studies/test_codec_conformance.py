"""``fedbr check --plugin`` of a codec: shipped stages keep the contract, and each way to break it is found."""

from __future__ import annotations

import numpy as np
import pytest

from edge.protocol.codecs.codec import CodecRow, Frame, NumberFormat
from edge.protocol.codecs.registry import CODECS, smallest_chain
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions
from scenarios.studies.codec_conformance import codec_findings


class Halved(NumberFormat):
    """Half of the upper two bytes of a number: an honest format, which each class below breaks in one place."""

    is_unbiased = False

    def nbytes(self, count: int) -> int:
        return 2 * count

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        return (numbers / 2).view("<u2")[1::2].copy().view(np.uint8)

    def unpack(self, frame: Frame, count: int) -> Floats:
        bits = np.zeros((count, 2), "<u2")
        bits[:, 1] = frame.view("<u2")
        numbers: Floats = np.nan_to_num(bits.view("<f4")[:, 0], nan=0, posinf=0, neginf=0)
        return numbers


class Unlike(Halved):
    draws = np.random.default_rng(0)

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        return super().pack(numbers * np.float32(self.draws.random()), rng)


class Longer(Halved):
    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        return np.concatenate((super().pack(numbers, rng), np.zeros(1, np.uint8)))


class Trusting(Halved):
    def unpack(self, frame: Frame, count: int) -> Floats:
        bits = np.zeros((count, 2), "<u2")
        bits[:, 1] = frame.view("<u2")
        return bits.view("<f4")[:, 0].copy()


class Dishonest(Halved):
    is_unbiased = True


ABOUT = ("one", "a row", "a test", PluginOptions)
HALVED, UNLIKE, LONGER, TRUSTING, DISHONEST = (
    CodecRow(*ABOUT, stage, costs_like="fp16") for stage in (Halved, Unlike, Longer, Trusting, Dishonest)
)


@pytest.mark.parametrize("name", [*CODECS, f"{__name__}:HALVED"])
def test_shipped_stages_keep_the_contract(name: str) -> None:
    lines = list(codec_findings(tuple(smallest_chain(name))))
    assert [(line, holds) for line, holds, _ in lines] == [("frames", True), ("malformed", True), ("mean", True)]


@pytest.mark.parametrize(
    ("row", "line", "problem"),
    [
        ("UNLIKE", "frames", "1 numbers, the largest 4.13e-05: two frames for the same draws"),
        ("LONGER", "frames", "AssertionError: (3, 2)"),
        ("TRUSTING", "malformed", "a broken frame gives numbers that are not finite, or too few"),
        ("DISHONEST", "mean", "the mean of 300 draws is not what was sent: it differs by 0.5 of its norm"),
    ],
)
def test_what_a_stage_breaks_is_named_and_without_frames_nothing_else_is_tried(
    row: str, line: str, problem: str
) -> None:
    lines = list(codec_findings(({"kind": f"{__name__}:{row}"},)))
    ((name, _, detail),) = [found for found in lines if not found[1]]
    assert (name, len(lines)) == (line, 1 if line == "frames" else 3)
    assert detail.replace(__file__.partition("tests/")[0], "").startswith(problem)
