"""Many workers on a few GPUs: which of them a worker is on, and how much of its memory it may take.

Worker 0 is on the first GPU, worker 1 on the second, and so on in turns. Those on one GPU have equal shares of its
memory, beyond which torch's allocator raises `torch.OutOfMemoryError` instead of taking what is the others'. A worker
whose visit does not fit in its share leaves, and the shares of those that stay grow (`coordinator.workers.scheduler`).

All of this is called in the worker: CUDA does not survive a fork, so nothing here may run in the fork server. What
needs a driver has been read against torch's documentation, and never been run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection

import torch

from edge.protocol.config import Job

DRIVER_SECONDS = 20.0
"""Longest wait for ``nvidia-smi``, which takes seconds where many processes ask at once."""
MIB = 1 << 20


def assign_gpu(device: str, worker: int, gpus: int) -> str:
    """The device of one worker of many: ``cuda`` is all ``gpus`` in turns; any other device is meant as it is named.

    ValueError if there is no such GPU.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return device
    if gpus == 0:
        raise ValueError(f"--device {device}: torch finds no GPU that it can use")
    if index and int(index) >= gpus:
        raise ValueError(f"--device {device}: torch finds {gpus} GPUs, cuda:0 to cuda:{gpus - 1}")
    return device if index else f"cuda:{worker % gpus}"


def workers_on_same_gpu(job: Job, gone: Collection[int], gpus: int) -> int:
    """How many workers are on the GPU of this one, itself among them; ``gone``: the slots of those that have left."""
    own = assign_gpu(job.device, job.worker_slot, gpus)
    others = set(range(job.workers)) - {job.worker_slot, *gone}
    return 1 + sum(assign_gpu(job.device, other, gpus) == own for other in others)


def process_nbytes(table: str, pid: int) -> int:
    """GPU memory of a process by the driver's own table (lines of ``pid, MiB``); 0 if that does not say.

    In a container the driver may know the process by another number, or may not tell.
    """
    rows = [line.split(", ") for line in table.splitlines()]
    return sum(int(row[1]) * MIB for row in rows if len(row) == 2 and row[0] == str(pid) and row[1].isdecimal())


def _ask_driver() -> str:
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=DRIVER_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


class GpuShare:
    """The GPU that a worker is on, and its share of it."""

    def __init__(self, job: Job) -> None:
        """ValueError if there is no such GPU."""
        self._job, self._count = job, torch.cuda.device_count()
        self.name = assign_gpu(job.device, job.worker_slot, self._count)
        self._share = 0.0
        self._context_nbytes = 0
        self._is_measured = False

    def make_room(self, gone: Collection[int]) -> None:
        """Before each task: take the share that is this worker's, now that others have left."""
        share = 1.0 / workers_on_same_gpu(self._job, gone, self._count)
        if share != self._share:
            self._share = share
            torch.cuda.empty_cache()  # in many small pieces, what was kept may be of no use to what did not fit
            self._limit()

    def measure(self) -> str:
        """After the first task, a line on what was measured, and the context's own memory comes off the share.

        Later: nothing, and "". The context, with the kernels that were loaded, lies outside of torch's allocator.
        """
        if self._is_measured:
            return ""
        self._is_measured = True
        held = process_nbytes(_ask_driver(), os.getpid())
        self._context_nbytes = max(0, held - torch.cuda.memory_reserved(self.name))
        self._limit()
        reserved = torch.cuda.max_memory_reserved(self.name) // MIB
        context = f"{self._context_nbytes // MIB} MiB context, " if held else ""
        return f"{self.name}: {reserved} MiB reserved, {context}share {self._share:.2f}"

    def _limit(self) -> None:
        total = torch.cuda.get_device_properties(self.name).total_memory
        fraction = max(0.0, self._share - self._context_nbytes / total)
        torch.cuda.set_per_process_memory_fraction(fraction, self.name)
