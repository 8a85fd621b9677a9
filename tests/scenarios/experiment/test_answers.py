"""What a sweep says of its rows: the amount that was asked for, each test with one value, and clients over seeds."""

from __future__ import annotations

import pytest

from scenarios.experiment import statistics, sweep_tables
from tests.scenarios.sweeps import result_of_sweep


def test_the_answer_is_about_what_was_asked_and_says_what_the_seeds_carry() -> None:
    time, nbytes = sweep_tables.answer(sweep_tables.read(result_of_sweep()))
    assert time == (
        "2 fast has the lowest virtual time to 90 %: 20.8 ± 2.6 s. The paired tests tell it from the other row."
    )
    assert nbytes.startswith("2 fast has the lowest bytes to 90 %: ")


def test_a_test_has_one_value_wherever_it_is_shown() -> None:
    values = {
        "a": {0: 1.0, 1: 1.2, 2: 0.9},
        "b": {0: 2.0, 1: 2.1, 2: 2.3},
        "c": {0: 1.1, 1: 1.0, 2: 1.3},
    }
    pairs = statistics.compared(values)
    of_all = {(pair.a, pair.b): pair.p_holm for pair in pairs}
    against = statistics.against(pairs, "b")
    assert against["a"].p_holm == of_all["a", "b"]
    assert against["c"].p_holm == of_all["b", "c"]


def test_clients_are_compared_over_seeds_in_tables_and_files() -> None:
    result = result_of_sweep(fairness=True)
    (table,) = [each for each in sweep_tables.tables(sweep_tables.read(result)) if each.title == "accuracy of clients"]
    assert table.texts == [
        ["1 slow", "80.00 ± 0.00 %", "51.0 ± 2.5 %", "10.00 ± 0.00 %"],
        ["2 fast", "80.00 ± 0.00 %", "61.0 ± 4.3 %", "10.00 ± 0.00 %"],
    ]
    numbers = sweep_tables.numbers(result)
    assert numbers.header[3:6] == ["clients_accuracy", "worst_decile", "spread"]


def test_rows_without_values_of_clients_are_left_as_they_are() -> None:
    assert statistics.over_clients({"a": [{"clients_accuracy": 0.5}, {}], "b": []}) == {}


@pytest.mark.parametrize("title", ["accuracy", "until accuracy 90 %"])
def test_the_best_round_is_said_to_be_flattered(title: str) -> None:
    (table,) = [each for each in sweep_tables.tables(sweep_tables.read(result_of_sweep())) if each.title == title]
    assert (sweep_tables.BEST_OF_ROUNDS in table.notes) == (title == "accuracy")
