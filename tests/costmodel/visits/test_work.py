"""Visits as columns, and the nominal cost: FedBR's Eq. 2 and Eq. 3, term by term."""

from __future__ import annotations

import pytest

from costmodel.visits.work import Work, Works, nominal_bytes, nominal_bytes_plain, nominal_flops


def test_visits_become_columns_in_their_order() -> None:
    works = Works.of([Work(3_000_000_000, 2, 5.0, 7, 0.25), Work(0, 1, 0.5)])
    assert len(works) == 2
    assert (works.bytes_down.tolist(), works.bytes_up.tolist()) == ([3_000_000_000, 0], [2, 1])
    assert (works.flops.tolist(), works.steps.tolist()) == ([5.0, 0.5], [7, 0])
    assert works.codec_seconds.tolist() == [0.25, 0.0]
    assert len(Works.of([])) == 0


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


def test_alpha_is_less_than_the_number_of_blocks() -> None:
    with pytest.raises(AssertionError):
        nominal_bytes(alpha=6, blocks=6, tau=3, model_nbytes=1000)
    with pytest.raises(AssertionError):
        nominal_flops(alpha=6, blocks=6, samples=1, flops_per_sample=1.0)
