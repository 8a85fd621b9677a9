"""What a run has recorded of itself before its first round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios.run.host import Host
from scenarios.run.metadata import environment
from scenarios.run.setup import Setup
from tests.edge.protocol.mutations import DESCRIPTION as PROFILE
from tests.toy import loaded

FOUR = ["raspberry-pi-5", "phone-mid", "phone-mid", "raspberry-pi-5"]


@pytest.mark.parametrize(
    ("how", "by_device"),
    [
        ({"fleet": {"devices": FOUR}}, {}),
        (
            {"evaluation": {"on": "clients"}, "fleet": {"devices": FOUR}},
            {"raspberry-pi-5": [0, 3], "phone-mid": [1, 2]},
        ),
        ({"evaluation": {"on": "both"}, "fleet": {"devices": {"raspberry-pi-4": 1.0}}}, {}),
    ],
    ids=["no client is evaluated", "two kinds of devices", "one"],
)
def test_the_devices_of_clients_are_recorded_where_accuracies_can_be_grouped_by_them(
    how: dict[str, Any], by_device: dict[str, list[int]], tmp_path: Path
) -> None:
    """Also of clients that never take part, of whom the ledger has no visit."""
    found = environment(Setup.of(loaded(**how), PROFILE), Host(tmp_path, 1, "cpu"), {}, True, {})
    assert found.clients_by_device == by_device


def test_the_aggregators_of_clients_are_recorded_in_runs_with_tiers(tmp_path: Path) -> None:
    with_tiers = loaded(fleet={"tiers": {"count": 2, "assign": "place"}})
    found = environment(Setup.of(with_tiers, PROFILE), Host(tmp_path, 1, "cpu"), {}, True, {})
    assert found.aggregator_of == [0, 0, 1, 1]
    assert found.tables()["tiers"] == [{"devices": ["raspberry-pi-4"] * 2, "networks": ["broadband"] * 2}]
    without = environment(Setup.of(loaded(), PROFILE), Host(tmp_path, 1, "cpu"), {}, True, {}).tables()
    assert not {"aggregator_of", "tiers"} & without.keys()
    assert "aggregators" not in without["bases"]
