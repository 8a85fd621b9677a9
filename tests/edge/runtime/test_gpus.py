"""Who is on which GPU, with how much of its memory. The GPUs here are numbers: there is no driver."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig
from edge.runtime import gpu_share
from edge.runtime.gpu_memory import MIB, free_in, gpu_workers, visible
from edge.runtime.gpu_share import GpuShare, assign_gpu

GIB = 1024 * MIB


def job(device: str = "cuda", slot: int = 0, workers: int = 1) -> Job:
    model, objective = ModelConfig("cnn"), "edge.training.client_update:ClientUpdate"
    return Job(
        "run", 0, device, "", model, DataConfig("digits"), TrainConfig(), objective, worker_slot=slot, workers=workers
    )


@pytest.mark.parametrize(
    ("device", "count", "devices"),
    [
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 1, ["cuda:0"] * 5),
        ("cuda:1", 2, ["cuda:1"] * 5),
        ("cpu", 0, ["cpu"] * 5),
        ("cpu", 2, ["cpu"] * 5),
    ],
)
def test_workers_take_turns_unless_the_user_names_one_gpu(device: str, count: int, devices: list[str]) -> None:
    assert [assign_gpu(device, worker, count) for worker in range(5)] == devices


@pytest.mark.parametrize(
    ("device", "count", "text"),
    [
        ("cuda", 0, "--device cuda: torch finds no GPU that it can use"),
        ("cuda:2", 2, "--device cuda:2: torch finds 2 GPUs, cuda:0 to cuda:1"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_by_name(device: str, count: int, text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        assign_gpu(device, 0, count)
    assert str(refusal.value) == text


@dataclass
class Driver:
    """Stands where torch and the driver stand: two GPUs of 10 GiB."""

    table: str
    reserved: int = 0
    fractions: list[tuple[str, float]] = field(default_factory=list)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(f"{os.getpid()}, 1536\n1, 9999\n")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda name: SimpleNamespace(total_memory=10 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda name: driver.reserved)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda name: driver.reserved)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, name: driver.fractions.append((name, share))
    )
    monkeypatch.setattr(gpu_share, "driver_table", lambda query: driver.table)
    return driver


def test_a_share_grows_when_a_neighbour_has_left_and_is_set_only_when_it_changes(driver: Driver) -> None:
    gpu = GpuShare(job(slot=0, workers=6))
    for gone in ((), (), (1,), (1, 2), (1, 2, 4)):  # slots 1, 3 and 5 are on the other GPU
        gpu.update_limit(gone)
    assert driver.fractions == [("cuda:0", pytest.approx(1 / 3)), ("cuda:0", 0.5), ("cuda:0", 1.0)]


# --- how many workers GPUs have memory for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "visit", "cores", "visits", "workers"),
    [
        # A worker takes 1 GiB and twice 10 GiB; of 80 GiB 72 may be used, which 21 divides 3 times.
        ([80 * GIB], 10 * GIB, 16, 10, 3),
        ([80 * GIB], 10 * GIB, 16, 1, 1),
        # With 5 GiB a visit there is room for 6, but more than four of one GPU gain nothing.
        ([80 * GIB], 5 * GIB, 16, 10, 4),
        # Workers take GPUs in turns, so the one with 36 usable GiB decides: 3 on each.
        ([80 * GIB, 40 * GIB], 5 * GIB, 16, 10, 6),
        ([0], 5 * GIB, 16, 10, 1),
    ],
)
def test_workers_share_the_free_memory_but_cores_and_visits_are_limits_too(
    free: list[int], visit: int, cores: int, visits: int, workers: int
) -> None:
    assert gpu_workers(free, visit, cores, visits) == workers


def test_the_drivers_table_is_read_for_the_gpus_that_cuda_shows() -> None:
    assert free_in("81000\n 512\n") == [81000 * MIB, 512 * MIB]
    assert free_in("81000\n[N/A]\n") == free_in("") == []
    assert visible([3, 5, 7], None) == [3, 5, 7]
    assert visible([3, 5, 7], "2, 0") == [7, 3]
    assert visible([3, 5, 7], "GPU-8a1c") == visible([3, 5, 7], "4") == visible([3], "") == []
