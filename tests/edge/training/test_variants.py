"""FLOPs of narrower models on smaller images are counted beforehand, and charged as the client side adds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.training.blocks import build
from edge.training.counts import flops_per_example
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import parsed
from scenarios.studies.replay import replay
from tests.scenarios.runs import undisturbed
from tests.toy import one_example, play

SLIM = "tests.plugins.slim:SPEC"
BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=4)


def test_drawn_variants_are_charged_as_the_worker_counts_them(tmp_path: Path) -> None:
    model, iid = ModelConfig("resnet18", width=4), PartitionConfig("iid")
    run = play(tmp_path, SLIM, rounds=2, train=BRIEF, model=model, partition=iid)
    # Half of 4; a quarter of 4 is 1, and widths are multiples of 2.
    counted = [
        flops_per_example(lambda: build(ModelConfig("resnet18", width=2), 10, 1), (1, side, side)) for side in (8, 4)
    ]
    assert np.array_equal(run.federation.description.variant_flops, counted)
    assert len(set(run.rows("SELECT flops FROM visits"))) > 2


def test_a_run_with_variants_is_replayed_from_its_records(tmp_path: Path, trainers: WorkerLauncher) -> None:
    brief = ("model.name=resnet18", "model.width=4", "rounds.max=2", "data.clients=4", "rounds.participants=4")
    folder = undisturbed(tmp_path, trainers, f"method={SLIM}", "train.local_steps=2", *brief)
    assert replay(folder, parsed(["fleet.server.down=3 Mbit/s"]))["rounds"] == 2


def test_a_model_for_images_of_one_size_has_no_variant_of_another(tmp_path: Path, trainers: WorkerLauncher) -> None:
    with pytest.raises(ScenarioError, match="'digits-cnn': the method needs one that takes images of height 4"):
        undisturbed(tmp_path, trainers, "method=tests.plugins.slim:SMALLER")


def test_a_plan_may_only_use_variants_that_its_spec_declares() -> None:
    context = one_example(1, np.zeros((1, 4)), Options())
    with pytest.raises(ValueError, match=r"the variant \(0.5, 0.875\) is not declared; declared are \[\]"):
        context.flops_at(0.5, 0.875)
