"""Whole runs with ``model.norm``: methods that are another one to the bit, running statistics that travel, resumption.

Running statistics are numbers of the model here: `Run.model` has them beside the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.synchronous import run_rounds
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, Norm, PartitionConfig, TrainConfig
from edge.protocol.payload import MODEL, Floats
from scenarios.config.load import ScenarioError
from scenarios.run.setup import Setup
from tests.toy import (
    Run,
    described,
    direct,
    federation,
    loaded,
    play,
    state_file,
    store,
)

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2, momentum=0.5, clip=1.0)
NO_TERMS = {"lambda1": 0, "lambda2": 0}
Played = Callable[..., Run]


def model(norm: Norm) -> ModelConfig:
    return ModelConfig("digits-cnn", width=2, norm=norm)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """`play` with three clients, each setting once for all tests here."""
    runs: dict[str, Run] = {}

    def run(norm: Norm, method: str, **how: Any) -> Run:
        key = repr((norm, method, sorted(how.items())))
        if key not in runs:
            folder = tmp_path_factory.mktemp("run")
            runs[key] = play(folder, method, model=model(norm), clients=3, train=BRIEF, **how)
        return runs[key]

    return run


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_methods_that_are_another_one_are_so_with_any_norm(norm: Norm, once: Played) -> None:
    uniform = once(norm, "fedavg", weights="uniform").model
    assert np.array_equal(once(norm, "fedmlb", weights="uniform", **NO_TERMS).model, uniform)
    assert np.array_equal(once(norm, "fedbr", period=0, **NO_TERMS).model, uniform)
    fedmlb = once(norm, "fedmlb", weights="uniform").model
    assert np.array_equal(once(norm, "fedbr", period=0, alpha=3).model, fedmlb)
    assert not np.array_equal(fedmlb, uniform)


def numbers(run: FederatedRun) -> NDArray[np.float32]:
    """All numbers of the present global model."""
    return Run(run, "").model


# --- running statistics travel ----------------------------------------------------------------------------------------


def test_running_statistics_are_charged_and_averaged_with_the_weights_of_the_model(tmp_path: Path) -> None:
    uneven = PartitionConfig("dirichlet-unbalanced", alpha=1.0)
    run = federation(tmp_path, model=model("batch"), clients=2, rounds=1, train=BRIEF, partition=uneven)
    run_rounds(run)
    replies = direct(run).updates
    store(run).ledger.close()
    # 2, 4 and 4 channels with a mean and a variance each, beside (20 + 4) + (76 + 8) + (148 + 8) + 170 parameters.
    layout = run.description.layout
    assert {key: size for key, size in layout.sizes.items() if "." in key} == {
        "conv1.buffers": 4, "conv2.buffers": 8, "conv3.buffers": 8
    }  # fmt: skip
    assert layout.nbytes() == 4 * (434 + 20)
    rows = Run(run, "").rows("SELECT direction, SUM(nbytes) FROM transfers WHERE slot = 'model' GROUP BY direction")
    assert rows == [("down", 2 * layout.nbytes()), ("up", 2 * layout.nbytes())]
    n = run.description.samples.astype(np.float64)
    assert n[0] != n[1]
    for key in layout.sizes:
        first, second = (reply.payload[MODEL][key].data.astype(np.float64) for reply in replies)
        mean = (n[0] * first + n[1] * second) / n.sum()
        assert np.allclose(run.server.model[key].data, mean, rtol=1e-6, atol=1e-7), key


class Still(ServerOptimizer):
    """A server optimizer that moves no parameter."""

    def step(self, key: str, current: Floats, mean: Floats) -> Floats:
        return current


def test_server_optimizers_leave_running_statistics_alone(tmp_path: Path) -> None:
    server = play(tmp_path, model=model("batch"), rounds=1, train=BRIEF, optimiser=Still()).federation.server
    before = server.setup.initial[MODEL]
    assert np.array_equal(server.model["conv1"].data, before["conv1"].data)
    assert not np.array_equal(server.model["conv1.buffers"].data, before["conv1.buffers"].data)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_corrections_act_on_parameters_and_running_statistics_are_averaged(method: str, tmp_path: Path) -> None:
    run = play(tmp_path, method, model=model("batch"), clients=3, rounds=3, train=BRIEF, weights="uniform")
    server, replies = run.federation.server, run.workers.updates
    assert list(server.extensions[0].state()) == ["conv1", "conv2", "conv3", "head"]
    last = [reply.payload[MODEL]["conv1.buffers"].data for reply in replies[-3:]]
    assert np.abs(last[0] - last[1]).max() > 1e-4
    assert np.allclose(server.model["conv1.buffers"].data, np.mean(last, axis=0), rtol=0, atol=1e-6)
    kept = client_state.read(state_file(run.federation, 0))
    assert sorted(key for named in kept.values() for key in named) == ["conv1", "conv2", "conv3", "head"]


def test_running_statistics_that_are_never_uploaded_are_refused_unless_clients_models_are_evaluated() -> None:
    description = described(model("batch"), loaded().scenario.data, 0)[0]
    how: dict[str, Any] = {"model": model("batch"), "travels": (None, "last:2")}
    with pytest.raises(ScenarioError, match=r"model.norm = 'batch': the running statistics of conv1, conv2 are never"):
        _ = Setup.of(loaded(**how), description).travels
    _, up = Setup.of(loaded(**how, evaluation={"on": "clients"}), description).travels
    assert up == ("conv3", "conv3.buffers", "head")
