"""What a node agent makes sure of before it serves."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolError
from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig
from edge.runtime.numerics import fingerprint
from scenarios.cluster import node_agent
from scenarios.cluster.node_agent import (
    TRAINER,
    JoinError,
    NodeOptions,
    check_data,
    check_numerics,
    default_count,
    localized_job,
)


def job(**other: object) -> Job:
    objective = "edge.training.client_update:ClientUpdate"
    plain: dict[str, object] = {"objective": objective, "data_sha256": "", "device": "cpu", "train": TrainConfig()}
    fields = plain | other
    data = DataConfig("digits", root="/nowhere", download=False)
    return Job("run-1", 0, cache="/nowhere", model=ModelConfig("digits-cnn"), data=data, **fields)  # type: ignore[arg-type]


def options(device: str = "auto", root: str | None = None) -> NodeOptions:
    return NodeOptions(None, device, root, "/cache", 60.0)


def test_an_agent_uses_folders_of_its_own_and_serves_on_the_same_type_of_device_alone() -> None:
    here = localized_job(job(), options())
    assert (here.device, here.data.root, here.cache) == ("cpu", None, "/cache")
    assert localized_job(job(device="cuda:3"), options(root="/data")).device == "cuda"
    assert localized_job(job(device="cuda:3"), options("cuda:1", "/data")).data.root == "/data"
    with pytest.raises(JoinError, match="--device cpu: the run computes on cuda:0, and other devices are not"):
        localized_job(job(device="cuda:0"), options("cpu"))


def test_an_agent_with_other_libraries_does_not_serve() -> None:
    run = job(fingerprint=fingerprint("cpu") | {"torch": "2.0.1"})
    with pytest.raises(JoinError) as error:
        check_numerics(run, run)
    why = f"torch {version('torch')} instead of 2.0.1; fedbr run --any-machine allows it"
    assert str(error.value) == f"not bit-identical to the run's machine: {why}"


def test_an_agent_with_other_data_or_without_the_method_does_not_serve(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    other = job(data_sha256="0123456789abcdef" * 4)
    unknown = replace(other, objective="nobodys.module:Half")
    for run, kind, why in (
        (other, JoinError, r"data set digits: this machine's is [0-9a-f]{16}, the run's is 0123456789abcde"),
        (unknown, PoolError, r"3 workers in a row ended before they were ready.*No module named 'nobodys'"),
    ):
        local = replace(localized_job(run, options()), cache=str(tmp_path))
        with (
            pytest.raises(kind, match=why),
            Pool(local, 1, launcher, tmp_path, lambda event: None, bool, TRAINER) as pool,
        ):
            check_data(run, pool)


def test_on_gpus_an_agent_has_as_many_workers_as_fit_into_their_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.9 of 10 GiB hold three of 1 GiB and twice a visit of 0.75 GiB each, on both."""
    monkeypatch.setattr(node_agent, "default_workers", lambda: 16)
    monkeypatch.setattr(node_agent, "free_nbytes", lambda device: [10 << 30, 12 << 30] if device == "cuda" else [])
    assert default_count(job(device="cuda", visit_nbytes=3 << 28)) == 6
    assert default_count(job()) == 16
