"""GradAug and FedAlign join corrections and server optimizers, and refuse models with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import ModelConfig, TrainConfig
from scenarios.config.errors import ScenarioError
from tests.scenarios.runs import undisturbed
from tests.toy import play

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
METHODS = ("gradaug", "fedalign")
FEW: dict[str, dict[str, Any]] = {"gradaug": {"subnets": 1, "resolutions": (1.0, 0.5)}, "fedalign": {}}
each_method = pytest.mark.parametrize("name", METHODS)
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedprox": ("+fedprox", {"mu": 0.5}),
    "scaffold": ("+scaffold", {}),
    "feddyn": ("+feddyn", {}),
    "calibrated": ("+calibrated", {}),
    "fedavgm": ("", {"server": "fedavgm", "server_options": {"momentum": 0.9}}),
}


@each_method
def test_it_joins_every_correction_and_server_optimizer(name: str, tmp_path: Path) -> None:
    few = {"rounds": 2, "train": BRIEF, "multiple": 2, **FEW[name]}
    plain = play(tmp_path / "plain", name, **few)
    for way, (ending, options) in WAYS.items():
        run = play(tmp_path / way, f"{name}{ending}", **few, **options)
        assert np.isfinite(run.model).all() and np.abs(run.model - plain.model).max() > 1e-5, way


@each_method
def test_its_flops_are_foreseen_with_batch_norm_and_bf16(name: str, tmp_path: Path) -> None:
    """The visit's price is compared with the worker's count in every run; steps differ in what they draw."""
    model = ModelConfig("resnet18", width=2, norm="batch")
    train = replace(BRIEF, precision="bf16")
    run = play(tmp_path, name, rounds=1, train=train, model=model, multiple=1, **FEW[name])
    fedavg = play(tmp_path / "fedavg", rounds=1, train=train, model=model)
    own, plain = (each.rows("SELECT SUM(flops) FROM visits")[0][0] for each in (run, fedavg))
    assert own > plain


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            ("method=gradaug", "model.name=mobilenetv2"),
            "model.name = 'mobilenetv2': its convolutions in 32 groups have no narrower sub-networks",
        ),
        (("method=fedalign", "model.blocks=balanced:2"), "the model has 2 blocks; the least is 3"),
    ],
)
def test_models_that_it_cannot_have_are_refused_before_training(
    settings: tuple[str, ...], reason: str, tmp_path: Path, trainers: WorkerLauncher
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        undisturbed(tmp_path, trainers, *settings)
