"""A method may change the model, or cut it at its head: layout, initial vectors, FLOPs and what travels follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coordinator.methods import moon
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.models.registry import MODELS
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import FORWARD
from edge.training.blocks import build
from edge.training.heads import cut_head
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from tests.scenarios.runs import undisturbed
from tests.toy import play

IID = PartitionConfig("iid")
PROJECTED = "moon"
UNFORESEEN = replace(moon.SPEC, model=replace(moon.SPEC.model, wrapped_blocks=lambda names, options: names))


@pytest.mark.long
def test_a_projection_head_trains_and_travels_like_every_block(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.2, batch=32, local_steps=60)
    model = ModelConfig("digits-cnn", width=16)
    run = play(
        tmp_path, PROJECTED, clients=2, rounds=5, train=train, partition=IID, model=model, projection=16, weight=0.1
    )
    layout = run.federation.description.layout
    assert layout.names == ("conv1", "conv2", "conv3", "projection", "head")
    assert layout.sizes["projection"] == 128 * 128 + 128 + 128 * 16 + 16
    assert layout.sizes["head"] == 16 * 10 + 10
    flops = run.federation.description.flops
    assert flops[3:, FORWARD].tolist() == [2 * (128 * 128 + 128 * 16), 2 * 16 * 10]
    sent = run.rows("SELECT DISTINCT key FROM transfers WHERE direction = 'up' AND slot = 'model' ORDER BY key")
    assert sent == [("conv1",), ("conv2",), ("conv3",), ("head",), ("projection",)]
    assert run.rows("SELECT accuracy > 0.8 FROM rounds")[-1] == (1,)


def test_a_projected_model_runs_with_workers_of_its_own(tmp_path: Path, launcher: WorkerLauncher) -> None:
    brief = ("rounds.max=2", "data.clients=4", "rounds.participants=4", "train.local_steps=2")
    exchange = ("travels.up=without:projection", "travels.down=without:projection")
    folder = undisturbed(tmp_path, launcher, f"method={PROJECTED}", *brief, *exchange)
    keys = "SELECT DISTINCT key FROM transfers WHERE slot = 'model' ORDER BY key"
    assert [key for (key,) in read(folder / "ledger.sqlite", keys)] == ["conv1", "conv2", "conv3", "head"]


def test_blocks_that_a_spec_does_not_foresee_are_refused_before_the_run(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError, match=r"conv3, projection, head, but wrapped_blocks of its spec foresees conv1"):
        undisturbed(tmp_path, launcher, f"method={__name__}:UNFORESEEN")
    with pytest.raises(ScenarioError, match="no block 'projection'"):
        load("digits", parsed(["method=fedavg", "travels.up=without:projection"]))


# --- where a head begins ----------------------------------------------------------------------------------------------


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
