"""The best round of a run: which one it is, and what the run had then."""

from __future__ import annotations

from typing import Any

from coordinator.records.schema import EvaluationRow, RoundRow
from scenarios.run.client_values import (
    BestRound,
    ClientSummary,
    DeviceSummary,
    at_round,
    before_and_after,
    best_round,
    by_device,
    by_rate,
    summary,
)


def round_row(number: int, accuracy: float | None) -> RoundRow:
    """Ten seconds and 4 MB."""
    zeros: dict[str, Any] = dict.fromkeys(RoundRow._fields, 0)
    times: dict[str, Any] = {"round": number, "start_s": 10.0 * number, "end_s": 10.0 * (number + 1)}
    times |= {"accuracy": accuracy, "score": None}
    return RoundRow(**{**zeros, **times, "bytes_down": 2_000_000, "bytes_up": 2_000_000})


def values(round: int, name: str, *of_clients: float, kind: str | None = None) -> list[EvaluationRow]:
    return [EvaluationRow(round, client, name, value, 4, kind=kind) for client, value in enumerate(of_clients)]


# Clients gain from adaptation; validation is best after rounds 1 and 2, the test examples after round 3.
MEASURED = [
    [*values(0, "accuracy", 0.5, 0.25), *values(0, "accuracy", 0.25, 0.25, kind="before")],
    [*values(1, "accuracy", 1.0, 0.5), *values(1, "accuracy", 0.5, 0.75, kind="before")],
    [*values(2, "accuracy", 0.75, 0.5), *values(2, "accuracy", 0.5, 0.5, kind="before")],
    [*values(3, "accuracy", 1.0, 0.75), *values(3, "accuracy", 0.5, 0.5, kind="before")],
]
VALIDATION = [(0.5, 0.25), (0.75, 0.5), (0.5, 0.75), (0.25, 0.75)]
ROUNDS = [round_row(n, accuracy) for n, accuracy in enumerate((0.375, 0.75, 0.625, 0.875))]


def test_the_first_of_equally_good_rounds_on_validation_examples_is_the_best() -> None:
    every = [row for rows in MEASURED for row in rows]
    every += [row for n, pair in enumerate(VALIDATION) for row in values(n, "accuracy", *pair, kind="validation")]
    assert best_round(ROUNDS, every, 4) == BestRound(
        round=1,
        rounds=2,
        selected_by="validation",
        accuracy=0.75,
        score=0.75,
        virtual_seconds=20.0,
        bytes=8_000_000,
        validation_score=0.625,
        clients_score=0.75,
        before_score=0.625,
        worst_decile=0.5,
        spread=0.25,
    )
    assert before_and_after(every, 1) == [(0.5, 1.0), (0.75, 0.5)]


DEVICES = {"phone": [0, 3], "watch": [1, 2, 4], "tablet": [5]}


def test_accuracies_of_clients_are_grouped_by_their_devices_at_any_round() -> None:
    """Client 4 has a value after round 0 alone, and client 5, the only tablet, none."""
    rows = [*values(0, "accuracy", 0.5, 0.25, 0.0, 1.0, 0.5), *values(1, "accuracy", 0.75, 0.5, 0.25, 0.25)]
    rows += [EvaluationRow(1, -1, "accuracy", 0.125, 360), *values(1, "loss", 9.0, 9.0)]
    found = by_device(rows, DEVICES)
    assert {device: {round: of.values for round, of in rounds.items()} for device, rounds in found.items()} == {
        "phone": {0: (0.5, 1.0), 1: (0.25, 0.75)},
        "watch": {0: (0.0, 0.25, 0.5), 1: (0.25, 0.5)},
    }
    assert list(at_round(found, 0)) == list(at_round(found)) == ["phone", "watch"]
    assert at_round(found)["watch"].mean == 0.375
    assert at_round(found, 7) == at_round({}) == {}
    spread = ((0.3125**2 + 0.0625**2 + 2 * 0.1875**2) / 4) ** 0.5
    kinds = {"phone": DeviceSummary(2, 0.5, 0.25, 0.25), "watch": DeviceSummary(2, 0.375, 0.25, 0.125)}
    assert summary(rows, found) == ClientSummary(0.4375, 0.25, spread, kinds)
    assert summary(rows) == ClientSummary(0.4375, 0.25, spread)


def test_parts_of_the_global_model_have_a_curve_each_beside_the_whole() -> None:
    rows = [
        EvaluationRow(round, -1, name, value, 360, rate=rate)
        for round, rate, name, value in (
            (0, 0.5, "accuracy", 0.25),
            (0, 0.5, "loss", 2.0),
            (2, 0.5, "accuracy", 0.5),
            (2, 0.25, "accuracy", 0.125),
        )
    ]
    rounds = [round_row(0, 0.375), round_row(1, None), round_row(2, 0.625)]
    parts = {0.5: {0: 0.25, 2: 0.5}, 0.25: {2: 0.125}}
    assert by_rate(rows, rounds) == {1.0: {0: 0.375, 2: 0.625}, **parts}
    # Rounds have the clients' accuracies where these are a method's own; the global model's are values then.
    own = EvaluationRow(2, -1, "accuracy", 0.75, 360)
    assert by_rate([own, *rows], rounds) == {1.0: {2: 0.75}, **parts}
    assert by_rate([own], rounds) == by_rate(values(0, "accuracy", 0.5), rounds) == {}
