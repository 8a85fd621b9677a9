"""Reports of runs with tiers: the tree, tables, timelines, and accuracies against WAN bytes and price."""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from coordinator.records.schema import AggregatorRow, EvaluationRow
from scenarios.report import curves, html, plot_style, result_tables, round_figures, terminal, tier_figures
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun, grouped, open_runs
from scenarios.report.tier_figures import TreeNode
from scenarios.run import aggregators, client_values, visits
from scenarios.run.environment import Environment, TierRecord
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


def test_aggregators_of_the_lowest_tier_are_below_those_above_them_in_turn(tmp_path: Path) -> None:
    messages = [
        message_row(0, tier, number, "down", 0, 1) for tier, count in ((1, 2), (0, 5)) for number in range(count)
    ]
    (two,) = open_runs([recorded(tmp_path / "two", TWO_TIERS, messages, [0, 1, 2, 3, 4])])
    root = tier_figures.tree(two)
    assert [(node.name, node.down, [inner.name for inner in node.below]) for node in root.below] == [
        ("no. 0", 1000, ["no. 0", "no. 2", "no. 4"]),
        ("no. 1", 1000, ["no. 1", "no. 3"]),
    ]
    assert (root.leaves, root.below[0].below[0].below[0].name) == (5, "1 client")


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


def test_messages_of_aggregators_count_under_the_basis_of_their_networks(run: RecordedRun) -> None:
    bases: dict[str, Any] = {
        "devices": {"pi": {"compute": "read"}},
        "networks": {"lte": {"down": "read", "up": "read"}},
        "aggregators": {"lte": {"down": "assumed", "up": "derived"}, "wan": {"down": "assumed", "up": "inference"}},
    }
    tiers = [TierRecord(devices=["pi", "pi"], networks=["lte", "wan"])]
    # Visits take 4, 8 and 4 s; aggregators 2 + 2 + 1 s down, no. 0 1 s up, no. 1 2 s; what was lost has no seconds.
    assert visits.seconds_by_basis(run.query, Environment(bases=bases, tiers=tiers)) == pytest.approx(
        {"read": 4 + 8 + 4, "assumed": 5.0, "derived": 1.0, "inference": 2.0}
    )
    del bases["aggregators"]["wan"]
    assert visits.seconds_by_basis(run.query, Environment(bases=bases, tiers=tiers)) is None


def test_the_terminal_has_a_line_of_what_is_above_clients_and_what_the_target_took(run: RecordedRun) -> None:
    summary = {
        "method": "fedavg", "run_dir": str(run.folder), "seed": 0, "target_accuracy": 0.6, "accuracy": 0.6,
        "best_accuracy": 0.6, "rounds": 2, "time_to_target_s": 20.0, "bytes_to_target": 2000, "virtual_seconds": 20.0,
        "bytes_down": 1000, "bytes_up": 1000, "flops": 2e6, "joules": 20.0, "wasted_bytes": 0, "bottlenecks": {},
        "wall_seconds": 3.0, "stopped_by": "rounds", "model_sha256": "ab", "nominal_bytes": 0, "nominal_flops": 0,
        "aggregators": aggregators.summary(run.links, run.trail[1]),
    }  # fmt: skip
    alone = dict(terminal.run_rows([summary]))
    assert alone["above clients (WAN)"] == ["7.5 kB, 30 J, price 0.0075"]
    assert (alone["WAN bytes to it"], alone["price to it"]) == (["7.5 kB"], ["0.0075"])
    own = aggregators.summary(run.links, None, {1: client_values.over_clients([0.2, 0.6])})
    evaluated = dict(terminal.run_rows([summary | {"aggregators": own}, summary]))
    assert evaluated["aggregators, mean"] == ["40.00 %", "-"]
    assert evaluated["aggregators, lowest"] == ["20.00 %", "-"]


# --- models of aggregators --------------------------------------------------------------------------------------------

OWN = [
    EvaluationRow(round, -1, metric, value, 100, aggregator=index)
    for round, values in ((0, (0.1, 0.3)), (1, (0.2, 0.6)))
    for index, value in enumerate(values)
    for metric in ("accuracy", "loss")
]


def test_own_models_of_aggregators_are_shown_beside_the_server_s(folder: Path, tmp_path: Path) -> None:
    evaluated = made_run(
        tmp_path / "own", (0.5, 0.7), ONE_TIER.format(seed=0, count=2), VISITS, aggregators=MESSAGES, evaluations=OWN
    )
    run, without = open_runs([evaluated, folder])
    found = aggregators.summary(
        run.links, None, client_values.of_aggregators(run.evaluations), client_values.of_global([], run.rounds)
    )
    assert found is not None
    # Of 20 and 60 %: a mean of 40 %, 20 % from either.
    expected = {"rounds": 2, "server": 0.7, "mean": 0.4, "lowest": 0.2, "highest": 0.6, "spread": 0.2}
    assert found["accuracy"] == pytest.approx(expected)
    table = result_tables.of_aggregators([run, without])
    assert table is not None
    assert (table.header[1:], table.texts) == (
        ["rounds", "server", "mean", "lowest", "highest", "spread"],
        [[run.label, "2", "70.00 %", "40.00 %", "20.00 %", "60.00 %", "20.00 %"]],
    )
    assert result_tables.of_aggregators([without]) is None
    assert client_values.whole_by_round(run.evaluations) == {}  # no metrics of the global model

    with matplotlib.rc_context(plot_style.STYLE):
        figure = tier_figures.aggregator_values(ShownRuns(grouped([run, without])))
        assert tier_figures.aggregator_values(ShownRuns(grouped([without]))) is None
    assert figure is not None
    lines = [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in figure.axes[0].get_lines()]
    assert [(x.tolist(), y.tolist()) for x, y in lines] == [([1, 2], [20, 40]), ([1, 2], [50, 70])]
    with brief_figures("aggregator_values"):
        page = html.build([evaluated], tmp_path / "report.html", "Own models").read_text()
    assert 'id="aggregator_values-caption"' in page


# --- curves and timelines ---------------------------------------------------------------------------------------------


def test_accuracy_is_drawn_against_wan_bytes_and_price_of_the_runs_that_have_tiers(
    folder: Path, tmp_path: Path
) -> None:
    plain = made_run(tmp_path / "plain", (0.2, 0.6), PLAIN.format(seed=0))
    figure = curves.accuracy(ShownRuns(grouped(open_runs([folder, plain]))))
    assert figure is not None
    titles = [axes.get_title() for axes in figure.axes]
    rest = ["Against WAN bytes", "Against price"]
    assert titles == ["Against rounds", "Against virtual time", "Against bytes moved", *rest]
    drawn = [[np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()] for axes in figure.axes[3:]]
    # 1 + 1 + 1 + 3 kB in the first round, 1.5 in the second; the run without tiers has no line.
    assert drawn[0] == [[6.0, 7.5], []]
    assert drawn[1][0] == pytest.approx([0.006, 0.0075])
    alone = curves.accuracy(ShownRuns(grouped(open_runs([plain]))))
    assert alone is not None
    assert len(alone.axes) == 3


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
    assert round_figures.parts(run, run.query(round_figures.CRITICAL)).tolist() == [[1.5, 1.5, 1, 2, 1, up]]
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
