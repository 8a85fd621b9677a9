"""The time of encoding and decoding, as calibration measures it."""

from __future__ import annotations

from itertools import count

import pytest

from costmodel.fleet.codec_costs import reference_rates
from edge.profile.codecs import call_seconds, codec_rates, encode_and_decode
from edge.protocol.codecs.registry import CODECS


@pytest.mark.parametrize(
    ("each", "calls"),
    [
        pytest.param(1.0, 3, id="slow calls: the fewest"),
        pytest.param(0.03125, 4, id="until a tenth of a second is measured"),
        pytest.param(0.0, 8, id="quick calls: all there are"),
    ],
)
def test_calls_are_timed_until_enough_is_known(monkeypatch: pytest.MonkeyPatch, each: float, calls: int) -> None:
    monkeypatch.setattr("edge.profile.codecs.time.process_time", count(0.0, each).__next__)
    called: list[None] = []
    assert call_seconds(lambda: called.append(None), range(3, 9)) == each
    assert len(called) == calls


def test_every_stage_is_measured_in_both_directions_at_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.profile.codecs.time.process_time", count(0.0, 0.5).__next__)
    # Two readings a call: each takes half a second.
    found = codec_rates([10_000, 250_000], range(1, 2))
    assert found == {kind: {"encode": [20_000, 500_000], "decode": [20_000, 500_000]} for kind in CODECS}
    assert set(found) == set(reference_rates())


@pytest.mark.parametrize("kind", CODECS)
def test_what_is_measured_is_that_stage(kind: str) -> None:
    encode, decode = encode_and_decode(kind, 50)
    coded, plain = encode(), decode()
    lengths = {
        # 25 of 2500 numbers with their indices; P and Q of 50 x 2; 5 buckets; 5 digits a byte; 8 signs a byte.
        "topk": 25 * 8,
        "randk": 25 * 4,
        "powersgd": 4 * 2 * 100,
        "fp16": 5000,
        "bf16": 5000,
        "quantize": 5 * 4 + 1250,
        "ternary": 4 + 500,
        "sign": 4 + 313,
    }
    if kind in lengths:
        assert (coded.frame.size, plain.shape) == (lengths[kind], (2500,))
    else:  # zstd has 10,000 bytes of levels of 4 bits, and elias 2500 levels: coding these does not shorten them
        assert plain.size == {"zstd": 10_000, "elias": 1270}[kind]
        assert coded.size not in (0, plain.size)
