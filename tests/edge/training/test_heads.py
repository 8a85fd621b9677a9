"""A model is cut where its feature maps end, without changing what it computes."""

from __future__ import annotations

import pytest
import torch

from edge.models.registry import MODELS
from edge.protocol.config import ModelConfig
from edge.training.blocks import build
from edge.training.heads import cut_head

CUTS = {
    "cnn": (["conv1", "conv2", "fc1", "fc2"], (84,), 84),
    "digits-cnn": (["conv1", "conv2", "conv3"], (32, 2, 2), 128),
    "resnet18": (["stem", "stage1", "stage2", "stage3", "stage4"], (512, 4, 4), 512),
    "resnet56": (["stem", "stage1", "stage2", "stage3"], (256, 8, 8), 256),
    "vgg9": (["conv1", "conv2", "conv3", "conv4", "conv5", "conv6"], (256, 4, 4), 4096),
}


@pytest.mark.parametrize("name", CUTS)
def test_the_three_parts_compute_the_model(name: str) -> None:
    names, maps, features = CUTS[name]
    x = torch.randn(2, 1, *MODELS[name].shape, generator=torch.Generator().manual_seed(0))
    blocks = build(ModelConfig(name), classes=10, inputs=1)
    whole = torch.nn.Sequential(*(module for _, module in blocks)).eval()
    cut = cut_head(blocks)
    trunk = torch.nn.Sequential(*(module for _, module in cut.trunk)).eval()
    assert ([block for block, _ in cut.trunk], cut.name, cut.features) == (names, "head", features)
    assert trunk(x).shape == (2, *maps)
    assert torch.equal(torch.nn.Sequential(*cut.joint, *cut.head)(trunk(x)), whole(x))


def test_a_model_that_is_cut_elsewhere_has_no_head() -> None:
    with pytest.raises(ValueError, match=r"the last block, b2, must begin with a linear layer: .* 'stages'"):
        cut_head(build(ModelConfig("digits-cnn", blocks="balanced:2"), classes=10, inputs=1))
