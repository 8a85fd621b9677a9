"""Vectors layer by layer, where a method's spec asks for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from coordinator.methods.spec import Traffic
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.payload import BlockShape, LayerShape, Layout
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from tests.toy import objective, play

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)


def blocks() -> list[Block]:
    body = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Sequential(nn.Conv2d(2, 2, 1, bias=False))
    )
    return [("body", body), ("head", nn.Linear(2, 3))]


BODY = (LayerShape("body/0", 20, 0), LayerShape("body/1", 4, 4), LayerShape("body/3.0", 4, 0))


def test_each_layer_has_a_key_and_a_block_of_one_layer_keeps_its_own() -> None:
    net = BlockModel(blocks, torch.device("cpu"), by_layer=True)
    assert net.layout.blocks == (
        BlockShape("body", 28, 4, BODY),
        BlockShape("head", 9, 0, (LayerShape("head", 9, 0),)),
    )
    sizes = {"body/0": 20, "body/1": 4, "body/1.buffers": 4, "body/3.0": 4, "head": 9}
    assert net.layout.sizes == sizes
    assert net.layout.keys(["body"]) == ("body/0", "body/1", "body/1.buffers", "body/3.0")
    assert net.layout.keys(["body/1"]) == ("body/1", "body/1.buffers")
    assert net.layout.last(1) == ("head",)
    assert {key: vector.data.size for key, vector in net.dump(sizes).items()} == sizes
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(net.layout), type=Layout) == net.layout


def test_fedavg_layer_by_layer_gives_fedavgs_model(tmp_path: Path) -> None:
    method = objective(
        "layers",
        traffic=Traffic(by_layer=lambda options: True),
    )
    layers = play(tmp_path / "a", method, rounds=2, train=BRIEF, partition=PartitionConfig("iid"))
    whole = play(tmp_path / "b", rounds=2, train=BRIEF, partition=PartitionConfig("iid"))
    assert np.array_equal(layers.model, whole.model)
    keys = [key for (key,) in layers.rows("SELECT DISTINCT key FROM transfers WHERE slot = 'model' ORDER BY key")]
    assert len(keys) >= 4
    assert all(key.partition("/")[0] in ("conv1", "conv2", "conv3", "head") for key in keys)
    sent = "SELECT SUM(nbytes) FROM transfers WHERE slot = 'model'"
    assert layers.rows(sent) == whole.rows(sent)
