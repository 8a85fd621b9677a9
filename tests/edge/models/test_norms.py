"""``model.norm``: every shipped backbone with BatchNorm, GroupNorm and none, counted by hand; and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.data.registry import DATASETS
from edge.models.registry import MODELS, model
from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig
from edge.training.blocks import build
from edge.training.job_model import check_single_examples

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


def test_every_backbone_is_in_the_tables_below() -> None:
    assert set(SMALL) == {name for name, row in MODELS.items() if row.norm is not None}


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
