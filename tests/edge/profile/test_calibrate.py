"""The calibration: what a training step costs on this host, the device fitted to what was measured, and codecs."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from costmodel.fleet.codec_costs import reference_rates
from edge.models.registry import MODELS
from edge.profile.calibrate import in_passes, measure, shipped
from edge.profile.codecs import codec_rates
from edge.profile.fit import Measurement, fit
from edge.profile.memory import memory_rate
from edge.protocol.codecs.registry import CODECS
from edge.protocol.operations import FLOP_KINDS, KINDS


def took(seconds: float, batch: int = 1, *, fitted: bool = True, family: str = "conv", **counts: Any) -> Measurement:
    """A step of these operations: kind -> (per example, per step); ``conv`` stands for its class of width 16."""
    counts = {name.replace("conv", "conv.w16"): pair for name, pair in counts.items()}
    operations = np.array([counts.get(kind, (0.0, 0.0)) for kind in KINDS], np.float64)
    flops = sum(pair[0] for kind, pair in counts.items() if kind in FLOP_KINDS)
    return Measurement("net", 16, fitted, family, batch, flops, seconds, 0.0, operations)


# --- the fit ----------------------------------------------------------------------------------------------------------


def test_a_fit_finds_the_rates_that_the_steps_were_made_with() -> None:
    # 2 ms a step, 1 GFLOP/s, 4 GFLOP/s and 1 ms a call.
    measured = [
        took(
            0.002 + batch * (work / 1e9 + linear / 4e9) + calls / 1e3,
            batch,
            conv=(work, 0),
            linear=(linear, 0),
            calls=(0, calls),
        )
        for batch, work, linear, calls in [(8, 1e6, 2e6, 4), (16, 5e6, 1e6, 9), (8, 2e6, 9e6, 1), (32, 1e6, 0, 7)]
    ]
    found = fit(measured)
    assert found.step_seconds == pytest.approx(0.002)
    assert found.operations_per_second == pytest.approx({"conv.w16": 1e9, "linear": 4e9, "calls": 1e3})


def test_a_family_is_as_fast_as_the_geometric_mean_of_its_steps() -> None:
    found = fit([took(1.0, conv=(1e9, 0)), took(1.0, 100, conv=(1e9, 0)), took(2.0, conv=(8e9, 0), family="depthwise")])
    assert found.flops_per_second == pytest.approx({"conv": 10e9, "depthwise": 4e9})


# --- the measurement --------------------------------------------------------------------------------------------------


class ProcessorTime:
    """Stands where CPU time is read: each reading is ``seconds`` later than the one before."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_the_work_of_a_step_is_that_of_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.profile.calibrate.time.process_time", ProcessorTime(0.25))
    (small, large) = measure(MODELS["digits-cnn"], 16, (8, 32), range(5, 7))
    # MACs of one 8x8 image: 64*9*16 + 64*9*16*32 + 16*9*32*32 + 128*10 = 452,864, of which the first layer has 9,216.
    # Forward and weight gradients take all of them, input gradients all but the first layer's; 2 FLOPs each.
    assert (small.flops, large.flops) == (2_698_752, 2_698_752)
    assert (small.batch, large.batch, small.seconds, large.seconds) == (8, 32, 0.25, 0.25)
    assert (small.model, small.width, small.fitted, small.family) == ("digits-cnn", 16, False, "conv")


def test_the_least_of_all_passes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    quartiles = iter([[4.0] * 6, [2.0] * 6, [1.0] * 6, [3.0] * 6])
    monkeypatch.setattr("edge.profile.calibrate.step_seconds", lambda *_: next(quartiles))
    # Batches of 16 and 32 take turns: 4 and 1 s, and 2 and 3 s; the longest is 3 and 0.5 above the least.
    found = in_passes([lambda: shipped(MODELS["digits-cnn"], 4)], 2, range(3, 4))
    assert [(one.batch, one.seconds, one.spread) for one in found] == [(16, 1.0, 3.0), (32, 2.0, 0.5)]


# --- codecs -----------------------------------------------------------------------------------------------------------


def test_every_stage_is_measured_in_both_directions_at_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.profile.codecs.time.process_time", count(0.0, 0.5).__next__)
    # Two readings a call: each takes half a second.
    found = codec_rates([10_000, 250_000], range(1, 2))
    assert found == {kind: {"encode": [20_000, 500_000], "decode": [20_000, 500_000]} for kind in CODECS}
    assert set(found) == set(reference_rates())


def test_memory_moves_as_fast_as_in_the_fastest_step_of_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 9.0, 10.0, 14.0, 20.0, 22.0])
    monkeypatch.setattr("edge.profile.memory.time.process_time", times.__next__)
    # After a first step, which does not count, steps of 4 and 2 s; 28 B for each of a thousand weights.
    assert memory_rate(1000, 2) == 14_000.0
