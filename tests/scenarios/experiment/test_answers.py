"""What a sweep says of its rows: the amount that was asked for, each test with one value, and clients over seeds."""

from __future__ import annotations

from scenarios.experiment import sweep_tables
from tests.scenarios.sweeps import result_of_sweep


def test_the_answer_is_about_what_was_asked_and_says_what_the_seeds_carry() -> None:
    time, nbytes = sweep_tables.answer(sweep_tables.read(result_of_sweep()))
    assert time == (
        "2 fast has the lowest virtual time to 90 %: 20.8 ± 2.6 s. The paired tests tell it from the other row."
    )
    assert nbytes.startswith("2 fast has the lowest bytes to 90 %: ")


def test_clients_are_compared_over_seeds_in_tables_and_files() -> None:
    result = result_of_sweep(fairness=True)
    (table,) = [each for each in sweep_tables.tables(sweep_tables.read(result)) if each.title == "accuracy of clients"]
    assert table.texts == [
        ["1 slow", "80.00 ± 0.00 %", "51.0 ± 2.5 %", "10.00 ± 0.00 %"],
        ["2 fast", "80.00 ± 0.00 %", "61.0 ± 4.3 %", "10.00 ± 0.00 %"],
    ]
    numbers = sweep_tables.numbers(result)
    assert numbers.header[3:6] == ["clients_accuracy", "worst_decile", "spread"]
