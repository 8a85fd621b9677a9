"""Each method on a GPU: as on a CPU but for rounding, and the same to the bit with steps replayed from graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge.protocol.config import TrainConfig
from edge.training.metrics.registry import METRICS
from tests.cuda.conftest import Called
from tests.methods.cases import BRIEF, CASES, IID, Case
from tests.toy import Run, play

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
"""Of pooling, whose windows do not overlap here; workers log it."""
REPLAYED = replace(BRIEF, batch=16, local_steps=None, local_epochs=1, graphs=True)


def on(case: Case, folder: Path, device: str, train: TrainConfig) -> Run:
    return case.play_real(partial(play, folder), train=train, device=device, clients=3, partition=IID)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_on_a_gpu_is_that_on_a_cpu_but_for_rounding(gpu: str, tmp_path: Path, case: Case) -> None:
    ours, theirs = (on(case, tmp_path / device[:4], device, BRIEF) for device in (gpu, "cpu"))
    way = np.linalg.norm(theirs.model - np.resize(theirs.start, theirs.model.shape))
    assert np.linalg.norm(ours.model - theirs.model) <= 1e-3 * way
    costs = "SELECT round, client, flops, bytes_down, bytes_up FROM visits ORDER BY round, client"
    assert ours.rows(costs) == theirs.rows(costs)
    losses, expected = ([update.numbers["loss"] for update in run.workers.updates] for run in (ours, theirs))
    assert losses == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_with_replayed_steps_is_one_with_their_work_to_the_bit(
    gpu: str, tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = on(case, tmp_path / "replayed", gpu, REPLAYED)
    monkeypatch.setattr("edge.training.trainer.cuda_graphs", lambda: Called)
    called = on(case, tmp_path / "called", gpu, REPLAYED)
    assert replayed.model.tobytes() == called.model.tobytes()
    assert [update.numbers for update in replayed.workers.updates] == [
        update.numbers for update in called.workers.updates
    ]


def test_all_metrics_on_a_gpu_are_those_on_a_cpu_but_for_rounding(gpu: str, tmp_path: Path) -> None:
    brief = {"examples": 64, "iterations": 5, "tolerance": 0}
    options = {"hessian": {**brief, "probes": 5}, "loss-surface": {**brief, "points": 3}}
    evaluation = {"metrics": tuple(METRICS), "metric_options": options, "subset": 200}
    ours, theirs = (
        play(tmp_path / device[:4], rounds=1, train=BRIEF, device=device, evaluation=evaluation)
        for device in (gpu, "cpu")
    )
    query = "SELECT metric, part, value FROM evaluations"
    found, expected = ({tuple(of): value for *of, value in run.rows(query)} for run in (ours, theirs))
    assert found.keys() == expected.keys()
    assert found == {name: pytest.approx(value, rel=1e-3, abs=6e-3) for name, value in expected.items()}
