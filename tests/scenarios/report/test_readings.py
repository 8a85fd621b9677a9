"""Readings of a run's progress: at its end, at a target, within a budget, and over seeds."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.report import readings
from scenarios.report.readings import Reading, until, within
from scenarios.run.progress import ProgressPoint, Trail


def trail(*accuracies: float | None) -> Trail:
    """A run with 10 s, 1 kB, 1.2 kB nominal and 2 J to a round."""
    best = [max([0.0, *filter(None, accuracies[: index + 1])]) for index in range(len(accuracies))]
    return tuple(
        ProgressPoint(count, 10.0 * count, 1000 * count, 1200.0 * count, accuracy, best[count - 1], 2.0 * count)
        for count, accuracy in enumerate(accuracies, start=1)
    )


RUN = trail(0.2, 0.6, None, 0.5)


@pytest.mark.parametrize(
    ("reading", "heading", "value"),
    [
        (readings.ACCURACY, "accuracy, final", 0.5),
        (readings.BEST, "accuracy, best", 0.6),
        (readings.VIRTUAL_SECONDS.reading, "virtual time", 40.0),
        (readings.BYTES.reading, "bytes", 4000.0),
        (readings.NOMINAL_BYTES.reading, "nominal", 4800.0),
        (readings.ENERGY.reading, "energy", 8.0),
        (readings.ROUNDS.reading, "rounds", 4.0),
        (until(readings.BYTES, 0.55), "bytes to 55 %", 2000.0),
        (until(readings.ENERGY, 0.1), "energy to 10 %", 2.0),
        (until(readings.ROUNDS, 0.7), "rounds to 70 %", None),
        (within(readings.BYTES, 3500.0), "accuracy at 3.5 kB", 0.6),
        (within(readings.VIRTUAL_SECONDS, 60.0), "accuracy at 1 min", 0.5),
        (within(readings.ROUNDS, 1.0), "accuracy at 1 rounds", 0.2),
        (within(readings.BYTES, 10.0), "accuracy at 10 B", None),
    ],
)
def test_a_reading_is_a_number_of_a_run(reading: Reading[Any], heading: str, value: float | None) -> None:
    assert (reading.heading, reading.value(RUN)) == (heading, value)


def test_a_run_without_rounds_has_spent_nothing_and_has_no_accuracy() -> None:
    assert readings.BYTES.reading.value(()) == 0.0
    assert readings.BEST.value(()) is None


def test_over_seeds_a_mean_needs_the_value_of_every_seed() -> None:
    # 40 s and 20 s: mean 30, deviation 14.14, half width 12.706 x 14.14 / sqrt(2) = 127.06.
    found = readings.VIRTUAL_SECONDS.reading.over_seeds([RUN, trail(0.1, 0.2)])
    assert (found["mean"], found["values"]) == (30.0, [40.0, 20.0])
    assert found["half_width"] == pytest.approx(127.06, abs=0.01)
    found = until(readings.BYTES, 0.6).over_seeds([RUN, trail(0.1, 0.2)])
    assert (found["mean"], found["half_width"], found["values"]) == (None, None, [2000.0, None])


def test_a_reading_of_a_part_is_one_of_the_whole_where_there_is_such_a_part() -> None:
    of_folder: Reading[str] = readings.BEST.of({"a": RUN}.get)
    assert (of_folder.heading, of_folder.value("a"), of_folder.value("b")) == ("accuracy, best", 0.6, None)
