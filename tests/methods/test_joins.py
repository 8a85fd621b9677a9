"""Objectives that change local training alone join corrections, server optimizers, policies and half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.protocol import client_state
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import CONTROL
from tests.crossed import every
from tests.toy import Run, play, state_file

TRAIN = TrainConfig(lr=0.1, batch=16, local_steps=2)
SMALL: dict[str, Any] = {"model": ModelConfig("digits-cnn", width=2), "clients": 3, "partition": PartitionConfig("iid")}
METHODS: dict[str, dict[str, Any]] = {
    "moon": SMALL,
    "mixup": SMALL,
    "gradaug": {"multiple": 2, "subnets": 1, "resolutions": (1.0, 0.5)},
    "fedalign": {"multiple": 2},
}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedprox": ("+fedprox", {"mu": 0.5}),
    "scaffold": ("+scaffold", {}),
    "feddyn": ("+feddyn", {}),
    "calibrated": ("+calibrated", {}),
    "fedadam": ("", {"server": "fedadam"}),
    "fedavgm": ("", {"server": "fedavgm", "server_options": {"momentum": 0.9}}),
}


def played(folder: Path, name: str, **how: Any) -> Run:
    return play(folder, name, **{"train": TRAIN, "rounds": 2, **METHODS[name.partition("+")[0]], **how})


@pytest.mark.parametrize("name", every(2, METHODS))
def test_what_corrects_or_steps_changes_it(name: str, tmp_path: Path) -> None:
    alone = played(tmp_path / "alone", name)
    for way, (ending, options) in WAYS.items():
        joined = played(tmp_path / way, name + ending, **options)
        assert np.isfinite(joined.model).all() and np.abs(joined.model - alone.model).max() > 1e-5, way


def test_a_client_keeps_its_previous_model_beside_a_correction_s_vectors(tmp_path: Path) -> None:
    run = played(tmp_path, "moon+scaffold")
    kept = client_state.read(state_file(run.federation, 0))
    assert set(kept) == {"previous", CONTROL}
    assert "projection" in kept["previous"]
