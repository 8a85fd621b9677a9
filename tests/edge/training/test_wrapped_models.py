"""A method may change the model: layout, initial vectors, FLOPs and what travels follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.data.registry import dataset
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import FORWARD, MODEL
from edge.training.blocks import Block, build, wrapped
from edge.training.job_model import cached_counts
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from tests.plugins import projected_client
from tests.plugins.projected import ProjectedOptions
from tests.scenarios.runs import undisturbed
from tests.toy import DIGITS_CNN, play

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=6)
IID = PartitionConfig("iid")
PROJECTED, PLAIN = "tests.plugins.projected:SPEC", "tests.plugins.projected:PLAIN"


def test_a_projection_head_trains_and_travels_like_every_block(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.2, batch=32, local_steps=60)
    model = ModelConfig("digits-cnn", width=16)
    run = play(tmp_path, PROJECTED, clients=2, rounds=5, train=train, partition=IID, model=model, mu=0.1)
    layout = run.federation.description.layout
    assert layout.names == ("conv1", "conv2", "conv3", "projection", "head")
    assert layout.sizes["projection"] == 128 * 128 + 128 + 128 * 16 + 16
    assert layout.sizes["head"] == 16 * 10 + 10
    flops = run.federation.description.flops
    assert flops[3:, FORWARD].tolist() == [2 * (128 * 128 + 128 * 16), 2 * 16 * 10]
    sent = run.rows("SELECT DISTINCT key FROM transfers WHERE direction = 'up' AND slot = 'model' ORDER BY key")
    assert sent == [("conv1",), ("conv2",), ("conv3",), ("head",), ("projection",)]
    assert run.rows("SELECT accuracy > 0.8 FROM rounds")[-1] == (1,)


def test_without_contrast_it_is_fedavg_on_the_projected_model_to_the_bit(tmp_path: Path) -> None:
    neutral = play(tmp_path / "neutral", PROJECTED, train=BRIEF, mu=0)
    plain = play(tmp_path / "plain", PLAIN, train=BRIEF, mu=0)
    real = play(tmp_path / "real", PROJECTED, train=BRIEF)
    assert np.array_equal(neutral.model, plain.model)
    assert not np.array_equal(real.model, plain.model)
    # What the projection does not touch begins as in the model without it.
    bare = play(tmp_path / "bare", rounds=1, train=BRIEF)
    first = [run.federation.server.setup.initial[MODEL]["conv3"].version for run in (plain, bare)]
    assert first[0] == first[1]


def test_a_projected_model_runs_with_workers_of_its_own(tmp_path: Path, trainers: WorkerLauncher) -> None:
    brief = ("rounds.max=2", "data.clients=4", "rounds.participants=4", "train.local_steps=2")
    exchange = ("travels.up=without:projection", "travels.down=without:projection")
    folder = undisturbed(tmp_path, trainers, f"method={PROJECTED}", *brief, *exchange)
    keys = "SELECT DISTINCT key FROM transfers WHERE slot = 'model' ORDER BY key"
    assert [key for (key,) in read(folder / "ledger.sqlite", keys)] == ["conv1", "conv2", "conv3", "head"]


def test_blocks_that_a_spec_does_not_foresee_are_refused_before_the_run(
    tmp_path: Path, trainers: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError, match=r"conv3, projection, head, but wrapped_blocks of its spec foresees conv1"):
        undisturbed(tmp_path, trainers, "method=tests.plugins.projected:UNFORESEEN")
    with pytest.raises(ScenarioError, match="no block 'projection'"):
        load("digits", parsed(["method=fedavg", "travels.up=without:projection"]))


def twins(blocks: list[Block], options: object, classes: int, width: int | None) -> list[Block]:
    return [("twin", nn.Identity()), ("twin", nn.Identity())]


def test_blocks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="must make blocks of distinct names; it makes twin, twin"):
        wrapped([], f"{__name__}:twins", Options(), 10, None)


def test_cached_counts_are_of_the_wrapped_model_with_its_options(tmp_path: Path) -> None:
    digits, wrapper = dataset("digits"), "tests.plugins.projected_client:projected"

    def make(out: int | None) -> list[Block]:
        blocks = build(DIGITS_CNN, 10, 1)
        return blocks if out is None else projected_client.projected(blocks, ProjectedOptions(out=out), 10, 4)

    def counted(out: int | None) -> list[float]:
        how = None if out is None else (wrapper, ProjectedOptions(out=out))
        flops: list[float] = cached_counts(DIGITS_CNN, lambda: make(out), digits, tmp_path, how)[0][:, FORWARD].tolist()
        return flops

    bare, small, large = counted(None), counted(2), counted(4)
    assert [len(bare), len(small), len(large)] == [4, 5, 5]
    assert [small[-1], large[-1]] == [2 * 2 * 10, 2 * 4 * 10]
    assert len(list((tmp_path / "flops" / "v7").iterdir())) == 3
