"""A column of a table has one unit and one precision, for its amounts and for the intervals beside them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scenarios.report.columns import BYTES, COUNT, FLOPS, JOULES, PERCENT, POINTS, SECONDS, Quantity, cells


@pytest.mark.parametrize(
    ("quantity", "values", "texts"),
    [
        (SECONDS, [53.7, 83.4], ["53.7 s", "83.4 s"]),
        (SECONDS, [0.0, 83.4, None], ["0.00 min", "1.39 min", "–"]),
        (SECONDS, [10.0, 20.0], ["10 s", "20 s"]),
        (BYTES, [7.8e6, 8.64e6], ["7.80 MB", "8.64 MB"]),
        (BYTES, [5e5, 1e6, 2e6], ["0.5 MB", "1.0 MB", "2.0 MB"]),
        (BYTES, [999_999], ["1 MB"]),
        (BYTES, [20, 5e6, 44.88e6], ["< 0.01 MB", "5.00 MB", "44.88 MB"]),
        (SECONDS, [2e-6, 3600.0], ["< 1 s", "3,600 s"]),
        (JOULES, [0.0, 0.0], ["0 J", "0 J"]),
        (FLOPS, [2.5e15, 3e12], ["2,500 TFLOP", "3 TFLOP"]),
        (PERCENT, [0.7713, 0.7, None], ["77.13 %", "70.00 %", "–"]),
        (COUNT, [12, 1400], ["12", "1,400"]),
        (POINTS, [-0.031, -1e-9], ["-3.10 pp", "0.00 pp"]),
        (SECONDS, [], []),
        (SECONDS, [None], ["–"]),
    ],
)
def test_amounts_of_a_column_have_the_unit_of_their_median_and_equal_decimals(
    quantity: Quantity, values: Sequence[float | None], texts: list[str]
) -> None:
    assert cells(quantity, values) == texts


@pytest.mark.parametrize(
    ("quantity", "values", "halves", "texts"),
    [
        (COUNT, [20.333], [3.795], ["20.3 ± 3.8"]),
        (BYTES, [509e3], [1e6], ["509 ± 1,000 kB"]),
        (SECONDS, [6.67, 5.5], [2.68, 5.1], ["6.7 ± 2.7 s", "5.5 ± 5.1 s"]),
        (PERCENT, [0.4833], [1.3059], ["48 ± 131 %"]),
        (PERCENT, [0.8713, 0.8898, None], [0.0695, 0.0174, None], ["87.1 ± 7.0 %", "89.0 ± 1.7 %", "–"]),
        # A group of one seed has no interval, and the decimals of the others'.
        (PERCENT, [0.8713, 0.8898], [0.0037, None], ["87.13 ± 0.37 %", "88.98 %"]),
        (COUNT, [12, 12], [0.0, 0.0], ["12 ± 0", "12 ± 0"]),
        (BYTES, [7.41e6, 6.33e6], [0.0, 333e3], ["7.41 ± 0.00 MB", "6.33 ± 0.33 MB"]),
        (POINTS, [-0.0028], [0.9], ["0 ± 90 pp"]),
    ],
)
def test_a_mean_is_as_precise_as_its_interval(
    quantity: Quantity, values: Sequence[float | None], halves: Sequence[float | None], texts: list[str]
) -> None:
    assert cells(quantity, values, halves) == texts
