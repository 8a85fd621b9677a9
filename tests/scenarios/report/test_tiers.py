"""Reports of runs with tiers: the tree, tables, times of rounds, and messages of aggregators in files."""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.schema import AggregatorRow
from scenarios.report import html, result_tables, round_figures, tier_figures
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun, grouped, open_runs
from scenarios.report.tier_figures import TreeNode
from tests.brief import brief_figures
from tests.ledgers import made_run, message_row, visit_row

PLAIN = 'method = "fedavg"\nseed = {seed}\n[data]\nclients = 5\n'
ONE_TIER = PLAIN + "[fleet.tiers]\ncount = {count}\n"
TWO_TIERS = ONE_TIER + "[fleet.tiers.above]\ncount = 2\n"
# Clients 0, 1 and 4 with aggregators 0 and 1 of 2; client 1 has two visits, and aggregator 1 no message in round 1.
VISITS = [
    visit_row(0, 0, 0, 2, 3, 5, 6),
    visit_row(1, 0, 1, 2, 4, 8, 10),
    visit_row(2, 1, 1, 12, 13, 15, 16, kind="lost"),
]
MESSAGES = [
    message_row(0, 0, 0, "down", -1, 1),
    message_row(0, 0, 1, "down", 0, 2),
    message_row(0, 0, 0, "up", 6, 7),
    message_row(0, 0, 1, "up", 8, 10, 3000),
    message_row(1, 0, 0, "down", 10, 11),
    message_row(1, 0, 0, "up", 18, None, 500),
]


def recorded(
    folder: Path, scenario: str, messages: Sequence[AggregatorRow], aggregator_of: Sequence[int], seed: int = 0
) -> Path:
    """A run of two rounds with 20 % and 60 %."""
    text = scenario.format(seed=seed, count=len(set(aggregator_of)))
    made_run(folder, (0.2, 0.6), text, VISITS, aggregators=messages)
    environment = {"blocks": [], "partition": {}, "aggregator_of": list(aggregator_of)}
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recorded(tmp_path / "tiers", ONE_TIER, MESSAGES, [0, 1, 0, 1, 0])


@pytest.fixture
def run(folder: Path) -> RecordedRun:
    return open_runs([folder])[0]


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_the_tree_has_the_bytes_of_each_link_and_clients_at_their_aggregators(run: RecordedRun) -> None:
    # A visit has 500 bytes down and 500 up.
    assert tier_figures.tree(run) == TreeNode(
        "server",
        below=[
            TreeNode("no. 0", 2000, 1500, [TreeNode("3 clients", 500, 500)]),
            TreeNode("no. 1", 1000, 3000, [TreeNode("2 clients", 1000, 1000)]),
        ],
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_row_per_link_has_messages_bytes_seconds_energy_and_price(run: RecordedRun) -> None:
    table = result_tables.by_link([run])
    assert table is not None
    assert table.header == [
        *("method", "link", "messages", "lost", "bytes down", "bytes up", "seconds", "contention", "joules"),
        *("waiting", "price"),
    ]
    # Visits: down 1 + 2 + 1 s, up 1 + 2 + 1 s, 0.25 + 1.25 J of messages and 0.5 J idle each.
    assert table.texts == [
        *[["fedavg", "clients – tier 0", "6", "1", "1.5 kB", "1.5 kB", "8 s", "0.0 s", "4.5 J", "1.5 J", "–"]],
        *[["fedavg", "tier 0 – server", "6", "1", "3.0 kB", "4.5 kB", "8 s", "1.5 s", "12.0 J", "18.0 J", "0.0075"]],
    ]


# --- curves and timelines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", [ONE_TIER, TWO_TIERS], ids=["one tier", "two"])
def test_the_time_of_a_round_has_the_messages_before_and_after_its_critical_visit_as_parts(
    scenario: str, tmp_path: Path
) -> None:
    # Aggregator 2 has client 0, whose visit takes seconds 13 to 17 of the round from 10 to 20; it is below number 0.
    visited = [visit_row(0, 1, 0, 13, 14, 16, 17)]
    messages = [
        message_row(0, 0, 2, "down", 9, 11.5),  # began in the round before
        message_row(1, 0, 2, "up", 17, 19),
        message_row(1, 0, 1, "up", 17, 20),  # another's
    ]
    if scenario == TWO_TIERS:
        messages += [message_row(1, 1, 0, "up", 19, 19.5), message_row(1, 1, 1, "up", 19, 20)]
    folder = made_run(tmp_path / "run", (0.2, 0.6), scenario.format(seed=0, count=3), visited, aggregators=messages)
    (folder / "environment.json").write_text(json.dumps({"blocks": [], "partition": {}, "aggregator_of": [2, 1, 0]}))
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("UPDATE rounds SET critical = 0 WHERE round = 1")
        db.commit()
    (run,) = open_runs([folder])

    up = 2.5 if scenario == TWO_TIERS else 2
    # Down from 10 on, waiting, then the visit, then up.
    assert round_figures.parts(run, run.query(round_figures.CRITICAL)).tolist() == [[1.5, 1.5, 1, 2, 0, 1, up]]
    figure = round_figures.timing(ShownRuns(grouped([run])))
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("WAN down", "waiting for clients", "download", "compute", "upload", "WAN up"),
        "mean waiting time of the others",
    ]


# --- the page and its files -------------------------------------------------------------------------------------------


def test_a_page_has_the_section_of_tiers_and_the_messages_are_a_table_beside_it(folder: Path, tmp_path: Path) -> None:
    with brief_figures("tiers"):
        text = html.build([folder], tmp_path / "report.html", "Tiers").read_text()
    assert '<section id="tiers">' in text
    assert 'id="tiers-caption"' in text
    assert "tier 0 – server" in text
    assert "aggregator_of" not in text
    html.csv_table([folder], tmp_path / "rounds.csv")
    rows: list[dict[str, Any]] = list(csv.DictReader((tmp_path / "rounds-aggregators.csv").read_text().splitlines()))
    assert [(row["round"], row["direction"], row["nbytes"]) for row in rows[2:4]] == [
        ("0", "up", "1000"),
        ("0", "up", "3000"),
    ]
    rounds = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert [row["wan_bytes_so_far"] for row in rounds] == ["6000", "7500"]
    plain = made_run(tmp_path / "plain", (0.5,), PLAIN.format(seed=0))
    with brief_figures("tiers"):
        assert '"tiers"' not in html.build([plain], tmp_path / "plain.html", "Plain").read_text()
    html.csv_table([plain], tmp_path / "plain.csv")
    assert "wan_bytes" not in (tmp_path / "plain.csv").read_text()
