"""Stochastic depth under corrections, server optimizers and policies: visits are charged what their draws execute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.methods.registry import resolve
from coordinator.rounds.policy import RoundPolicy
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import INPUT_GRADIENT
from scenarios.run.environment import Environment
from scenarios.run.host import Host
from scenarios.run.metadata import environment
from tests.edge.protocol.mutations import DESCRIPTION as PROFILE
from tests.toy import loaded, play

MODEL = ModelConfig("tests.plugins.residual:ROW", width=2)
HOW: dict[str, Any] = {
    "model": MODEL,
    "train": TrainConfig(lr=0.1, batch=16, local_steps=2, momentum=0.5),
    "partition": PartitionConfig("iid"),
    "clients": 3,
    "rounds": 3,
    "keep_last": 0.5,
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("stochdepth+fedprox", {"mu": 0.1}),
        ("stochdepth+scaffold", {}),
        ("stochdepth+feddyn", {}),
        ("stochdepth+calibrated", {}),
        ("stochdepth", {"server": "fedadam"}),
        ("stochdepth", {"rules": RoundPolicy("fedbuff", buffer=2)}),
        ("stochdepth", {"rules": RoundPolicy("fedasync"), "dropped": "decay"}),
        ("stochdepth", {"sum": "fixed_point"}),
    ],
    ids=["fedprox", "scaffold", "feddyn", "calibrated", "fedadam", "fedbuff", "fedasync", "fixed_point"],
)
def test_it_joins_all_that_sends_the_whole_model(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    run = play(tmp_path, name, **HOW, **how)
    description = run.federation.description
    plain = 32 * (description.flops.sum() - description.flops[0, INPUT_GRADIENT])
    # The second unit alone is left out: in neither, one or both steps of a visit.
    body = 16 * description.unit_flops[1].sum()
    charged = {flops for (flops,) in run.rows("SELECT flops FROM visits WHERE kind = 'train'")}
    assert charged <= {plain, plain - body, plain - 2 * body}
    assert len(charged) > 1


def test_the_environment_of_a_run_has_its_units_for_a_replay(tmp_path: Path) -> None:
    known = loaded("stochdepth", model=MODEL)
    profile = replace(PROFILE, unit_blocks=np.array([0, 1]), unit_flops=np.arange(8.0).reshape(2, 4))
    text = json.dumps(environment(known, profile, Host(tmp_path, 1, "cpu"), {}, True, {}).tables())
    again = Environment.model_validate_json(text).profile(known.model.family)
    assert again.unit_blocks.tolist() == [0, 1]
    assert again.unit_flops.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_model_without_residual_units_is_noted() -> None:
    known, spec = loaded("stochdepth"), resolve("stochdepth").objective
    profile = replace(PROFILE, unit_blocks=np.zeros(0, np.int64))
    assert "has no residual units" in str(spec.records.note(profile, known.options))
    assert spec.records.note(profile, known.options.model_copy(update={"keep_last": 1.0})) is None
    assert spec.records.note(replace(profile, unit_blocks=np.array([1])), known.options) is None
