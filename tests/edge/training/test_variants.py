"""FLOPs of narrower models on smaller images are counted beforehand, and charged as the client side adds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.methods import fedavg
from coordinator.methods.spec import Costs
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.training.blocks import build
from edge.training.counts import flops_per_example
from scenarios.config.errors import ScenarioError
from scenarios.config.overrides import parsed
from scenarios.studies.replay import replay
from tests.scenarios.runs import undisturbed
from tests.toy import objective, one_example, play

SMALLER = replace(fedavg.SPEC, name="smaller", costs=Costs(variants=lambda options: ((1.0, 0.5),)))
RESNET = ModelConfig("resnet18", norm="none")
"""Norms have no FLOPs, but take most of the time of counting."""
SLIM = objective("slim", costs=Costs(variants=lambda options: ((0.5, 1.0), (0.25, 0.5))))


def test_variants_are_counted_as_the_narrower_models_that_they_are(tmp_path: Path) -> None:
    run = play(tmp_path, SLIM, rounds=1, train=TrainConfig(local_steps=0), model=replace(RESNET, width=4))
    # Half of 4; a quarter of 4 is 1, and widths are multiples of 2.
    counted = [flops_per_example(lambda: build(replace(RESNET, width=2), 10, 1), (1, side, side)) for side in (8, 4)]
    assert np.array_equal(run.federation.description.variant_flops, counted)


def test_a_run_with_variants_is_replayed_from_its_records(tmp_path: Path, trainers: WorkerLauncher) -> None:
    brief = (
        "model.name=resnet18",
        "model.width=4",
        "model.norm=none",
        "rounds.max=2",
        "data.clients=4",
        "rounds.participants=4",
    )
    gradaug = ("method=gradaug", "method_options.multiple=2", "train.local_steps=2")
    folder = undisturbed(tmp_path, trainers, *gradaug, *brief)
    assert replay(folder, parsed(["fleet.server.down=3 Mbit/s"])).rounds == 2


def test_a_model_for_images_of_one_size_has_no_variant_of_another(tmp_path: Path, trainers: WorkerLauncher) -> None:
    with pytest.raises(ScenarioError, match="'digits-cnn': the method needs one that takes images of height 4"):
        undisturbed(tmp_path, trainers, f"method={__name__}:SMALLER")


def test_a_plan_may_only_use_variants_that_its_spec_declares() -> None:
    context = one_example(1, np.zeros((1, 4)), Options())
    with pytest.raises(ValueError, match=r"the variant \(0.5, 0.875\) is not declared; declared are \[\]"):
        context.flops_at(0.5, 0.875)
