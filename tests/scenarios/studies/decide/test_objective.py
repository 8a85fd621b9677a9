"""What a decision looks for: targets, costs and budgets, and the energy of the busiest device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.rounds.amounts import WAN_BYTES
from scenarios.config.errors import ScenarioError
from scenarios.run.progress import ProgressPoint, Trail, with_devices
from scenarios.studies.decide.objective import Objective, budgets_of, objective_of

TRAIL = Trail(
    ProgressPoint(number, 10.0 * number, 100 * number, 0.0, accuracy, accuracy or 0.0)
    for number, accuracy in ((1, None), (2, 0.6), (3, 0.8), (4, 0.7))
)


def test_a_target_counts_where_it_is_reached_within_the_budgets() -> None:
    free, tight = Objective(0.75, "seconds", {}), Objective(0.75, "seconds", {"bytes": 299})
    assert (free.value(TRAIL), tight.value(TRAIL)) == (30.0, None)
    assert [point.rounds for point in tight.kept(TRAIL)] == [1, 2]
    assert (tight.is_spent(TRAIL), free.is_spent(TRAIL)) == (True, False)


def test_without_a_target_the_last_accuracy_within_the_budgets_counts() -> None:
    wide = Objective(None, "bytes", {"bytes": 400, "seconds": 200})
    assert (wide.value(TRAIL), wide.spent(TRAIL[0])) == (0.7, 0.25)  # 100 of 400 bytes, 10 of 200 s
    assert Objective(None, "bytes", {"bytes": 199}).value(TRAIL) is None


def test_all_bytes_are_wan_bytes_where_there_are_no_aggregators() -> None:
    below = replace(TRAIL[1], wan_nbytes=30)
    assert [WAN_BYTES.spent(point) for point in (TRAIL[1], below)] == [200.0, 30.0]


def test_budgets_have_units_and_the_first_says_what_is_to_be_low() -> None:
    sought = objective_of(0.9, None, budgets_of(['bytes="2 GB"', "joules_per_device=5 Wh", "seconds=8 h"]))
    assert (sought.cost, dict(sought.budgets)) == (
        "bytes",
        {"bytes": 2e9, "joules_per_device": 18_000.0, "seconds": 28_800.0},
    )
    assert sought.text == "least bytes to 90 % within bytes 2 GB, energy of a device 18 kJ, virtual time 8 h"
    assert objective_of(0.9, None, {}).cost == "seconds"
    assert objective_of("90 %", None, {}).target == 0.9


@pytest.mark.parametrize(
    ("target", "cost", "budgets", "message"),
    [
        (None, None, {}, 'name --target 0.9, --budget bytes="2 GB", or both: what decides?'),
        (90.0, None, {}, "--target 90: must be an accuracy above 0 and at most 1, for example 0.9"),
        (0.9, "byte", {}, "--cost 'byte': unknown amount 'byte', did you mean 'bytes'?"),
        (0.9, None, {"joule": "1 J"}, "--budget joule=1 J: unknown amount 'joule', did you mean 'joules'?"),
        (0.9, None, {"bytes": "0 MB"}, "--budget bytes=0 MB: a budget must be above 0"),
    ],
)
def test_what_cannot_be_sought_is_refused(
    target: float | None, cost: str | None, budgets: dict[str, str], message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        objective_of(target, cost, budgets)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["2 GB"], "--budget '2 GB': write an amount and its limit, for example bytes=\"2 GB\""),
        (["bytes=1 MB", "bytes=2 MB"], "--budget 'bytes=2 MB': bytes is named twice"),
    ],
)
def test_words_that_are_no_budgets_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        budgets_of(words)
    assert str(refused.value) == message


def test_the_busiest_device_is_the_client_that_has_spent_the_most_so_far() -> None:
    spent = [(0, 1, 5.0, 10), (0, 2, 7.0, 30), (1, 1, 4.0, 15), (3, 2, 1.0, 5), (3, 1, 0.5, 20)]
    # Client 2 leads with 7 J; then client 1 has 9; and in round 4 it has 9.5, client 2 has 8.
    assert [point.device_joules for point in with_devices(TRAIL, spent)] == [7.0, 9.0, 9.0, 9.5]
    # Client 2 has 30 bytes, then 35; client 1 has 10, 25, and 45 in the end.
    assert [point.device_nbytes for point in with_devices(TRAIL, spent)] == [30, 30, 30, 45]
