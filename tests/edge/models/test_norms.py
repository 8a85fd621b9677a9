"""``model.norm``: every shipped backbone with BatchNorm, GroupNorm and none, counted by hand; and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from edge.data.registry import DATASETS
from edge.models.registry import MODELS, model
from edge.protocol.config import DataConfig, Job, ModelConfig, Norm, TrainConfig
from edge.training.block_model import BlockModel
from edge.training.blocks import build
from edge.training.job_model import check_single_examples
from tests.toy import CPU

RESNETS = {"resnet18": 2, "resnet18-imagenet": 2, "resnet56": 2}
SMALL = {
    "cnn": None,
    "digits-cnn": 4,
    "heterofl-cnn": 4,
    "hierfavg-lenet": None,
    "hierfavg-cnn": None,
    **RESNETS,
    "vgg9": 2,
    "mobilenetv2": 8,
    "shufflenet": 12,
    "squeezenet": 12,
}
CHANNELS = {  # of all convolutions with a normalisation, by hand: the width times the sum over layers
    "cnn": 6 + 16,
    "digits-cnn": 4 + 8 + 8,
    "heterofl-cnn": 4 * (1 + 2 + 4 + 8),
    "hierfavg-lenet": 10 + 20,
    "hierfavg-cnn": 32 + 128 + 256,
    # the stem, 4 norms per stage, and shortcuts of the last three
    "resnet18": 2 * (1 + 4 * (1 + 2 + 4 + 8) + 2 + 4 + 8),
    "resnet18-imagenet": 2 * (1 + 4 * (1 + 2 + 4 + 8) + 2 + 4 + 8),
    # the stem, 6 norms of 1, 1 and 4 times the planes per stage, and a shortcut per stage
    "resnet56": 2 * (1 + 6 * 6 * (1 + 2 + 4) + 4 * (1 + 2 + 4)),
    "vgg9": 2 * (1 + 2 + 4 + 4 + 8 + 8),
}
KINDS: tuple[Norm, ...] = ("batch", "group", "none")


def test_every_backbone_is_in_the_tables_below() -> None:
    assert set(SMALL) == {name for name, row in MODELS.items() if row.norm is not None}


@pytest.mark.parametrize("name", SMALL)
def test_every_backbone_trains_with_the_norms_that_are_not_its_own(name: str) -> None:
    side = 16 if MODELS[name].flexible else MODELS[name].shape[0]
    x, y = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0)), torch.arange(2)
    params, buffers = {}, {}
    for norm in KINDS:
        make = partial(build, ModelConfig(name, SMALL[name], norm=norm), 10, 3)
        torch.manual_seed(0)
        net = BlockModel(make, CPU)
        params[norm], buffers[norm] = net.flat.numel(), net.buffers.numel()
        assert net.uses_batch_stats(0) == (norm == "batch")
        if norm == MODELS[name].norm:  # trained elsewhere
            continue
        before = net.buffers.clone()
        torch.autograd.backward(F.cross_entropy(net.run(x), y))
        assert all(bool(net.grad[part].any()) for part in net.slices.values()), "no block is left out"
        assert bool((net.buffers != before).all())
    assert params["batch"] == params["group"]
    assert (buffers["group"], buffers["none"]) == (0, 0)
    # A mean and a variance, and a weight and a bias, per channel.
    if name in CHANNELS:
        assert buffers["batch"] == 2 * CHANNELS[name]
    # ResNets have biases in place of those of their norms.
    assert params["group"] - params["none"] == buffers["batch"] // (2 if name in RESNETS else 1)


def test_a_norm_that_a_model_cannot_have_is_refused_by_key() -> None:
    with pytest.raises(ValueError, match=r"^model.norm = 'group': needs an even model.width, not 5; take 6$"):
        model("digits-cnn").check_norm("group", 5)
    for row in (model("mlp"), model("tests.plugins.own_rows:CONV_NET")):
        row.check_norm(None, None)
        with pytest.raises(ValueError, match=f"^model.norm = 'batch': the layers of {row.name} are its own; leave the"):
            row.check_norm("batch", None)


# --- batches of one example -------------------------------------------------------------------------------------------

RESNET = ModelConfig("resnet18", width=2, norm="batch")


def check(config: ModelConfig, samples: int, train: TrainConfig, adapt_epochs: int = 0) -> None:
    """On 8x8 digits, of which resnet18's last stage has 1x1 maps."""
    job = replace(NO_JOB, model=config, train=train, adapt_epochs=adapt_epochs)
    check_single_examples(lambda: build(config, 10, 1), DATASETS["digits"], job, np.array([32, samples]))


NO_JOB = Job("", 0, "cpu", "", RESNET, DataConfig("digits"), TrainConfig(), None)  # type: ignore[arg-type]
SIXTEEN = TrainConfig(batch=16, local_steps=2)


@pytest.mark.parametrize(
    ("samples", "train", "adapt_epochs"),
    [
        (33, replace(SIXTEEN, local_steps=None), 0),
        (33, SIXTEEN, 1),  # an adaptation goes through all of them
        (32, replace(SIXTEEN, batch=1, drop_last=True), 0),
    ],
)
def test_a_batch_of_one_without_batch_statistics_is_refused_by_key(
    samples: int, train: TrainConfig, adapt_epochs: int
) -> None:
    named = 0 if train.batch == 1 else 1
    with pytest.raises(ValueError, match=rf"^train.batch = {train.batch}: client {named} has {samples} examples, one"):
        check(RESNET, samples, train, adapt_epochs)
