"""Client sides of corrections: what they add to gradients, and in which order it lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.methods.feddyn import KEPT, FedDynCorrection
from edge.methods.scaffold import ScaffoldCorrection
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.options.feddyn import FedDynOptions
from edge.protocol.options.scaffold import ScaffoldOptions
from edge.protocol.payload import CONTROL, MODEL, Payload, Vector
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import GradientCorrection
from edge.training.sgd import Sgd
from tests.toy import CPU, batch, shifted, tower, visit, whole

FORMATS = [torch.contiguous_format, torch.channels_last]
TRAIN = TrainConfig(lr=0.1, momentum=0.5, weight_decay=0.01, clip=0.5)


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def convolutions(memory_format: torch.memory_format) -> BlockModel:
    def make() -> list[Block]:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 2), nn.Flatten())
        return [("body", body), ("head", nn.Linear(8, 3))]

    return BlockModel(make, CPU, memory_format)


def trained(
    net: BlockModel, correction: GradientCorrection | None, steps: int, down: Payload, state: Payload
) -> tuple[Payload, Payload]:
    """A visit from where the net stands; what goes up and what is kept beside the model."""
    about = replace(visit(net), step_sum=TRAIN.step_sum(steps))
    corrections = [] if correction is None else [correction]
    for one in corrections:
        one.begin(net, down, state, about)
    step = Sgd(net, TRAIN, 0.1, [one.correct for one in corrections], [one.correct_unclipped for one in corrections])
    for seed in range(steps):
        step(cross_entropy, *batch(seed=seed))
    return ({}, {}) if correction is None else correction.end(net, about)[:2]


def zeros(net: BlockModel) -> Payload:
    net.scratch("zero").zero_()
    return {CONTROL: net.views(net.layout.names, of=net.scratch("zero"))}


CORRECTIONS: list[tuple[type[GradientCorrection], Options]] = [
    (ScaffoldCorrection, ScaffoldOptions()),
    (FedDynCorrection, FedDynOptions()),
]


@pytest.mark.parametrize(("correction", "options"), CORRECTIONS)
def test_the_first_step_of_a_new_client_is_plain_to_the_bit(
    correction: type[GradientCorrection], options: Options
) -> None:
    plain, corrected = tower(), tower()
    # SCAFFOLD adds nothing without controls, however many steps it makes.
    steps = 4 if correction is ScaffoldCorrection else 1
    trained(plain, None, steps, {}, {})
    trained(corrected, correction(options), steps, zeros(corrected), {})
    assert torch.equal(plain.flat, corrected.flat) and torch.equal(plain.grad, corrected.grad)


def test_scaffold_adds_the_difference_of_controls() -> None:
    net = tower()
    common, own = whole(net)[MODEL], {key: vector for key, vector in whole(tower(seed=1))[MODEL].items() if key != "b2"}
    correction = ScaffoldCorrection(ScaffoldOptions(lean=False))
    correction.begin(net, {CONTROL: common}, {CONTROL: own}, visit(net))
    net.grad.fill_(1.0)
    correction.correct(net)
    other = tower(seed=1)
    other.flat[other.slices["b2"]] = 0.0  # b2 had no control yet
    assert torch.allclose(net.grad, 1 + net.flat - other.flat, atol=1e-6)


def test_scaffold_sends_what_it_keeps_less_what_it_had() -> None:
    net = tower()
    _, first = trained(net, ScaffoldCorrection(ScaffoldOptions(lean=False)), 3, zeros(net), {})
    kept = {CONTROL: {key: Vector(vector.data.copy()) for key, vector in first[CONTROL].items()}}
    up, second = trained(net, ScaffoldCorrection(ScaffoldOptions(lean=False)), 3, zeros(net), kept)
    for key in net.layout.names:
        change = second[CONTROL][key].data - kept[CONTROL][key].data
        assert np.array_equal(up[CONTROL][key].data, change)
        assert np.abs(change).max() > 1e-3
    assert trained(net, ScaffoldCorrection(ScaffoldOptions(lean=True)), 3, zeros(net), kept)[0] == {}


def test_feddyn_adds_a_pull_back_less_what_it_keeps() -> None:
    net = tower()
    correction = FedDynCorrection(FedDynOptions(coefficient=0.5, clipped="everything"))
    correction.begin(net, {}, {KEPT: whole(net)[MODEL]}, visit(net))
    start = net.flat.clone()
    net.flat.add_(2.0)
    net.grad.fill_(1.0)
    correction.correct(net)
    correction.correct_unclipped(net)
    assert torch.allclose(net.grad, 1 - start + 1.0, atol=1e-6)  # 0.5 · 2 = 1


def test_feddyns_two_forms_add_the_same() -> None:
    grads = []
    for clipped in ("everything", "ce+linear"):
        net = tower()
        correction = FedDynCorrection(FedDynOptions(coefficient=0.5, clipped=clipped))
        correction.begin(net, {}, {KEPT: whole(tower(seed=1))[MODEL]}, visit(net))
        shifted(net)
        net.grad.fill_(1.0)
        correction.correct(net)
        correction.correct_unclipped(net)
        grads.append(net.grad.clone())
    assert torch.allclose(grads[0], grads[1], atol=1e-6)


# --- memory formats and buffers ---------------------------------------------------------------------------------------


def test_a_vector_like_the_model_takes_and_gives_numbers_in_torchs_order() -> None:
    nets = [convolutions(memory_format) for memory_format in FORMATS]
    numbers = {key: Vector(np.arange(nets[0].layout.sizes[key], dtype=np.float32)) for key in ("body", "head")}
    for net in nets:
        vector = net.scratch("mine")
        net.load(numbers, into=vector)
        for key, sent in net.views(("body", "head"), of=vector).items():
            assert np.array_equal(sent.data, numbers[key].data)
        # It lies as the model itself would, beside which it is computed with.
        net.load(numbers)
        assert torch.equal(vector, net.flat)
    assert not torch.equal(nets[0].flat, nets[1].flat)


def test_what_is_read_of_a_vector_outlives_what_is_read_of_the_model() -> None:
    net = convolutions(torch.channels_last)
    vector = net.scratch("mine").fill_(3.0)
    sent = net.views(["body"], of=vector)["body"]
    net.views(["body"])
    assert set(sent.data.tolist()) == {3.0}


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("correction", "options"), CORRECTIONS)
def test_corrections_leave_buffers_alone(
    correction: type[GradientCorrection], options: Options, memory_format: torch.memory_format
) -> None:
    net = convolutions(memory_format)
    about = replace(visit(net), step_sum=1.0)
    one = correction(options)
    one.begin(net, zeros(net), {}, about)
    before = net.buffers.clone()
    shifted(net)
    one.correct(net)
    up, kept, _ = one.end(net, about)
    assert torch.equal(net.buffers, before)
    assert all(list(named) == ["body", "head"] for payload in (up, kept) for named in payload.values())
