"""DepthFL: parts of the first blocks, the loss of their exits by hand, means over those who hold a block, ensembles."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coordinator.rounds.policy import RoundPolicy
from edge.methods.depthfl import DepthFLUpdate, mutual_divergence
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.options.depthfl import DepthFLOptions, ramped
from edge.protocol.payload import MODEL
from edge.protocol.submodels import SliceMap
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build, method_blocks
from edge.training.exits import depth_axes, exit_logits, shortened, with_exits
from tests.crossed import every
from tests.toy import CPU, DIGITS_CNN, Run, batch, play, tower_blocks, visit, whole

LINEAR = DepthFLOptions(exits="linear")
SIZES = {"conv1": 40 + 50, "conv2": 296 + 90, "conv3": 584, "head": 330}
"""Of DIGITS_CNN, of 4, 8 and 8 channels of 8x8, 4x4 and 2x2 places, with linear exits of ten classes"""
DEPTHS: dict[str, Any] = {"rate": "client", "rates": (1.0, 0.66, 0.33)}
"""Of a model with three depths: ⌈3r⌉ of them"""
HOW: dict[str, Any] = {
    "train": TrainConfig(lr=0.1, batch=16, local_steps=2),
    "partition": PartitionConfig("iid"),
    "clients": 3,
    "rounds": 1,
    "exits": "linear",
    "submodel": DEPTHS,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One round of three clients, each of another depth."""
    return play(tmp_path_factory.mktemp("run"), "depthfl", **HOW)


# --- what a client holds ----------------------------------------------------------------------------------------------


def test_these_alone_travel_and_are_charged(run: Run) -> None:
    """The run itself ends if a worker counts other FLOPs than were foreseen."""
    by_size = {tuple(sorted(reply.payload[MODEL])): reply.client for reply in run.workers.updates}
    whole_model, two, one = (by_size[held] for held in (tuple(sorted(SIZES)), ("conv1", "conv2"), ("conv1",)))
    sent = "SELECT SUM(nbytes) FROM transfers WHERE slot = 'model' AND direction = ? AND client = ?"
    for client, numbers in ((whole_model, 1390), (two, 476), (one, 90)):
        for direction in ("down", "up"):
            query = sent.replace("?", f"'{direction}'", 1).replace("?", str(client))
            assert run.rows(query) == [(4 * numbers,)]
        real = run.workers.nbytes[0, client]
        assert run.rows(f"SELECT bytes_down, bytes_up FROM visits WHERE client = {client}") == [real]
    step = {one: 2 * 4688 + 80, two: 2 * (4688 + 37024) + 80 + 160 + 36864}
    step[whole_model] = step[two] + 3 * 18432 + 3 * 640
    assert dict(run.rows("SELECT client, flops FROM visits")) == {client: 32 * each for client, each in step.items()}


def test_a_block_becomes_the_mean_over_those_who_hold_it(run: Run) -> None:
    uploads = [reply.payload[MODEL] for reply in run.workers.updates]
    for key, held in (("conv1", 3), ("conv2", 2), ("conv3", 1), ("head", 1)):
        vectors = [upload[key].data for upload in uploads if key in upload]
        assert len(vectors) == held
        mean = np.mean([vector.astype(np.float64) for vector in vectors], axis=0).astype(np.float32)
        assert np.allclose(run.federation.server.model[key].data, mean, rtol=1e-6, atol=1e-8)


