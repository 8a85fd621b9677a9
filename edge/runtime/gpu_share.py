"""Many workers on a few GPUs: the GPU of each worker, and the fraction of its memory that the worker may use.

Worker 0 is on the first GPU, worker 1 on the second, and so on in turns. Workers of one GPU have equal fractions of its
memory, beyond which torch's allocator raises `torch.OutOfMemoryError`. A worker whose visit does not fit retires, and
the others' fractions grow (`coordinator.workers.scheduler`).

CUDA does not survive a fork, so nothing here may run in the fork server.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import torch

from edge.protocol.config import Job
from edge.runtime.gpu_memory import MIB, driver_table


def assign_gpu(device: str, worker: int, gpus: int) -> str:
    """The device of one worker: for ``cuda``, one of all ``gpus`` in turns; any other device is returned as it is.

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


def workers_on_same_gpu(job: Job, retired_slots: Collection[int], gpus: int) -> int:
    """Number of workers on the GPU of this one, itself included, without those that have retired."""
    own_gpu = assign_gpu(job.device, job.worker_slot, gpus)
    other_slots = set(range(job.workers)) - {job.worker_slot, *retired_slots}
    return 1 + sum(assign_gpu(job.device, slot, gpus) == own_gpu for slot in other_slots)


def process_nbytes(table: str, pid: int) -> int:
    """GPU memory of a process from the driver's table (lines of ``pid, MiB``); 0 if it is not there.

    In a container the driver may know the process by another number, or not at all.
    """
    rows = [line.split(", ") for line in table.splitlines()]
    return sum(int(row[1]) * MIB for row in rows if len(row) == 2 and row[0] == str(pid) and row[1].isdecimal())


class GpuShare:
    """The GPU of a worker, and the fraction of its memory."""

    def __init__(self, job: Job) -> None:
        """ValueError if there is no such GPU."""
        self._job, self._count = job, torch.cuda.device_count()
        self.name = assign_gpu(job.device, job.worker_slot, self._count)
        self._fraction = 0.0
        self._context_nbytes = 0
        self._is_measured = False

    def update_limit(self, retired_slots: Collection[int]) -> None:
        """Before each task: set the memory limit by the workers that have not retired."""
        fraction = 1.0 / workers_on_same_gpu(self._job, retired_slots, self._count)
        if fraction != self._fraction:
            self._fraction = fraction
            torch.cuda.empty_cache()  # cached pieces may be too small for the allocation that failed
            self._limit()

    def measure(self) -> str:
        """After the first task: measure memory, and take the CUDA context off the limit; returns a line for the log.

        Later: no effect, and "". The context and the loaded kernels are outside of torch's allocator.
        """
        if self._is_measured:
            return ""
        self._is_measured = True
        total = process_nbytes(driver_table("--query-compute-apps=pid,used_memory"), os.getpid())
        self._context_nbytes = max(0, total - torch.cuda.memory_reserved(self.name))
        self._limit()
        reserved = torch.cuda.max_memory_reserved(self.name) // MIB
        context = f"{self._context_nbytes // MIB} MiB context, " if total else ""
        return f"{self.name}: {reserved} MiB reserved, {context}share {self._fraction:.2f}"

    def _limit(self) -> None:
        total = torch.cuda.get_device_properties(self.name).total_memory
        fraction = max(0.0, self._fraction - self._context_nbytes / total)
        torch.cuda.set_per_process_memory_fraction(fraction, self.name)
