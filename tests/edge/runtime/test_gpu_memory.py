"""How many workers GPUs have memory for. The GPUs here are numbers: there is no driver."""

from __future__ import annotations

import pytest

from edge.runtime.gpu_memory import MIB, free_in, gpu_workers, visible

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("free", "visit", "cores", "visits", "workers"),
    [
        # A worker takes 1 GiB and twice 10 GiB; of 80 GiB 72 may be used, which 21 divides 3 times.
        ([80 * GIB], 10 * GIB, 16, 10, 3),
        ([80 * GIB], 10 * GIB, 2, 10, 2),
        ([80 * GIB], 10 * GIB, 16, 1, 1),
        # With 5 GiB a visit there is room for 6, but more than four of one GPU gain nothing.
        ([80 * GIB], 5 * GIB, 16, 10, 4),
        # Workers take GPUs in turns, so the one with 36 usable GiB decides: 3 on each.
        ([80 * GIB, 40 * GIB], 5 * GIB, 16, 10, 6),
        ([8 * GIB, 8 * GIB], 5 * GIB, 16, 10, 2),
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
