"""Seconds of encoding and decoding: rates between sizes, chains, and devices slower than the reference host."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel.fleet.codec_costs import CodecRates, codec_seconds, reference_rates
from costmodel.fleet.devices import devices
from costmodel.fleet.inputs import FleetInputs
from tests.costmodel.worlds import fleet_of

RATES = {"pack": CodecRates((1e6, 4e6, 4e6), (2e6, 2e6, 8e6)), "squeeze": CodecRates((1e6,) * 3, (1e7,) * 3)}


def test_rates_are_log_interpolated_and_constant_beyond_the_ends() -> None:
    assert codec_seconds([("pack", 10_000)], "encode", RATES) == pytest.approx(0.01)
    assert codec_seconds([("pack", 250_000)], "encode", RATES) == pytest.approx(250_000 / 4e6)
    # Halfway in the logarithm, 50,000 bytes, the rate is that between 1e6 and 4e6: 2e6.
    assert codec_seconds([("pack", math.sqrt(10_000 * 250_000))], "encode", RATES) == pytest.approx(50_000 / 2e6)
    assert codec_seconds([("pack", 100)], "encode", RATES) == pytest.approx(100 / 1e6)
    assert codec_seconds([("pack", 1e9)], "decode", RATES) == pytest.approx(1e9 / 8e6)
    assert codec_seconds([("pack", 0)], "encode", RATES) == codec_seconds([], "encode", RATES) == 0.0


def test_the_stages_of_a_chain_take_their_time_one_after_another() -> None:
    chain = [("pack", 250_000), ("squeeze", 31_250)]
    assert codec_seconds(chain, "encode", RATES) == pytest.approx(250_000 / 4e6 + 31_250 / 1e6)
    assert codec_seconds(chain, "decode", RATES) == pytest.approx(250_000 / 2e6 + 31_250 / 1e7)


def test_a_stage_without_rates_is_refused_in_words() -> None:
    with pytest.raises(ValueError) as error:
        codec_seconds([("pak", 10)], "encode", RATES)
    assert str(error.value) == (
        "nothing is known of the time that the codec stage 'pak' takes: its row must name a stage of the same cost as "
        "costs_like, did you mean 'pack'?"
    )


def test_a_client_encodes_as_much_slower_as_its_device_and_as_it_is_itself() -> None:
    names = ["raspberry-pi-4", "x86-core"]
    assert fleet_of(2, devices=names).conditions([0, 1], 0).codec_slowdown.tolist() == [3.38, 1.0]
    spread = fleet_of(2, devices=names, compute_spread=4.0).conditions([0, 1], 0)
    full = [devices()[name].throughput("conv") for name in names]
    # A client that trains at a part of its device's speed encodes at that part, too.
    assert spread.codec_slowdown == pytest.approx(np.array([3.38, 1.0]) * full / spread.flops_per_second)
    modes = fleet_of(50, devices={"jetson-xavier-nx": 1.0}, mode_rounds=1, redraw=0.2).conditions(range(50), 0)
    assert modes.codec_slowdown == pytest.approx(1.55 * 430e9 / modes.flops_per_second)
    assert len(set(modes.codec_slowdown.tolist())) == 50


def test_a_device_with_rates_of_its_own_takes_the_time_that_these_have() -> None:
    known = reference_rates()
    thrice = {"quantize": known["quantize"].slower(3.0)}
    board = replace(devices()["raspberry-pi-4"], name="board", codecs=thrice)
    fleet = fleet_of(2, FleetInputs(devices={"board": board}), devices=["board", "raspberry-pi-4"])
    up, down = [("quantize", 250_000.0), ("zstd", 31_250.0)], [("quantize", 10_000.0)]
    assert fleet.conditions([0, 1], 0).codec_slowdown.tolist() == [3.38, 3.38]
    found = fleet.for_codecs(up, down).conditions([0, 1], 0).codec_slowdown
    quantize = codec_seconds(up[:1], "encode") + codec_seconds(down, "decode")
    zstd = codec_seconds(up[1:], "encode")
    # zstd was not measured on the board: it takes the slowdown of the row.
    assert found[0] * (quantize + zstd) == pytest.approx(3 * quantize + 3.38 * zstd)
    assert found[1] == 3.38
    assert fleet.for_codecs([], []) is fleet
