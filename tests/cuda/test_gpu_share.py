"""The limit of a worker's memory, on a real GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from edge.protocol.config import DataConfig, Job, ModelConfig, TrainConfig
from edge.runtime.gpu_memory import MIB, free_nbytes
from edge.runtime.gpu_share import GpuShare
from edge.runtime.numerics import fingerprint


@pytest.fixture
def share(gpu: str) -> Iterator[GpuShare]:
    """The share of one worker of four."""
    objective = "edge.training.client_update:ClientUpdate"
    yield GpuShare(
        Job("", 0, gpu, "", ModelConfig("cnn"), DataConfig(), TrainConfig(), objective, worker_slot=0, workers=4)
    )
    torch.cuda.set_per_process_memory_fraction(1.0, gpu)
    torch.cuda.empty_cache()


def test_a_worker_gets_no_more_than_its_share_until_others_have_retired(gpu: str, share: GpuShare) -> None:
    total = torch.cuda.get_device_properties(gpu).total_memory
    share.update_limit(())
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(int(0.3 * total), dtype=torch.uint8, device=gpu)
    held = torch.empty(int(0.2 * total), dtype=torch.uint8, device=gpu)
    told = re.fullmatch(rf"{gpu}: ([0-9]+) MiB reserved, (?:[0-9]+ MiB context, )?share 0.25", share.measure())
    assert told is not None
    assert int(told[1]) >= held.numel() // MIB
    del held
    share.update_limit((1, 2))  # of four, two are left
    assert torch.empty(int(0.3 * total), dtype=torch.uint8, device=gpu).numel() == int(0.3 * total)


def test_the_driver_names_the_gpu_and_its_free_memory(gpu: str) -> None:
    (free,) = free_nbytes(gpu)
    assert 0 < free <= torch.cuda.get_device_properties(gpu).total_memory
    # The part in brackets and units differ between the driver's two names.
    assert set(fingerprint(gpu)["GPU"].split()) & set(torch.cuda.get_device_name(gpu).split())
