"""What messages between aggregators and what is above them took, by link, by round and to the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.run import aggregators
from scenarios.run.aggregators import LinkTotals
from scenarios.run.run_folder import RunFolder
from tests.ledgers import made_run, message_row

SCENARIO = 'method = "fedavg"\nseed = 0\n'


MESSAGES = [
    message_row(0, 0, 0, "down", 0.0, 1.0),
    message_row(0, 0, 1, "down", 0.0, 2.0),
    message_row(1, 0, 0, "up", 15.0, 16.0, 4000),
    message_row(1, 0, 1, "up", 15.0, None, 500),
]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Three rounds, of which the last has no message; the target of 50 % is reached in the second."""
    return RunFolder(made_run(tmp_path / "run", (0.2, 0.5, 0.6), SCENARIO, aggregators=MESSAGES))


def test_messages_are_added_up_by_tier_and_direction_and_a_lost_one_has_no_seconds(run: RunFolder) -> None:
    assert run.links == [
        LinkTotals(0, "down", 2, 0, 2000, 3.0, 0.5, 4.0, 6.0, pytest.approx(0.002)),  # type: ignore[arg-type]
        LinkTotals(0, "up", 2, 1, 4500, 1.0, 0.5, 4.0, 6.0, pytest.approx(0.0045)),  # type: ignore[arg-type]
    ]
    assert aggregators.by_aggregator(run.query) == {
        (0, 0): {"down": 1000, "up": 4000},
        (0, 1): {"down": 1000, "up": 500},
    }


def test_running_totals_have_what_is_above_clients_beside_what_clients_took(run: RunFolder) -> None:
    assert [(point.nbytes, point.wan_nbytes, point.aggregator_joules) for point in run.trail] == [
        (1000, 2000, 10.0),
        (2000, 6500, 20.0),
        (3000, 6500, 20.0),
    ]
    assert [point.price for point in run.trail] == pytest.approx([0.002, 0.0065, 0.0065])


def test_a_summary_has_the_totals_and_what_was_spent_until_the_target(run: RunFolder) -> None:
    found = aggregators.summary(run.links, run.trail.until(0.2))
    assert found is not None
    assert found["links"][1]["nbytes"] == 4500
    assert {key: value for key, value in found.items() if key != "links"} == {
        "wan_bytes": 6500,
        "messages": 4,
        "lost": 1,
        "contention_seconds": 1.0,
        "joules": 8.0,
        "idle_joules": 12.0,
        "price": pytest.approx(0.0065),
        "wan_bytes_to_target": 2000,
        "joules_to_target": 10.0,
        "price_to_target": pytest.approx(0.002),
        "accuracy": None,
    }
    missed = aggregators.summary(run.links, run.trail.until(0.9))
    assert missed is not None
    assert (missed["wan_bytes_to_target"], missed["joules_to_target"], missed["price_to_target"]) == (None, None, None)
