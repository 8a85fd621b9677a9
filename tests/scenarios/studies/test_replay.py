"""``fedbr replay``: a run timed again from its ledger, to the bit what a fresh run would take, or refused."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from coordinator.methods import fedper
from coordinator.records.schema import RoundRow, VisitRow
from coordinator.records.store import evaluations, read
from scenarios.cli import main
from scenarios.config.errors import ReportError
from scenarios.config.load import ScenarioError
from scenarios.config.overrides import parse_all, parsed
from scenarios.studies import replay as study
from scenarios.studies.replay import replay, replayed
from tests.crossed import every
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import run

SLOW_LINK = ("fleet.server.down=3 Mbit/s", "fleet.server.up=2 Mbit/s")
TIERS = ("fleet.tiers={count=4,price=2,above={count=2}}", "tiers.interval=[2,1]")
ONE_BY_ONE = ("fleet.tiers={count=3,price=2}", "fleet.server={down=inf,up=inf}", "tiers.upwards=asynchronous")
DROPOUTS = (
    "fleet.availability.kind=renewal",
    "fleet.availability.on=20 s",
    "fleet.availability.off=20 s",
    "fleet.crashes_per_hour=4000",
)


def test_a_selection_by_losses_is_replayed_and_one_by_times_is_refused(tmp_path: Path) -> None:
    five = ("data.clients=20", "rounds.participants=5", "rounds.max=6")
    by_loss = run(tmp_path, *five, "rounds.selection=power-of-choice")
    fresh = run(tmp_path / "fresh", *five, "rounds.selection=power-of-choice", *SLOW_LINK)
    again = replayed(by_loss, parse_all(SLOW_LINK))
    assert [tuple(row) for row in again.rounds_done] == rows(fresh, "rounds", "round")
    by_time = run(tmp_path, *five, "rounds.selection=oort")
    assert [tuple(row) for row in replayed(by_time).rounds_done] == rows(by_time, "rounds", "round")
    refusal = r"round \d: client \d+ .*selected by oort, whose choice may depend on times and on earlier cohorts"
    with pytest.raises(ScenarioError, match=refusal):
        replayed(by_time, parsed(("fleet.devices.phone-low=1", "fleet.compute_spread=9", "fleet.bandwidth_spread=9")))


def rows(folder: Path, table: str, order: str) -> list[tuple[Any, ...]]:
    kind: type[Any] = {"rounds": RoundRow, "visits": VisitRow}[table]
    columns = ", ".join(kind._fields)
    return [tuple(row) for row in read(folder / "ledger.sqlite", f"SELECT {columns} FROM {table} ORDER BY {order}")]


def assert_same(folder: Path, new: Any) -> None:
    """Every column of every round and visit of the replay is, to the bit, that of the ledger."""
    assert [tuple(row) for row in new.rounds_done] == rows(folder, "rounds", "round")
    again = sorted(new.visits_done, key=lambda row: row.visit)
    assert [tuple(row) for row in again] == rows(folder, "visits", "visit")
    assert [tuple(row) for row in new.evaluations_done] == [*map(tuple, evaluations(folder / "ledger.sqlite"))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def bandit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("bandit"), "method=fedbr", "rounds.max=8")


LAYERS = replace(fedper.SPEC, name="layers", traffic=replace(fedper.SPEC.traffic, by_layer=lambda options: True))
"""FedPer, sent and weighted layer by layer"""


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        replay(folder, parse_all(overrides))
    text, _, command = str(caught.value).partition("; to train anew: ")
    assert command.startswith(f"fedbr run {folder}/scenario.toml"), caught.value
    return text


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    every(
        3,
        [
            ("method=fedmlb+fedprox", "eval.every=3"),
            (f"method={__name__}:LAYERS",),
            ("method=fedbr", "method_options.broadcast=everyone", "method_options.drop=visits"),
            ("method=fedbr", "method_options.drop=exact", "rounds.policy=over_select", "rounds.participants=3"),
            ("rounds.policy=deadline", "rounds.deadline=300 ms", "rounds.min_fraction=0.7"),
            ("rounds.policy=deadline", "rounds.deadline=300 ms", "rounds.on_late=complete"),
            ("fleet.battery=6 J", "budget.client.bytes=900 kB"),
            ("budget.bytes=1.5 MB", "eval.every=5"),
            ("budget.virtual_seconds=1.1 s", "rounds.min_fraction=0"),
            ("stop.patience=1", "train.lr=0", "eval.on=clients", "eval.select=validation", "data.validation=0.2"),
            ("rounds.policy=over_select", "rounds.participants=3", "eval.on=both", *TIERS),
            ('codec.wan={kind="quantize",bits=4}', "budget.wan_bytes=700 kB", *TIERS),
            ("fleet.tiers.count=3", "tiers.interval=500 ms", "rounds.max=6"),
            (
                'codec.wan={kind="quantize",bits=4}',
                "rounds.max=30",
                "budget.wan_bytes=700 kB",
                *ONE_BY_ONE,
                *DROPOUTS,
            ),
        ],
        is_one=True,
    ),
)
def test_on_the_same_fleet_a_replay_is_the_run_to_the_bit(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    folder = run(tmp_path, *overrides)

    assert_same(folder, replayed(folder))


@pytest.mark.parametrize(
    ("method", "overrides"),
    every(
        2,
        [
            (("method=fedavg",), ("fleet.devices={jetson-nano=1.0}", "fleet.bandwidth.kind=ou", "fleet.redraw=0.5")),
            (("method=fedavg", *DROPOUTS), ("fleet.transport.security=tls", "fleet.radio_energy=rate")),
            (("method=fedbr", "method_options.alpha=random"), SLOW_LINK),
            (("method=fedmlb",), ("rounds.policy=deadline", "rounds.deadline=9 s", *SLOW_LINK)),
            (
                ("method=fedavg+scaffold", *TIERS, "eval.aggregators=true"),
                ("fleet.tiers.networks={lte=1.0}", "fleet.server.up=300 kbit/s"),
            ),
            (
                ("method=fedavg", "fleet.gateways.count=2"),
                ("fleet.scale={server=0.1,links=0.3,devices=0.7}", *SLOW_LINK),
            ),
        ],
    ),
)
def test_a_replay_is_a_fresh_run_on_the_other_fleet_to_the_bit(
    tmp_path: Path, method: tuple[str, ...], overrides: tuple[str, ...]
) -> None:
    before = run(tmp_path / "before", *method)
    fresh = run(tmp_path / "fresh", *method, *overrides)
    new = replayed(before, parse_all(overrides))

    assert rows(before, "rounds", "round") != rows(fresh, "rounds", "round")
    assert_same(fresh, new)


def test_an_unfinished_run_is_replayed_as_far_as_it_got_and_left_as_it_is(tmp_path: Path) -> None:
    folder = run(tmp_path, "rounds.max=2")
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().replace("max = 2\n", "max = 50\n"))
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("DELETE FROM meta WHERE key = 'summary'")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert_same(folder, replayed(folder))
    assert replay(folder, parse_all(SLOW_LINK)).rounds == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# --- what is refused --------------------------------------------------------------------------------------------------


TRAINS = "would change the training"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.lr=0.3",
            f"command line: train.lr: {TRAINS}; a replay takes fleet, budget and stop.target_accuracy, stop.target, "
            "rounds.policy, rounds.over_select, rounds.deadline, rounds.min_fraction, rounds.on_late",
        ),
        ("seed=1", f"command line: seed: {TRAINS}"),
        ("flet.server.down=1", "command line: unknown key flet, did you mean 'fleet'"),
        ("rounds.policy=fedbuff", "rounds.policy = fedbuff: the order of its updates depends on times, so it cannot"),
    ],
)
def test_keys_that_change_the_training_and_unknown_ones_are_refused(plain: Path, override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        replay(plain, parsed([override]))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("rounds.policy=fedbuff", "rounds.buffer=2"),
            "rounds.policy = fedbuff: the order of its updates depends on times, so it cannot be replayed",
        ),
        (
            ("eval.on=both", "eval.charged=true"),
            "eval.charged = true: the clients that are evaluated depend on times, so it cannot be replayed",
        ),
        (
            ("method=fedbr", "method_options.deviation=model"),
            "fedbr: its downloads may depend on the updates themselves, which a ledger does not keep, so it cannot be "
            "replayed",
        ),
    ],
)
def test_runs_that_times_or_updates_direct_are_refused(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    folder = run(tmp_path, *settings, "rounds.max=1")
    assert refusal(folder, *(["rounds.policy=sync"] if "fedbuff" in message else SLOW_LINK)) == message


def test_aggregators_that_would_average_other_clients_are_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, "fleet.tiers.count=2", "rounds.max=2")
    others = "fleet.tiers: clients would belong to other aggregators"
    for override in (
        "fleet.tiers.assign=place",
        "fleet.tiers.count=1",
        "fleet.tiers.count=0",
        "fleet.tiers.above.count=1",
    ):
        assert refusal(folder, override) == others
    moving = ("fleet.tiers.on_loss=move", "fleet.tiers.availability.kind=renewal")
    assert refusal(folder, *moving) == (
        "fleet.tiers.on_loss = move: which aggregator a client trains with depends on times"
    )


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("rounds.policy=deadline", "rounds.deadline=300 ms"),
            "round 1: client 9 took part, but its visit would be late",
        ),
        (("rounds.policy=over_select",), "round 1: client 1 would take part, but was not selected"),
        (("fleet.crashes_per_hour=1000000",), "round 1: client 2 took part, but its visit would be lost"),
        (DROPOUTS[:3], "round 1: client 2 took part, but would not be available at 0 s"),
        (
            ("budget.bytes=1 MB", "rounds.min_fraction=0.5"),
            "round 2: client 8 took part, but its visit would not be within the budget",
        ),
        (("budget.bytes=1 kB",), "round 1: budget.bytes would end the run, which lasted to round 4"),
    ],
)
def test_another_outcome_is_refused_with_its_round(plain: Path, overrides: tuple[str, ...], text: str) -> None:
    assert refusal(plain, *overrides).startswith(text)


def test_a_budget_may_end_a_replay_before_the_record(plain: Path, tmp_path: Path) -> None:
    """It is then, to the bit, the run with that budget, and both are compared over the rounds that both have."""
    budget = "budget.joules=18 J"
    fresh, result = run(tmp_path, budget), replay(plain, parse_all([budget]))
    assert_same(fresh, replayed(plain, parse_all([budget])))
    end = "round 3: budget.joules would end the run, which lasted to round 4"
    assert (result.rounds, result.other_end) == (2, end)
    assert len(result.per_round) == len(rows(fresh, "rounds", "round"))
    stream = io.StringIO()
    study.show(result, stream)
    assert "of the rounds that both have; round 3: budget.joules would end" in stream.getvalue()


def test_a_run_that_a_budget_ended_is_replayed_to_its_end_on_a_fleet_that_needs_less(tmp_path: Path) -> None:
    budget, faster = "budget.joules=18 J", "fleet.networks={broadband=1.0}"
    folder, fresh = run(tmp_path, budget), run(tmp_path / "fresh", faster, "rounds.max=2", budget)
    again, result = replayed(folder, parse_all([faster])), replay(folder, parse_all([faster]))
    assert result.other_end == "round 3: the run ended here (budget.joules), but would continue"
    assert [tuple(row) for row in again.rounds_done] == rows(fresh, "rounds", "round")
    assert (result.rounds, len(result.per_round)) == (2, 2)


def test_a_bandit_that_would_choose_otherwise_is_refused_when_it_does(bandit: Path, tmp_path: Path) -> None:
    fresh = run(tmp_path, "method=fedbr", "rounds.max=8", *SLOW_LINK)
    text = refusal(bandit, *SLOW_LINK)
    chosen = [
        {(row["round"], row["client"]): row["alpha"] for row in read(folder / "ledger.sqlite", "SELECT * FROM choices")}
        for folder in (bandit, fresh)
    ]
    number, client = min(key for key in chosen[0] if chosen[0][key] != chosen[1][key])

    assert text == (
        f"round {number + 1}: client {client} would receive alpha = {chosen[1][number, client]} instead of "
        f"{chosen[0][number, client]}, since the choices of fedbr depend on times"
    )


def test_the_command_prints_one_object_or_ends_with_code_2(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(["replay", str(plain), *SLOW_LINK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == to_builtins(replay(plain, parse_all(SLOW_LINK)))
    assert main.run_command(["replay", str(plain), "rounds.policy=over_select"]) == 2
    assert capsys.readouterr().err.startswith("fedbr: round 1: client 1 would take part")
    with pytest.raises(ReportError, match="is not a run folder"):
        replay(tmp_path)
