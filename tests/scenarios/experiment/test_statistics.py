"""Statistics over seeds: intervals, paired differences and their test, Holm's correction, seeds needed; and the tables
of a sweep, worked by hand, with the files that hold them."""

from __future__ import annotations

import csv
import math
from io import StringIO
from typing import Any

import pytest
from msgspec import to_builtins

from scenarios.experiment import statistics
from scenarios.experiment import sweep_tables as tables
from scenarios.experiment.grid import grid_of
from scenarios.experiment.sweep import plan
from scenarios.report.tables import numbers
from scenarios.run import progress
from scenarios.run.progress import ProgressPoint, Trail
from scenarios.run.run_folder import RunFolder


def test_an_interval_is_students_t_over_seeds_and_one_seed_has_none() -> None:
    assert progress.t_quantile(3) == pytest.approx(4.303, abs=5e-4)
    assert progress.t_quantile(2) == pytest.approx(12.706, abs=5e-4)
    # The deviation of 1, 2, 3 is 1: half the interval is 4.303 / sqrt(3).
    found = progress.Mean.of([1.0, 2.0, 3.0])
    assert (found.mean, found.deviation) == (2.0, 1.0)
    assert found.half_width == pytest.approx(2.484, abs=5e-4)
    assert progress.Mean.of([0.5]).half_width is None
    assert progress.Mean.of([0.5, None]).mean is None


def test_a_difference_is_paired_over_the_seeds_that_both_have() -> None:
    found = statistics.paired({0: 0.5, 1: 0.7, 2: 0.9}, {1: 0.4, 2: 0.4, 3: 0.1})
    assert found == pytest.approx({1: 0.3, 2: 0.5})
    # The deviation of 0.3 and 0.5 is sqrt(0.02): half the interval is 12.706 sqrt(0.02 / 2).
    (pair,) = statistics.compared({"a": {0: 0.5, 1: 0.7, 2: 0.9}, "b": {1: 0.4, 2: 0.4, 3: 0.1}})
    assert pair.seeds == [1, 2]
    assert pair.half_width == pytest.approx(1.2706, abs=5e-5)
    assert statistics.paired({0: 0.5}, {1: 0.5}) == {}


def test_a_paired_test_follows_students_t_and_counts_signs() -> None:
    found = statistics.tested([0.01, 0.02, 0.03])
    # t = 0.02 / (0.01 / sqrt(3)) = sqrt(12); with two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert (found.higher, found.lower) == (3, 0)
    mixed = statistics.tested([0.02, -0.02, 0.0])
    assert (mixed.higher, mixed.lower, mixed.p) == (1, 1, 1.0)
    assert mixed.seeds_needed is None


def test_holm_multiplies_the_smallest_p_by_all_tests_and_never_falls_below_one_before() -> None:
    # Sorted 0.01, 0.03, 0.04: 3 * 0.01, then 2 * 0.03, then 0.04, which is not below 0.06; None is no test.
    assert statistics.holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert statistics.holm([0.9, 0.6]) == [1.0, 1.0]


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_gpower(effect: float, seeds: int) -> None:
    # G*Power 3.1: difference between two dependent means, two tails, alpha 0.05, power 0.8.
    assert statistics.seeds_needed(-effect, 1.0) == seeds
    assert statistics.power(effect, seeds - 1) < 0.8 <= statistics.power(effect, seeds)


# --- of a sweep's rows, and their tables ------------------------------------------------------------------------------


def run(accuracy: float, best: float, seconds: float = 10.0) -> Trail:
    """Two rounds: the best accuracy is reached at the end of the first."""
    first = ProgressPoint(1, seconds / 2, 100, 0.0, best, best, 3.0)
    return Trail([first, ProgressPoint(2, seconds, 200, 0.0, accuracy, best, 6.0)])


CURVES = {
    "method=fedavg": {0: run(0.80, 0.82, 10.0), 1: run(0.82, 0.84, 12.0), 2: run(0.84, 0.85, 14.0)},
    "method=fedbr": {0: run(0.79, 0.79), 1: run(0.80, 0.86), 2: run(0.81, 0.90)},
}


def found(targets: tuple[float, ...] = (0.82,)) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "method": name.removeprefix("method="),
            "settings": {"method": name.removeprefix("method="), "train.lr": "0.1"},
            **statistics.over_seeds(runs, targets).plain(),
        }
        for name, runs in CURVES.items()
    ]
    return {"rows": rows, "targets": list(targets), "tests": to_builtins(statistics.tests(CURVES, targets))}


def read() -> tables.SweepResult:
    return tables.read(found())


def test_accuracies_have_mean_interval_and_deviation_per_row() -> None:
    (table, *_) = tables.tables(read())
    assert table.texts == [
        ["1 fedavg lr=0.1", "82.0 ± 5.0 %", "2.00 %", "83.7 ± 3.8 %", "1.53 %", "3"],
        ["2 fedbr lr=0.1", "80.0 ± 2.5 %", "1.00 %", "85.0 ± 13.8 %", "5.57 %", "3"],
    ]


def test_the_numbers_for_csv_have_a_column_per_setting_and_ends_of_intervals() -> None:
    first, second = csv.DictReader(StringIO(numbers(tables.numbers(found()))))
    assert [first[key] for key in ("method", "train.lr", "seeds", "reached_0.82")] == ["fedavg", "0.1", "3", "3"]
    assert float(first["accuracy_low"]) == pytest.approx(0.82 - 0.04968, abs=1e-5)
    assert (second["reached_0.82"], second["bytes_to_0.82_mean"]) == ("2", "")
    names, pairs = tables.pair_numbers(read().tests)
    assert dict(zip(names, pairs[0], strict=True))["seeds_needed"] == 5
    assert len(pairs) == 5


def test_a_last_row_that_is_no_round_counts_as_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    two_rows = property(lambda folder: run(0.8, 0.8))  # the second of them is cut
    monkeypatch.setattr(RunFolder, "trail", two_rows)
    swept = plan(grid_of("digits", ["method=fedavg,fedbr"]), seeds=2)
    found = swept.trails([{"name": "fedavg-seed0", "run_dir": "a", "rounds": 1}])
    assert [list(by_seed) for by_seed in found.values()] == [[0]]
    row: Any = statistics.over_seeds(found[swept.rows[0].name], (0.8,)).plain()
    assert (row["rounds"]["values"], row["to_target"][0]["rounds"]["values"]) == ([1.0], [1.0])
    assert row["virtual_seconds"]["values"] == [10.0]