def test_a_block_that_nobody_holds_stays_as_it_is(tmp_path: Path) -> None:
    """Under a server optimizer with momentum, and with BatchNorm, whose statistics are then as initialised."""
    model = replace(DIGITS_CNN, norm="batch")
    how = {**HOW, "rounds": 2, "model": model, "server": "fedavgm", "submodel": {"rate": 0.5}, "exits": "convolutional"}
    run = play(tmp_path, "depthfl", **how)
    initial, now = run.federation.server.setup.initial[MODEL], run.federation.server.model
    stays = {key for key, vector in now.items() if np.array_equal(vector.data, initial[key].data)}
    assert stays == {"conv3", "conv3.buffers", "head"}


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_divergence_of_two_exits_by_hand() -> None:
    # Probabilities (1/4, 3/4) and (1/2, 1/2).
    logits = [torch.tensor([[0.0, math.log(3)]], requires_grad=True), torch.zeros(1, 2, requires_grad=True)]
    from_second = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    from_first = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    value = mutual_divergence(logits)
    assert float(value.detach()) == pytest.approx(from_second + from_first)
    torch.autograd.backward(value)
    # A teacher is fixed: the gradient of KL(σ(z_j) ‖ σ(z_i)) is that for z_i alone, σ(z_i) - σ(z_j).
    assert [own.grad.tolist()[0] for own in logits if own.grad is not None] == [
        pytest.approx([-0.25, 0.25]),
        pytest.approx([0.25, -0.25]),
    ]


def test_divergences_gain_weight() -> None:
    assert [ramped(t, 300) for t in (0, 150, 300, 301)] == pytest.approx([math.exp(-5), math.exp(-1.25), 1, 1])
    assert ramped(0, 0) == 1


def exits_of_a_tower() -> list[Block]:
    """Linear blocks of 5, 7, 6, 4 and 3 numbers: exits of 7 and 6, and the last."""
    return with_exits(tower_blocks(), LINEAR, 3, None)


def test_the_loss_adds_the_exits_up() -> None:
    net, (x, y) = BlockModel(exits_of_a_tower, CPU), batch()
    update = DepthFLUpdate(DepthFLOptions(ramp=4))
    update.begin(net, whole(net), {}, replace(visit(net), round=2))
    loss = float(update.loss(net, x, y).detach())
    logits = [own.detach() for own in exit_logits(net)]
    cross = [float(F.cross_entropy(own, y)) for own in logits]
    assert len(cross) == 3
    assert loss == pytest.approx(sum(cross) + math.exp(-5 / 4) * float(mutual_divergence(logits)), rel=1e-6)
    assert [float(each) for each in update.losses] == pytest.approx([sum(cross) / 3])
    alone = DepthFLUpdate(DepthFLOptions(distil=False))
    alone.begin(net, whole(net), {}, visit(net))
    assert float(alone.loss(net, x, y).detach()) == pytest.approx(sum(cross), rel=1e-6)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_a_model_of_any_depth_gives_the_mean_of_its_exits() -> None:
    net, (x, _) = BlockModel(exits_of_a_tower, CPU), batch()
    own = net.run(x), exit_logits(net)
    for count, exits in ((1, 1), (2, 2), (4, 3)):
        part = BlockModel(partial(shortened, exits_of_a_tower(), count), CPU)
        part.load(SliceMap(depth_axes(net), exits / 3).taken(net.dump(net.layout.sizes)))
        assert torch.allclose(part.run(x), torch.stack(own[1][:exits]).mean(0))
    assert torch.allclose(own[0], torch.stack(own[1]).mean(0))


def test_each_depth_and_each_exit_is_evaluated(run: Run) -> None:
    query = "SELECT exit, rate, metric, value FROM evaluations WHERE round = 0"
    values = {tuple(of): value for *of, value in run.rows(query)}
    groups = ((1, None), (2, None), (3, None), (None, 0.66), (None, 0.33))
    assert values.keys() == {(*group, name) for group in groups for name in ("accuracy", "loss")}
    assert values[None, 0.33, "loss"] == values[1, None, "loss"]  # the only exit of its part
    # The cross-entropy is convex: that of the mean logits is at most the mean of theirs.
    losses = [values[number, None, "loss"] for number in (1, 2, 3)]
    assert run.rows("SELECT test_loss FROM rounds")[0][0] < np.mean(losses)


