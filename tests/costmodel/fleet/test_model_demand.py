"""What a model demands: time by the operations of its step, where the device has figures for them, and memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel.config import FleetConfig, Scale
from costmodel.fleet.devices import Device, devices
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.model_demand import Operations, rate, speed, sum_text, training_nbytes
from edge.protocol.operations import FLOP_KINDS, classes
from edge.protocol.rng import keyed_generator

RATES = {"conv.w4": 1e9, "conv.w16": 4e9, "conv.w64": 16e9, "elementwise": 2e8, "calls": 1000.0}
BOARD = replace(devices()["phone-mid"], step_seconds=0.01, operations_per_second=RATES)
STEP = Operations(
    flops=6e9,
    per_example={"conv.w4": 2e9, "conv.w16": 4e9, "elementwise": 1e8, "normalised": 5e9},
    per_step={"calls": 20.0, "elementwise": 2e7},
)


def test_a_width_class_between_two_known_ones_has_the_log_interpolated_rate() -> None:
    assert rate(RATES, "conv.w16") == 4e9
    # 8 is half-way from 4 to 16 in the logarithm, so its rate is the geometric mean of 1 and 4; 32: of 4 and 16.
    assert rate(RATES, "conv.w8") == pytest.approx(2e9)
    assert rate(RATES, "conv.w32") == pytest.approx(8e9)
    # Beyond all classes the nearest counts; a kind without any figure has no rate.
    assert [rate(RATES, name) for name in ("conv.w2", "conv.w512")] == pytest.approx([1e9, 16e9])
    assert rate(RATES, "pointwise.w8") is None


def test_a_models_speed_is_that_of_its_operations() -> None:
    # An example: 2 s at width 4, 1 s at width 16, 0.5 s element-wise, and nothing for a kind that is not FLOPs and has
    # no figure: 6 GFLOP in 3.5 s. A step: 10 ms, 20 calls of 1 ms, and 2e7 numbers in 0.1 s.
    throughput, overhead = speed(BOARD, ("resnet18", "conv"), STEP)
    assert throughput == pytest.approx(6e9 / 3.5)
    assert overhead == pytest.approx(0.01 + 0.02 + 0.1)


def test_flops_without_a_figure_run_at_the_familys_throughput() -> None:
    conv = BOARD.flops_per_second["conv"]
    throughput, _ = speed(BOARD, ("mlp", "conv"), Operations(3e9, {"linear": 1e9, "conv.w4": 2e9}, {}))
    assert throughput == pytest.approx(3e9 / (1e9 / conv + 2))


def _drawn(own: dict[str, Device]) -> Fleet:
    def streams(purpose: str, index: int, client: int) -> np.random.Generator:
        return keyed_generator(0, purpose, index, client)

    config = FleetConfig(devices=["board", "phone-mid"] * 2, networks={"lte": 1})
    return Fleet.build(4, config, streams=streams, inputs=FleetInputs(own))


def test_a_fleet_takes_a_models_speed_on_the_devices_that_know_it() -> None:
    fleet = _drawn({"board": replace(BOARD, name="board")})
    found = fleet.for_model(("resnet18", "conv"), STEP)
    plain = devices()["phone-mid"]
    conditions = found.conditions(range(4), 0)
    assert conditions.flops_per_second.tolist() == pytest.approx([6e9 / 3.5, plain.throughput("conv")] * 2)
    assert conditions.step_seconds.tolist() == pytest.approx([0.13, plain.step_seconds] * 2)
    slow = fleet.at_scale(Scale(devices=0.5)).for_model(("resnet18", "conv"), STEP).conditions(range(4), 0)
    assert slow.flops_per_second.tolist() == (conditions.flops_per_second / 2).tolist()
    assert slow.step_seconds.tolist() == (conditions.step_seconds * 2).tolist()


def test_a_fleet_without_such_devices_is_the_same_fleet() -> None:
    fleet = _drawn({"board": replace(BOARD, name="board", operations_per_second={})})
    assert fleet.for_model(("resnet18", "conv"), STEP) is fleet


def test_what_an_optimizer_moves_beyond_sgd_takes_each_step_longer() -> None:
    # 16 bytes for each of 1e8 weights, at 5 GB/s.
    moving = replace(STEP, traffic_nbytes=1.6e9)
    assert speed(BOARD, ("resnet18", "conv"), moving)[1] == pytest.approx(0.01 + 0.02 + 0.1 + 0.32)
    plain = devices()["phone-mid"]
    assert speed(plain, ("resnet18", "conv"), moving) == (plain.throughput("conv"), plain.step_seconds + 0.32)
    fleet = _drawn({"board": replace(BOARD, name="board", operations_per_second={}, memory_bytes_per_second=1e9)})
    found = fleet.for_model(("resnet18", "conv"), moving).conditions(range(4), 0)
    assert found.step_seconds.tolist() == pytest.approx([0.01 + 1.6, plain.step_seconds + 0.32] * 2)
    assert found.flops_per_second.tolist() == fleet.conditions(range(4), 0).flops_per_second.tolist()


def test_the_classes_of_a_convolution_share_its_flops() -> None:
    assert dict(classes("conv", 16, 16)) == {"conv.w16": 1.0}
    # The harmonic mean of 1 and 16 is 1.9, below all classes; of 512 and 512 above all.
    assert dict(classes("conv", 1, 16)) == {"conv.w2": 1.0}
    assert dict(classes("pointwise", 512, 512)) == {"pointwise.w128": 1.0}
    # 2 * 16 * 48 / 64 = 24, which is log2(24 / 16) = 0.585 of the way from 16 to 32.
    assert dict(classes("conv", 48, 16)) == pytest.approx({"conv.w16": 0.415, "conv.w32": 0.585}, abs=1e-3)
    assert {name for width in (3, 5, 200) for name, _ in classes("conv", width, width)} <= set(FLOP_KINDS)


# Memory is a sum that anyone can redo, and the limit a share of what the device has.

RESNET18 = 11_220_132
ACTIVATIONS = 1_175_120


def test_two_copies_and_the_gradients_and_a_batch_of_activations() -> None:
    assert training_nbytes(parameters=100, activations=7, batch=5) == 4 * (200 + 100 + 35)
    # 3 x 44,880,528 bytes of model, 50 x 4,700,480 bytes of activations.
    assert training_nbytes(RESNET18, ACTIVATIONS, 50) == 134_641_584 + 235_024_000
    # The residual of a codec is one more copy.
    assert training_nbytes(parameters=100, activations=7, batch=5, kept=100) == 4 * (200 + 100 + 35 + 100)
    # m and v of AdamW are two.
    assert training_nbytes(parameters=100, activations=7, batch=5, state=200) == 4 * (200 + 100 + 35 + 200)
    assert training_nbytes(RESNET18, ACTIVATIONS, 0) == 134_641_584
    assert training_nbytes(parameters=0, activations=0.3, batch=1) == 2  # a part of a byte takes a whole one
    for activations in (-1.0, math.nan, math.inf):
        with pytest.raises(AssertionError):
            training_nbytes(1, activations, 1)


def test_the_sum_is_shown_with_its_verdict() -> None:
    assert sum_text(RESNET18, 1_234_567, 50, 256_000_000) == (
        "4 B x (2 x 11,220,132 parameters + 11,220,132 gradients + 50 x 1,234,567 activations) = 382 MB,"
        " more than 0.7 of 256 MB"
    )
    assert sum_text(100, 7.5, 4, 8e9) == (
        "4 B x (2 x 100 parameters + 100 gradients + 4 x 7.5 activations) = 1.32 kB, within 0.7 of 8 GB"
    )
    assert sum_text(100, 7.5, 4, 8e9, 200) == (
        "4 B x (2 x 100 parameters + 100 gradients + 4 x 7.5 activations + 200 of the optimizer) = 2.12 kB, within 0.7 "
        "of 8 GB"
    )
    assert sum_text(100, 7.5, 4, 8e9, kept=120) == (
        "4 B x (2 x 100 parameters + 100 gradients + 4 x 7.5 activations + 120 kept) = 1.8 kB, within 0.7 of 8 GB"
    )
