"""Runs that go on with other limits, to the bits that they would have had with them from the start."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.run import extension, runner
from scenarios.run.host import Host
from scenarios.run.setup import RunInputs
from scenarios.studies.verify import verify
from tests.ledgers import virtual_rows
from tests.scenarios.in_this_process import pool_in_this_process, resume, run
from tests.scenarios.runs import opened

__all__ = ["pool_in_this_process"]
SHORT = ("train.local_steps=2", "stop.target_accuracy=1.0", "eval.every=3")


def extended(folder: Path, *overrides: str) -> Loaded:
    loaded, _ = opened(folder)
    return extension.extend(loaded, folder, parse_all(overrides))


def gone_on(folder: Path, *overrides: str) -> dict[str, object]:
    loaded = extended(folder, *overrides)
    assert runner.ended(loaded, folder) is None
    return resume(loaded, folder)


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        extended(folder, *overrides)
    return str(caught.value)


def record(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """The virtual record but for the hash chain, which begins with the limits."""
    rows = virtual_rows(folder)
    rounds = read(folder / "ledger.sqlite", "SELECT * FROM rounds")
    return rows | {"rounds": [tuple(row[key] for key in row.keys() if key != "chain") for row in rounds]}  # noqa: SIM118


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds, the second of which was evaluated only because it was the last."""
    return run(tmp_path_factory.mktemp("ended"), *SHORT, "rounds.max=2")


def test_a_run_that_ended_by_its_rounds_goes_on_as_if_it_had_never_ended(ended: Path, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *SHORT, "rounds.max=4")
    described = (ended / "description.msgpack").read_bytes()
    (ended / "description.msgpack").write_bytes(described[:100])  # lost, which a run that goes on mends
    genesis = read(ended / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'genesis'")[0][0]

    result = gone_on(ended, "rounds.max=4")

    assert (result["rounds"], result["stopped_by"]) == (4, "rounds")
    assert record(ended) == record(whole)
    assert (ended / "description.msgpack").read_bytes() == described
    assert read(ended / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'genesis'")[0][0] == genesis
    assert load(str(ended / "scenario.toml")).scenario.rounds.max == 4
    assert json.loads((ended / "environment.json").read_text())["began_with"]["rounds"] == {"max": 2}
    (event,) = read(ended / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'limits_changed'")
    assert event["detail"] == "rounds.max = 4 instead of 2"

    loaded, device = opened(ended)
    with WorkerLauncher() as launcher:
        again = verify(loaded, ended, Host(tmp_path, 1, device), launcher, lambda: False)
    assert (again.rounds, again.same) == (4, True)


def test_only_limits_are_changed_and_none_that_rounds_would_have_noticed(ended: Path) -> None:
    assert "train.lr: resume changes only rounds.max, stop.* and budget.*; to start another run: fedbr run " in refusal(
        ended, "train.lr=1"
    )
    assert "rounds.max = 1: would have ended the run after round 1, and it went on" in refusal(ended, "rounds.max=1")
    assert "stop.target_accuracy = " in refusal(ended, "stop.target_accuracy=0.01", "rounds.max=9")
    assert "budget.bytes = 1e+09: is where there was none" in refusal(ended, "budget.bytes=1 GB")
    assert "budget.client: has decided who took part" in refusal(ended, "budget.client.joules=5 J")
    assert "budget.virtual_seconds = 0.001: the run has lasted" in refusal(ended, "budget.virtual_seconds=1 ms")


def test_a_budget_can_be_raised(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *SHORT, "rounds.max=3")
    spent = read(whole / "ledger.sqlite", "SELECT SUM(bytes_down + bytes_up) FROM rounds WHERE round < 2")[0][0]
    more = spent + spent // 4  # for two rounds, and some visits of the third
    folder = run(tmp_path / "poor", *SHORT, "rounds.max=3", f"budget.bytes={more} B")
    assert record(folder) != record(whole)
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:  # as if killed before its summary
        db.execute("DELETE FROM meta WHERE key = 'summary'")
        db.commit()

    gone_on(folder, "budget.bytes=1 GB")

    assert record(folder) == record(whole)


@pytest.mark.parametrize(("key", "unit"), [("wan_bytes", " B"), ("price", "")])
def test_a_budget_of_messages_above_clients_can_be_raised_and_not_be_lowered(
    key: str, unit: str, tmp_path: Path
) -> None:
    tiers = (*SHORT, "rounds.max=6", "fleet.tiers={count=2,price=2}", "tiers.interval=2")
    whole = run(tmp_path / "whole", *tiers)
    column = {"wan_bytes": "nbytes", "price": "price"}[key]
    ((spent,),) = read(whole / "ledger.sqlite", f"SELECT SUM({column}) FROM aggregators")
    enough, two_thirds = (f"budget.{key}={share * spent:.9g}{unit}" for share in (2, 0.7))
    folder = run(tmp_path / "poor", *tiers, two_thirds)

    assert f"budget.{key} = " in (text := refusal(folder, f"budget.{key}={spent / 9:.9g}{unit}"))
    assert "smaller than" in text
    assert f"budget.{key} = " in (text := refusal(whole, enough))
    assert "is where there was none" in text
    assert gone_on(folder, enough)["stopped_by"] == "rounds"
    assert record(folder) == record(whole)


def test_budgets_of_aggregators_stay_as_they_are_where_each_ends_in_a_round_of_its_own() -> None:
    words = ["fleet.tiers.count=2", "tiers.upwards=asynchronous", "budget={wan_bytes='1 MB',virtual_seconds='1 h'}"]
    before, more = (load("digits", parse_all([*words, *other])).scenario for other in ((), ("rounds.max=999",)))
    extension.check_budget(before, more)
    for change in ("budget.wan_bytes=1 GB", "budget.virtual_seconds=2 h", "budget.price=3"):
        key = change.partition("=")[0]
        with pytest.raises(ScenarioError, match=rf"{key}: with tiers.upwards = asynchronous each aggregator ends in"):
            extension.check_budget(before, load("digits", parse_all([*words, change])).scenario)


def test_a_constant_schedule_spans_the_new_rounds_and_the_chain_still_begins_with_the_old(tmp_path: Path) -> None:
    folder = run(tmp_path, *SHORT, "train.lr_schedule=constant", "rounds.max=1")
    before, _ = opened(folder)
    extended(folder, "rounds.max=2")  # the only round is taken back: nothing is left of the old limits
    again, _ = opened(folder)
    assert (again.scenario.train.lr_rounds, again.began) == (2, {})
    resume(again, folder)

    gone_on(folder, "rounds.max=3")
    gone_on(folder, "rounds.max=4")

    longer, device = opened(folder)
    fresh = load(
        "digits", parse_all([*SHORT, "train.lr_schedule=constant", "rounds.max=4"]), before.scenario.method
    ).scenario
    assert longer.scenario.train.lr_rounds == fresh.train.lr_rounds == 4
    assert longer.began["train"] == {"lr_rounds": 2}
    assert RunInputs(longer).identity == RunInputs(again).identity
    with WorkerLauncher() as launcher:
        checked = verify(longer, folder, Host(tmp_path, 1, device), launcher, lambda: False)
    assert (checked.rounds, checked.same) == (4, True)