# --- joins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how"),
    every(
        2,
        [
            ("depthfl+fedprox", {"mu": 0.1}),
            ("depthfl", {"rules": RoundPolicy("fedbuff", buffer=2)}),
            ("depthfl", {"codec": {"up": {"kind": "quantize", "bits": 4}, "down": {"kind": "fp16"}, "min_values": 1}}),
            ("depthfl", {"exits": "convolutional", "model": ModelConfig("digits-cnn", width=4, norm="batch")}),
        ],
    ),
    ids=["fedprox", "fedbuff", "codec", "batch norm"],
)
def test_it_joins_what_works_block_by_block(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    run = play(tmp_path, name, **{**HOW, "rounds": 3, **how})
    assert run.stopped_by == "rounds" and np.isfinite(run.model).all()
    assert {key for key, vector in run.federation.server.model.items() if vector.data.size} >= set(SIZES)
    assert len(run.rows("SELECT DISTINCT bytes_up FROM visits WHERE bytes_up > 0")) == 3


# --- models -----------------------------------------------------------------------------------------------------------


def added(name: str, classes: int, options: DepthFLOptions, inputs: int = 3) -> dict[str, int]:
    """Block -> numbers of its exit."""

    def sizes(blocks: list[Block]) -> dict[str, int]:
        return {block: sum(parameter.numel() for parameter in module.parameters()) for block, module in blocks}

    config = ModelConfig(name)
    with torch.device("meta"):
        before = sizes(build(config, classes, inputs))
        after = sizes(method_blocks(config, classes, inputs, ("edge.training.exits:with_exits", options)))
    return {block: after[block] - size for block, size in before.items() if after[block] != size}


def test_the_exits_of_shipped_models() -> None:
    assert added("resnet18", 100, LINEAR) == {"stage1": 6_500, "stage2": 12_900, "stage3": 25_700}
    assert added("resnet56", 100, LINEAR) == {"stage1": 6_500, "stage2": 12_900}
    # The second convolution's features are flat, as those of the linear layers.
    assert added("cnn", 10, LINEAR) == {"conv1": 70, "conv2": 4_010, "fc1": 1_210}
    assert added("har-cnn", 6, LINEAR, 6) == {"conv1": 198, "conv2": 390}
    assert added("mlp", 2, LINEAR, 30) == {"fc1": 130}


def test_convolutional_exits_shrink_maps_once_for_each_later_block() -> None:
    # c to k channels: kernels of 9 weights for each of c channels, c x c and 2c of the norm; 9c, c x k and 2k.
    def halved(c: int, k: int) -> int:
        return 9 * c + c * c + 2 * c + 9 * c + c * k + 2 * k

    assert halved(64, 128) == 13_824
    last = halved(256, 512) + 513 * 100
    expected = {"stage1": 13_824 + halved(128, 256) + last, "stage2": halved(128, 256) + last, "stage3": last}
    assert added("resnet18", 100, DepthFLOptions()) == expected
    assert added("cnn", 10, DepthFLOptions()) == {"conv1": halved(6, 16) + 170, "conv2": 4_010, "fc1": 1_210}
    block = dict(with_exits(build(ModelConfig("har-cnn"), 6, 6), DepthFLOptions(), 6, None))["conv1"]
    block(torch.zeros(2, 6, 128))
    assert block.logits.shape == (2, 6)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        (lambda: build(ModelConfig("squeezenet"), 10, 3), "the last block, head, must begin with a linear layer"),
        (lambda: tower_blocks((5, 4, 3)), "its blocks b1, b2 have one depth"),
        (lambda: [("b0", nn.Linear(5, 4)), ("b1", nn.LSTM(4, 4)), *tower_blocks((5, 4))], "LSTM follows block b0"),
    ],
    ids=["squeezenet", "one depth", "other layers"],
)
def test_models_without_exits_are_refused(blocks: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_exits(blocks(), LINEAR, 10, None)
