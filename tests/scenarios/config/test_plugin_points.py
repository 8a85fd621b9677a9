"""The table of plug-in points: its rows are those of the code that they name."""

from __future__ import annotations

import pytest

from scenarios.config.plugin_points import PLUGIN_POINTS, PluginPoint, own_rows
from scenarios.config.tables import TomlValue
from tests.plugins import optioned

OWN_ROWS = {
    "method": optioned.METHOD,
    "server": optioned.SERVER,
    "rounds.selection": optioned.SELECTION,
    "rounds.policy": optioned.POLICY,
    "train.lr_schedule": optioned.SCHEDULE,
    "data.partition.kind": optioned.PARTITION,
    "eval.metrics": optioned.METRIC,
    "codec.up": optioned.CODEC,
}


@pytest.mark.parametrize("point", PLUGIN_POINTS, ids=lambda point: point.key)
def test_a_point_finds_its_shipped_rows_by_name_and_refuses_those_of_others(point: PluginPoint) -> None:
    assert point.shipped
    for name, row in point.shipped.items():
        assert point.row(name).name == name
        assert point.is_row(row)
    with pytest.raises(ValueError, match=r"did you mean|choose from"):
        point.row("no-such-row")
    assert [key for key, row in OWN_ROWS.items() if point.is_row(row)] == [point.key] * (point.key in OWN_ROWS)


def test_rows_of_the_users_own_are_found_in_stages_in_lists_of_them_and_in_tables_of_both() -> None:
    codec: dict[str, TomlValue] = {
        "up": {"kind": "mine:A", "bits": 4},
        "down": [{"kind": "topk"}, {"kind": "mine:B", "like": "no:NAME"}],
        "up_slots": {"control": {"kind": "mine:C"}, "kind": [{"kind": "mine:D"}], "other": {"kind": "fp16"}},
        "down_slots": {"teacher": ({"kind": "mine:E"},)},
        "of": "update",
    }
    assert own_rows({"codec": codec}) == [
        ("codec.up", "mine:A"),
        ("codec.down", "mine:B"),
        ("codec.up_slots", "mine:C"),
        ("codec.up_slots", "mine:D"),
        ("codec.down_slots", "mine:E"),
    ]
    assert own_rows({"codec": {"up": {"bits": 4}, "down": "sign"}}) == []
