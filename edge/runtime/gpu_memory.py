"""How many workers a GPU has memory for. Never torch: the process that starts workers must not load CUDA.

A worker needs its CUDA context and twice what a training visit takes by count, since the allocator keeps pieces of
several sizes, and libraries have workspaces. Figures below are of an NVIDIA H200 with torch 2.11.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from edge.protocol.config import CPU

MIB = 1 << 20
CONTEXT_NBYTES = 1024 * MIB
"""CUDA context, loaded kernels, and the resident test set of a worker. The context with kernels took 694 MiB, and 764
to 768 with graphs; a worker with a model of 20,000 weights, all together, at most 840."""
SLACK = 2.0
"""Memory of a worker's visits in multiples of the count. torch's allocator had 1.4 times the count for ResNet-18 with
batches of 20, 1.8 with 50 (tf32: 1.3), and 1.7 for FedMLB with 50 in bf16."""
WORKERS_PER_GPU = 4
"""Most workers of one GPU. Four took 0.31 of the time of one for a small model without graphs (eight 0.22) and 0.69 for
ResNet-18 (two 0.69, eight 0.86), which fills the GPU; with graphs one worker fills it with small models, too."""
USABLE = 0.9
"""Fraction of the free memory of a GPU that workers may take; the rest is for other processes of the machine."""
DRIVER_SECONDS = 20.0
"""Longest wait for ``nvidia-smi``, which takes seconds if many processes call it at once."""


def gpu_workers(free_nbytes: Sequence[int], visit_nbytes: int, cores: int, visits: int) -> int:
    """Number of workers for GPUs with so much free memory, of a run whose visits take ``visit_nbytes`` by count.

    As many per GPU as fit in the one with the least free memory, since workers take GPUs in turns, but no more than
    gain time; in all, at most one per core and one per visit of a round, and at least one. A GPU with too little memory
    is found out by its first visit, which then fails with the reason.
    """
    per_gpu = int(USABLE * min(free_nbytes) / (CONTEXT_NBYTES + SLACK * visit_nbytes))
    return max(1, min(len(free_nbytes) * min(max(1, per_gpu), WORKERS_PER_GPU), cores, visits))


def free_nbytes(device: str) -> list[int]:
    """Free memory of the GPUs of a device (``cuda``: of all), as the driver tells; empty where it tells nothing."""
    kind, _, index = device.partition(":")
    if kind == CPU:
        return []
    rows = visible(free_in(driver_table("--query-gpu=memory.free")), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return rows[int(index) : int(index) + 1] if index else rows


def visible(rows: Sequence[int], indices: str | None) -> list[int]:
    """The driver's rows of the GPUs that CUDA_VISIBLE_DEVICES names by index; empty if it names others or by name."""
    if indices is None:
        return list(rows)
    names = [name.strip() for name in indices.split(",")]
    known = all(name.isdecimal() and int(name) < len(rows) for name in names)
    return [rows[int(name)] for name in names] if known else []


def free_in(table: str) -> list[int]:
    """Bytes from the driver's table, a line of MiB per GPU; empty if a line is no number."""
    lines = [line.strip() for line in table.splitlines()]
    return [int(line) * MIB for line in lines] if all(line.isdecimal() for line in lines) else []


def driver_table(query: str) -> str:
    """The answer of ``nvidia-smi`` to one query; empty if there is none."""
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=DRIVER_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
