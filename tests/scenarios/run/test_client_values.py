"""The best round of a run: which one it is, and what the run had then."""

from __future__ import annotations

from typing import Any

from coordinator.records.schema import EvaluationRow, RoundRow
from scenarios.run.client_values import BestRound, before_and_after, best_round


def round_row(number: int, accuracy: float | None) -> RoundRow:
    """Ten seconds and 4 MB."""
    zeros: dict[str, Any] = dict.fromkeys(RoundRow._fields, 0)
    times = {"round": number, "start_s": 10.0 * number, "end_s": 10.0 * (number + 1), "accuracy": accuracy}
    return RoundRow(**{**zeros, **times, "bytes_down": 2_000_000, "bytes_up": 2_000_000})


def values(round: int, name: str, *of_clients: float) -> list[EvaluationRow]:
    return [EvaluationRow(round, client, name, value, 4) for client, value in enumerate(of_clients)]


# Clients gain from adaptation; validation is best after rounds 1 and 2, the test examples after round 3.
MEASURED = [
    [*values(0, "accuracy", 0.5, 0.25), *values(0, "before/accuracy", 0.25, 0.25)],
    [*values(1, "accuracy", 1.0, 0.5), *values(1, "before/accuracy", 0.5, 0.75)],
    [*values(2, "accuracy", 0.75, 0.5), *values(2, "before/accuracy", 0.5, 0.5)],
    [*values(3, "accuracy", 1.0, 0.75), *values(3, "before/accuracy", 0.5, 0.5)],
]
VALIDATION = [(0.5, 0.25), (0.75, 0.5), (0.5, 0.75), (0.25, 0.75)]
ROUNDS = [round_row(n, accuracy) for n, accuracy in enumerate((0.375, 0.75, 0.625, 0.875))]


def test_the_first_of_equally_good_rounds_on_validation_examples_is_the_best() -> None:
    every = [row for rows in MEASURED for row in rows]
    every += [row for n, pair in enumerate(VALIDATION) for row in values(n, "validation/accuracy", *pair)]
    assert best_round(ROUNDS, every, 4) == BestRound(
        round=1,
        rounds=2,
        selected_by="validation",
        accuracy=0.75,
        virtual_seconds=20.0,
        bytes=8_000_000,
        validation_accuracy=0.625,
        clients_accuracy=0.75,
        before_accuracy=0.625,
        worst_decile=0.5,
        spread=0.25,
    )
    assert before_and_after(every, 1) == [(0.5, 1.0), (0.75, 0.5)]


def test_without_validation_examples_the_rounds_own_accuracy_decides() -> None:
    found = best_round(ROUNDS, [], 3)
    assert found is not None
    assert (found.round, found.selected_by, found.accuracy) == (3, "accuracy", 0.875)
    assert found.rounds == 3  # the last row is an evaluation after the last round
    assert (found.validation_accuracy, found.clients_accuracy, found.before_accuracy) == (None, None, None)
    assert best_round([round_row(0, None)], [], 1) is None
