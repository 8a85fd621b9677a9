"""MOON and mixup beside whatever lets the whole model travel: corrections, server optimizers, policies, bf16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.synchronous import run_rounds
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import CONTROL
from tests.toy import Run, federation, play, state_file, store

TRAIN = TrainConfig(lr=0.1, batch=16, local_steps=2)
SMALL: dict[str, Any] = {"model": ModelConfig("digits-cnn", width=2), "clients": 3, "partition": PartitionConfig("iid")}


def played(folder: Path, method: str, **how: Any) -> Run:
    return play(folder, method, **{"train": TRAIN, "rounds": 2, **SMALL, **how})


@pytest.mark.parametrize("objective", ["moon", "mixup"])
@pytest.mark.parametrize(
    ("correction", "how"),
    [("+fedprox", {"mu": 0.1}), ("+scaffold", {}), ("+feddyn", {}), ("+calibrated", {}), ("", {"server": "fedadam"})],
    ids=str,
)
def test_what_corrects_or_steps_changes_them(
    objective: str, correction: str, how: dict[str, Any], tmp_path: Path
) -> None:
    alone, joined = played(tmp_path / "a", objective), played(tmp_path / "b", objective + correction, **how)
    assert np.isfinite(joined.model).all()
    assert np.abs(joined.model - alone.model).max() > 1e-6


def test_a_client_keeps_its_previous_model_beside_a_correction_s_vectors(tmp_path: Path) -> None:
    run = played(tmp_path, "moon+scaffold")
    kept = client_state.read(state_file(run.federation, 0))
    assert set(kept) == {"previous", CONTROL}
    assert "projection" in kept["previous"]


@pytest.mark.parametrize("objective", ["moon", "mixup"])
@pytest.mark.parametrize("policy", ["fedbuff", "fedasync"])
def test_updates_may_be_late(objective: str, policy: PolicyName, tmp_path: Path) -> None:
    run = federation(tmp_path, objective, rounds=3, train=TRAIN, rules=RoundPolicy(policy, buffer=2), **SMALL)
    assert run_rounds(run) == "rounds"
    store(run).ledger.close()
    assert np.abs(Run(run, "rounds").model - Run(run, "rounds").start).max() > 1e-4


@pytest.mark.parametrize("objective", ["moon", "mixup"])
def test_half_precision_stays_near_single(objective: str, tmp_path: Path) -> None:
    single, half = (
        played(tmp_path / precision, objective, train=replace(TRAIN, precision=precision))
        for precision in ("fp32", "bf16")
    )
    assert 0 < np.abs(half.model - single.model).max() < 0.05
