"""Visits as columns, and the nominal cost: FedBR's Eq. 2 and Eq. 3, term by term."""

from __future__ import annotations

import pytest

from costmodel.visits.work import nominal_bytes, nominal_bytes_plain, nominal_flops


def test_compute_of_eq_2_and_traffic_of_eq_3() -> None:
    assert nominal_flops(alpha=0, blocks=6, samples=100, flops_per_sample=3.0) == 300.0
    # alpha = 3, M = 6: 1 + 3 * 4 / 12 = 2.
    assert nominal_flops(alpha=3, blocks=6, samples=100, flops_per_sample=3.0) == 600.0
    # tau = 4, alpha = 3, M = 6: 1 + 1/4 + 3/4 * 1/2 = 1.625.
    assert nominal_bytes(alpha=3, blocks=6, tau=4, model_nbytes=1000) == 1625.0
    # tau = 3, alpha = 2, M = 6: 1 + 1/3 + 2/3 * 1/3 = 14/9.
    assert nominal_bytes(alpha=2, blocks=6, tau=3, model_nbytes=1000) == pytest.approx(1555.5556)
    for tau in (0, 1):  # a full model each way costs what every other method pays
        assert nominal_bytes(alpha=3, blocks=6, tau=tau, model_nbytes=1000) == nominal_bytes_plain(1000) == 2000.0
