"""A method may change the model: layout, initial vectors, FLOPs and what travels follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from coordinator.methods import moon
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.data.registry import dataset
from edge.methods.moon import projected
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.options.moon import MoonOptions
from edge.protocol.payload import FORWARD, MODEL
from edge.training.blocks import Block, build, wrapped
from edge.training.job_model import cached_counts
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from tests.scenarios.runs import undisturbed
from tests.toy import DIGITS_CNN, play

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=6)
IID = PartitionConfig("iid")
PROJECTED = "moon"
UNFORESEEN = replace(moon.SPEC, model=replace(moon.SPEC.model, wrapped_blocks=lambda names, options: names))


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


def test_what_the_projection_does_not_touch_begins_as_in_the_model_without_it(tmp_path: Path) -> None:
    runs = [play(tmp_path / method, method, rounds=1, train=BRIEF) for method in (PROJECTED, "fedavg")]
    first = [run.federation.server.setup.initial[MODEL]["conv3"].version for run in runs]
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
        undisturbed(tmp_path, trainers, f"method={__name__}:UNFORESEEN")
    with pytest.raises(ScenarioError, match="no block 'projection'"):
        load("digits", parsed(["method=fedavg", "travels.up=without:projection"]))


def twins(blocks: list[Block], options: object, classes: int, width: int | None) -> list[Block]:
    return [("twin", nn.Identity()), ("twin", nn.Identity())]


def test_blocks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="must make blocks of distinct names; it makes twin, twin"):
        wrapped([], f"{__name__}:twins", Options(), 10, None)


def test_cached_counts_are_of_the_wrapped_model_with_its_options(tmp_path: Path) -> None:
    digits, wrapper = dataset("digits"), "edge.methods.moon:projected"

    def make(out: int | None) -> list[Block]:
        blocks = build(DIGITS_CNN, 10, 1)
        return blocks if out is None else projected(blocks, MoonOptions(projection=out), 10, 4)

    def counted(out: int | None) -> list[float]:
        how = None if out is None else (wrapper, MoonOptions(projection=out))
        flops: list[float] = cached_counts(DIGITS_CNN, lambda: make(out), digits, tmp_path, how)[0][:, FORWARD].tolist()
        return flops

    bare, small, large = counted(None), counted(2), counted(4)
    assert [len(bare), len(small), len(large)] == [4, 5, 5]
    assert [small[-1], large[-1]] == [2 * 2 * 10, 2 * 4 * 10]
    assert len(list((tmp_path / "flops" / "v7").iterdir())) == 3
