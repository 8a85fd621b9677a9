"""The calibration: what a training step costs on this host, and the line through what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from edge.models.registry import MODELS
from edge.profile.calibrate import (
    Measurement,
    fit,
    fitting,
    image_models,
    measure,
    measure_all,
    random_images,
    result,
    step_seconds,
)
from edge.protocol.config import CPU, ModelConfig, TrainConfig
from edge.training.block_model import BlockModel, build


def took(model: str, flops: float, seconds: float, *, family: str = "conv", own_width: bool = True) -> Measurement:
    return Measurement(model, None, own_width, family, 8, flops, seconds)


# --- the fit ----------------------------------------------------------------------------------------------------------


def test_a_fit_finds_the_line_that_the_measurements_lie_on() -> None:
    lenet = [took("lenet", flops, 0.002 + flops / 1e9) for flops in (1e6, 5e6, 80e6)]
    mlp = [took("mlp", flops, 0.002 + flops / 4e9, family="dense") for flops in (2e6, 9e6)]
    found = fit([*lenet, *mlp])
    assert found.step_seconds == pytest.approx(0.002)
    assert found.flops_per_second == pytest.approx({"conv": 1e9, "dense": 4e9, "lenet": 1e9, "mlp": 4e9})
    assert found.seconds(took("mlp", 8e6, 1.0)) == pytest.approx(0.004)


def test_a_family_is_as_fast_as_the_geometric_mean_of_its_models() -> None:
    # Three steps of the slow one, two of the fast one: the mean of 1 and 100 GFLOP/s is 10 all the same.
    slow = [took("lenet", flops, 0.002 + flops / 1e9) for flops in (1e6, 5e6, 80e6)]
    fast = [took("resnet", flops, 0.002 + flops / 100e9) for flops in (2e6, 9e6)]
    found = fit([*slow, *fast])
    assert found.step_seconds == pytest.approx(0.002)
    assert found.flops_per_second == pytest.approx({"conv": 10e9, "lenet": 1e9, "resnet": 100e9})


def test_a_model_named_as_a_family_would_take_its_place() -> None:
    assert not MODELS.keys() & {row.family for row in MODELS.values()}
    with pytest.raises(AssertionError, match="a model named as a family would take its place"):
        fit([took("conv", 1e9, 1.0)])


def test_an_overhead_below_nothing_is_none() -> None:
    # 1 s and 4 s for 1 and 2 GFLOP: the line through them starts at -2 s. Without an overhead, 1 = cost * (1, 0.5)
    # GFLOP/s is best met by a cost of (1 + 0.5) / (1 + 0.25) = 1.2 s per GFLOP.
    found = fit([took("lenet", 1e9, 1.0), took("lenet", 2e9, 4.0)])
    assert found.step_seconds == 0.0
    assert found.flops_per_second == pytest.approx({"conv": 1e9 / 1.2, "lenet": 1e9 / 1.2})


def test_an_overhead_that_cannot_be_told_from_the_work_is_none() -> None:
    found = fit([took("lenet", 1e9, 0.5), took("mlp", 3e9, 1.0, family="dense")])
    assert found.step_seconds == 0.0
    assert found.flops_per_second == pytest.approx({"conv": 2e9, "dense": 3e9, "lenet": 2e9, "mlp": 3e9})


def test_a_fit_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"^there is nothing to fit: no step was measured$"):
        fit([])
    level = [took("mlp", 1e9, 0.5), took("mlp", 2e9, 0.5)]
    with pytest.raises(ValueError, match=r"^the steps of model 'mlp' take no longer than the overhead of any step$"):
        fit([took("lenet", 1e9, 2.0), took("lenet", 2e9, 3.0), *level])


POINT = st.tuples(st.sampled_from(["lenet", "mlp"]), st.floats(0.1, 10.0), st.floats(1.0, 3.0))


@given(st.lists(POINT, min_size=4, max_size=12))
def test_no_other_line_has_smaller_squared_relative_errors(points: list[tuple[str, float, float]]) -> None:
    measured = [took(model, gflop * 1e9, 0.01 + gflop * slowness) for model, gflop, slowness in points]
    models = list(dict.fromkeys(one.model for one in measured))
    seconds = np.array([one.seconds for one in measured])
    longest = [max(one.seconds for one in measured if one.model == model) for model in models]
    assume(min(longest) > 1.001 * seconds.min())  # else the overhead may be all of a model's steps, which is refused
    found = fit(measured)
    columns = [[1.0, *(one.flops / 1e9 * (one.model == model) for model in models)] for one in measured]
    relative = np.array(columns) / seconds[:, None]
    bounds = ([0.0] * (1 + len(models)), [seconds.min(), *[np.inf] * len(models)])
    best = lsq_linear(relative, np.ones(len(seconds)), bounds, tol=1e-12)
    ours = [found.step_seconds, *(1e9 / found.flops_per_second[model] for model in models)]
    assert np.sum((relative @ ours - 1) ** 2) <= 2 * best.cost + 1e-9


def test_the_result_holds_each_measurement_beside_what_the_fit_says_of_it() -> None:
    # The best cost is that of a test above, 1.2 s per GFLOP, so 1 GFLOP is said to take 1.2 s and 2 GFLOP 2.4 s. The
    # narrower net, which needs 4 s for 1 GFLOP, has no part in the fit: 1.2 s are 0.7 too little.
    narrow = took("lenet", 1e9, 4.0, own_width=False)
    found = result([narrow, took("lenet", 1e9, 1.0), took("lenet", 2e9, 4.0)])
    assert found["torch"] == torch.__version__
    assert [row["predicted_seconds"] for row in found["measurements"]] == pytest.approx([1.2, 1.2, 2.4])
    assert [row["relative_error"] for row in found["measurements"]] == pytest.approx([-0.7, 0.2, -0.4])


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
    measured = list(measure(MODELS["digits-cnn"], 16, (8, 32), range(5, 7)))
    # MACs of one 8x8 image: 64*9*16 + 64*9*16*32 + 16*9*32*32 + 128*10 = 452,864, of which the first layer has 9,216.
    # Forward and weight gradients take all of them, input gradients all but the first layer's; 2 FLOPs each.
    flops = 2 * (452_864 + 452_864 + 443_648)
    assert flops == 2_698_752
    assert measured == [
        Measurement("digits-cnn", 16, True, "conv", 8, 8 * flops, 0.25),
        Measurement("digits-cnn", 16, True, "conv", 32, 32 * flops, 0.25),
    ]


def test_steps_at_another_width_than_the_models_own_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.profile.calibrate.time.process_time", ProcessorTime(0.25))
    (narrow,) = measure(MODELS["digits-cnn"], 4, (8,), range(5, 6))
    (only,) = measure(MODELS["cnn"], None, (8,), range(5, 6))
    assert (narrow.width, narrow.own_width) == (4, False)
    assert (only.width, only.own_width) == (None, True)


def test_every_model_is_measured_at_a_narrow_width_that_it_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.profile.calibrate.measure", lambda row, width, batches: [(row, width)])
    asked: list[Any] = list(measure_all())
    for row, width in asked:
        row.check_width(width)
    widths = {name: [width for row, width in asked if row.name == name] for name in MODELS}
    assert (widths["cnn"], widths["digits-cnn"]) == ([None], [16])
    assert (widths["resnet18"], widths["mobilenetv2"]) == ([16, 64], [16, 32])
    assert (widths["shufflenet"], widths["squeezenet"]) == ([12, 24], [12, 96])


@pytest.mark.parametrize(
    ("each", "steps"),
    [
        pytest.param(1.0, 3 + 5, id="slow steps: no more than the fewest, after three of warm-up"),
        pytest.param(0.0625, 3 + 8, id="until half a second is measured"),
        pytest.param(0.0, 20, id="quick steps: all there are"),
    ],
)
def test_steps_are_taken_until_enough_is_known(monkeypatch: pytest.MonkeyPatch, each: float, steps: int) -> None:
    monkeypatch.setattr("edge.profile.calibrate.time.process_time", ProcessorTime(each))
    row = MODELS["digits-cnn"]
    images = fitting(row)
    net = BlockModel(lambda: build(ModelConfig("digits-cnn", 4), images.classes, images.shape[0]), torch.device(CPU))
    before = net.flat.clone()
    taken = step_seconds(net, random_images(images, "contiguous"), TrainConfig(batch=4, local_steps=20), 5)
    assert taken == [each] * steps
    assert not torch.equal(net.flat, before)


@pytest.mark.parametrize("name", [row.name for row in image_models()])
def test_every_model_finds_images_that_it_is_made_for(name: str) -> None:
    row = MODELS[name]
    images = fitting(row)
    x, y = random_images(images, row.on(CPU).memory_format).fetch(np.arange(4))
    assert x.shape == (4, images.shape[0], *row.shape)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert y.shape == (4,)
    assert int(y.max()) < images.classes
