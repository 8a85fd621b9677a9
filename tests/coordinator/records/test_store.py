"""The ledger: a round is committed whole or not at all, and the chain of hashes tells if anything virtual changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.methods.gmbs import CHOICES, ChoiceRow
from coordinator.records.chain import initial_hash
from coordinator.records.kept_checkpoints import CheckpointRules
from coordinator.records.resume import audit, resume_checkpoint
from coordinator.records.schema import EvaluationRow, HostEvent, LoggedRow, RoundRow, VisitRow
from coordinator.records.store import Commit, Ledger, evaluations, logged, read
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.run import RunFailed
from coordinator.rounds.synchronous import run_synchronous
from edge.protocol.config import TrainConfig
from tests.toy import federation, model_sha256, play, store

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
AMOUNTS = (100, 80, 400.0, 1e6, 2e6, 3.5)
ROUND = RoundRow(0, 0.0, 2.5, 1, 0.5, 1.25, 2.0, *AMOUNTS, 2.5, 0.0, 0, 0.0, 7, "own link", "ab12")
VISIT = VisitRow(
    *(0, 0, 7, "phone-mid", "lte", "train", 0, 0.0, 1.0, 2.0, 2.5, 0.25, 0.0, *AMOUNTS, 32, 1, 2.0, "d0", "u0"),
    *(0.5, 2.0, 0.25, 0.75),
)
PAYLOADS = {"d0": {"model": {"head": 80}}, "u0": {"model": {"head": 60}}}
CHOICE = ChoiceRow(0, 7, 2, 1, 0.0, 0.5, 0.25, 1.0, 1.0, 0.0169)


def done(round: int = 0, **more: object) -> Commit:
    commit = Commit(
        ROUND._replace(round=round),
        VisitColumns.of([VISIT._replace(visit=round, round=round)]),
        PAYLOADS,
        [CHOICE._replace(round=round)],
        checkpoint=(f"round-{round}", "c0"),
    )
    return replace(commit, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "odd # name?" / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    path.parent.mkdir()
    return Ledger(path, "start", CHOICES)


def counts(path: Path) -> list[int]:
    tables = ("rounds", "visits", "transfers", "choices", "states", "checkpoints", "host_rounds")
    return [read(path, f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables]


def test_a_round_is_read_back_as_it_was_written_while_the_ledger_is_in_use(ledger: Ledger, path: Path) -> None:
    ledger.commit(done(states={7: ("7-0", "aa")}, wall_seconds=0.5))
    row = read(path, "SELECT * FROM rounds")[0]
    assert tuple(row)[:-2] == (
        0, 0.0, 2.5, 1, 0.5, 1.25, 2.0, 100, 80, 400.0, 1e6, 2e6, 3.5, 2.5, 0.0, 0, 0.0, 7, "own link", "ab12",
        "", None, None,
    )  # fmt: skip
    assert [tuple(r) for r in read(path, "SELECT * FROM states WHERE client = ?", (7,))] == [(7, 0, "7-0", "aa")]
    assert [tuple(r) for r in read(path, "SELECT * FROM transfers ORDER BY direction, slot")] == [
        (0, 0, 7, "down", "", "header", 20), (0, 0, 7, "down", "model", "head", 80),
        (0, 0, 7, "up", "", "header", 20), (0, 0, 7, "up", "model", "head", 60),
    ]  # fmt: skip
    assert counts(path) == [1, 1, 4, 1, 1, 1, 1]
    ledger.close()


def test_a_ledger_of_another_format_is_refused_by_its_number(ledger: Ledger, path: Path) -> None:
    ledger._db.execute("PRAGMA user_version = 0")
    ledger.close()
    why = "its format is 0, and this version of fedbr knows 9 alone: use the version that wrote it"
    with pytest.raises(sqlite3.DatabaseError, match=why):
        read(path, "SELECT * FROM rounds")
    with pytest.raises(sqlite3.DatabaseError, match=why):
        Ledger(path, None, CHOICES)


def test_a_commit_that_fails_leaves_nothing_behind(ledger: Ledger, path: Path) -> None:
    ledger.commit(done(0))
    before, chain = counts(path), ledger.chain
    twice = done(1, visits=VisitColumns.of([VISIT._replace(visit=1, round=1)] * 2))  # a visit ends once
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit(twice)
    assert counts(path) == before
    assert ledger.chain == chain
    ledger.commit(done(1))
    assert counts(path) == [2, 2, 8, 2, 0, 2, 2]
    ledger.close()


def test_values_of_evaluations_are_in_the_chain_and_only_runs_with_any_have_their_table(
    ledger: Ledger, path: Path
) -> None:
    values = [EvaluationRow(1, -1, "entropy", 1.5, 360, "3"), EvaluationRow(1, 0, "accuracy", None, 36, kind="before")]
    ledger.commit(done(0))
    assert read(path, "SELECT name FROM sqlite_master WHERE name = 'evaluations'") == evaluations(path) == []
    before = ledger.chain
    ledger.commit(done(1))
    plain = ledger.chain
    ledger.truncate_after(0)
    ledger.commit(done(1, evaluations=values))
    assert ledger.chain != plain
    ledger.commit(done(2, evaluations=[EvaluationRow(2, 0, "accuracy", 1.0, 36)]))
    assert [tuple(row) for row in evaluations(path, 1)] == values
    audit(ledger)
    assert [tuple(row) for row in list(ledger.stored())[1].rows[-2:]] == [
        (1, -1, "entropy", 1.5, 360, "3", None, None, None, None),
        (1, 0, "accuracy", None, 36, None, "before", None, None, None),
    ]
    with ledger._transaction():
        ledger._db.execute("UPDATE evaluations SET count = 35 WHERE round = 1 AND client = 0")
    with pytest.raises(RunFailed, match="round 2: its rows are not what was committed"):
        audit(ledger)
    ledger.truncate_after(0)
    assert (ledger.chain, evaluations(path)) == (before, [])
    audit(ledger)
    ledger.close()


def test_the_chain_by_hand(ledger: Ledger, path: Path) -> None:
    later = VISIT._replace(visit=1, start_s=-0.0, joules=4)  # as from a column of integers, in another order
    ledger.commit(
        done(visits=VisitColumns.of([later, VISIT]), wall_seconds=123.0, states={7: ("7-0", "aa"), 3: ("3-0", "bb")})
    )
    rows = [
        [0, 0.0, 2.5, 1, 0.5, 1.25, 2.0, 100, 80, 400.0, 1e6, 2e6, 3.5, 2.5, 0.0, 0, 0.0, 7, "own link", "ab12",
         "", None, None],
        [0, 0, 7, "phone-mid", "lte", "train", 0, 0.0, 1.0, 2.0, 2.5, 0.25, 0.0, 100, 80, 400.0, 1e6, 2e6, 3.5, 32, 1,
         2.0, "d0", "u0"],
        [1, 0, 7, "phone-mid", "lte", "train", 0, 0.0, 1.0, 2.0, 2.5, 0.25, 0.0, 100, 80, 400.0, 1e6, 2e6, 4.0, 32, 1,
         2.0, "d0", "u0"],
        ["d0", 0, "model", "head", 80], ["u0", 0, "model", "head", 60],
        [0, 7, 2, 1, 0.0, 0.5, 0.25, 1.0, 1.0, 0.0169],
    ]  # fmt: skip
    files = '[["round-0","c0"],[[3,"3-0","bb"],[7,"7-0","aa"]]]'
    text = json.dumps(rows, separators=(",", ":"))
    expected = hashlib.sha256(f"start\n{text}\n{files}".encode()).hexdigest()
    # The host's seconds are no part of it.
    assert ledger.chain == expected
    assert [tuple(row) for row in read(path, "SELECT chain, files FROM rounds")] == [(expected, files)]
    (stored,) = ledger.stored()
    assert [list(row) for row in stored.rows] == rows
    ledger.close()


def test_the_chain_starts_from_scenario_and_data() -> None:
    start = initial_hash({"seed": 0, "method": "fedbr"}, "d0")
    assert start == initial_hash({"method": "fedbr", "seed": 0}, "d0")
    others = [initial_hash({"seed": seed, "method": "fedbr"}, data) for seed, data in ((1, "d0"), (0, "d1"))]
    assert len({start, *others}) == 3


def test_a_change_in_any_virtual_number_changes_the_chain(tmp_path: Path) -> None:
    chains = set()
    changed = [
        done(),
        done(row=ROUND._replace(joules=3.6)),
        done(row=ROUND._replace(model_sha256="ab13")),
        done(row=ROUND._replace(bottleneck="compute")),
        done(visits=VisitColumns.of([VISIT._replace(up_end_s=2.4)])),
        done(visits=VisitColumns.of([VISIT._replace(staleness=1)])),
        done(visits=VisitColumns.of([VISIT._replace(up_payload="d0")])),
        done(payloads=PAYLOADS | {"u0": {"model": {"head": 14}}}),
        done(method_rows=[CHOICE._replace(alpha=3)]),
        done(checkpoint=("round-0", "c1")),
        done(states={7: ("7-0", "aa")}),
        done(states={7: ("7-0", "ab")}),
    ]
    for index, commit in enumerate(changed):
        ledger = Ledger(tmp_path / f"{index}.sqlite", "start", CHOICES)
        ledger.commit(commit)
        chains.add(ledger.chain)
        ledger.close()
    assert len(chains) == len(changed)


def test_files_that_no_checkpoint_needs_any_more_are_named(ledger: Ledger) -> None:
    shared = {1: ("global-0", "a"), 2: ("global-0", "a"), 3: ("3-0", "b")}
    assert ledger.commit(done(0, states=shared)) == []
    assert ledger.commit(done(1, states={1: ("1-1", "c")})) == []
    assert ledger.commit(done(2, states={2: ("2-2", "d"), 3: ("3-2", "e")})) == ["round-0"]  # 1 needs what 2 and 3 had
    assert ledger.commit(done(3)) == ["3-0", "global-0", "round-1"]
    assert ledger.files() == {"1-1", "2-2", "3-2", "round-2", "round-3"}
    ledger.close()


def test_a_ledger_goes_back_to_an_earlier_checkpoint(ledger: Ledger, path: Path) -> None:
    ledger.commit(done(0, states={1: ("1-0", "a"), 2: ("2-0", "b")}))
    ledger.commit(done(1, states={1: ("1-1", "c")}))
    chain = ledger.chain
    ledger.commit(done(2, states={1: ("1-2", "d")}))
    ledger.finish({"rounds": 3})
    assert ledger.client_states(2) == {1: ("1-2", "d"), 2: ("2-0", "b")}
    assert ledger.client_states(1) == {1: ("1-1", "c"), 2: ("2-0", "b")}
    assert ledger.truncate_after(1) == ["1-2", "round-2"]
    assert (ledger.chain, [row.round for row in ledger.rounds()]) == (chain, [0, 1])
    assert dict(tuple(r) for r in read(path, "SELECT * FROM meta")) == {"genesis": "start"}
    ledger.close()
    again = Ledger(path, None, CHOICES)
    assert again.chain == chain
    assert again.client_states(1) == {1: ("1-1", "c"), 2: ("2-0", "b")}
    again.close()


def test_a_ledger_tells_how_long_a_run_took_why_it_ended_and_what_its_method_wrote(ledger: Ledger, path: Path) -> None:
    assert (ledger.wall_seconds(), ledger.stopped_by(0), ledger.method_rows()) == (0.0, None, [])
    ledger.commit(done(0, wall_seconds=1.5))
    ledger.commit(done(1, wall_seconds=2.0, stopped_by="rounds"))
    assert (ledger.wall_seconds(), ledger.stopped_by(0), ledger.stopped_by(1)) == (3.5, None, "rounds")
    assert ledger.method_rows() == [CHOICE, CHOICE._replace(round=1)]
    ledger.truncate_after(0)
    assert (ledger.wall_seconds(), ledger.method_rows()) == (1.5, [CHOICE])
    # Round 0 has the shapes of the payloads already.
    ledger.commit(done(1))
    assert read(path, "SELECT COUNT(*), MAX(round) FROM payload_shapes")[0][:] == (2, 0)
    ledger.close()


def test_events_and_the_summary_are_on_record_at_once(ledger: Ledger, path: Path) -> None:
    ledger.event(HostEvent("worker_died", "3", "ended by SIGKILL", 12.5))
    ledger.finish({"rounds": 2})
    assert [tuple(r) for r in read(path, "SELECT * FROM host_events")] == [
        ("worker_died", "3", "ended by SIGKILL", 12.5)
    ]
    assert dict(tuple(r) for r in read(path, "SELECT * FROM meta")) == {"genesis": "start", "summary": '{"rounds": 2}'}
    ledger.close()
    assert [p.name for p in path.parent.iterdir()] == ["ledger.sqlite"]


# --- what a run commits -----------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_all_that_a_run_needs_to_go_on(tmp_path: Path) -> None:
    how: dict[str, Any] = {"participants": 2, "train": BRIEF, "stale_after": 2}
    straight = play(tmp_path / "straight", "fedbr", rounds=6, **how)
    first = play(tmp_path / "first", "fedbr", rounds=3, **how).federation
    shutil.copytree(store(first).folder, tmp_path / "second")
    second = federation(tmp_path / "second", "fedbr", rounds=6, again=True, **how)
    assert resume_checkpoint(second, store(second)) is None
    assert model_sha256(second) == model_sha256(first)
    run_synchronous(second)
    store(second).ledger.close()
    assert model_sha256(second) == model_sha256(straight.federation)
    # Connections that were open are still open, and batteries as empty as they were: the hash chain goes on.
    for table in ("rounds", "choices", "visits", "transfers", "states", "checkpoints"):
        rows = f"SELECT * FROM {table}"
        assert [tuple(r) for r in read(tmp_path / "second" / "ledger.sqlite", rows)] == straight.rows(rows)


def test_a_run_whose_last_checkpoint_is_damaged_goes_back_a_round(tmp_path: Path) -> None:
    how: dict[str, Any] = {"participants": 2, "train": BRIEF, "rounds": 6}
    straight = play(tmp_path / "straight", "fedbr", **how)
    play(tmp_path / "second", "fedbr", **{**how, "rounds": 4})
    newest = tmp_path / "second" / "checkpoints" / "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    second = federation(tmp_path / "second", "fedbr", again=True, **how)
    assert resume_checkpoint(second, store(second)) is None
    assert second.rounds == 3
    (event,) = read(tmp_path / "second" / "ledger.sqlite", "SELECT kind, detail FROM host_events")
    assert tuple(event) == (
        "checkpoint_damaged",
        "round 4: checkpoints/round-000003.safetensors is missing or not what was committed; going back to round 3",
    )
    run_synchronous(second)
    store(second).ledger.close()
    chain = "SELECT chain FROM rounds ORDER BY round"
    assert [tuple(r) for r in read(tmp_path / "second" / "ledger.sqlite", chain)] == straight.rows(chain)


def test_without_a_whole_checkpoint_a_run_cannot_go_on(tmp_path: Path) -> None:
    play(tmp_path, "fedbr", rounds=3, train=BRIEF, participants=2)
    (tmp_path / "checkpoints" / "round-000002.safetensors").unlink()
    (tmp_path / "checkpoints" / "round-000001.safetensors").write_bytes(b"")
    second = federation(tmp_path, "fedbr", rounds=6, again=True, train=BRIEF, participants=2)
    with pytest.raises(RunFailed) as failed:
        resume_checkpoint(second, store(second))
    assert str(failed.value) == (
        "no checkpoint can be used: round 3: checkpoints/round-000002.safetensors is missing or not what was "
        "committed; round 2: checkpoints/round-000001.safetensors is missing or not what was committed"
    )
    store(second).ledger.close()


def test_what_workers_kept_for_a_round_that_was_never_committed_is_removed(tmp_path: Path) -> None:
    run = federation(tmp_path, "fedbr", rounds=2)
    run_synchronous(run)
    kept = sorted(path.name for path in (tmp_path / "state").iterdir())
    (tmp_path / "state" / "0-99.safetensors").write_bytes(b"half a visit")
    store(run).remove_orphans()
    store(run).ledger.close()
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == kept
    assert kept == [f"{client}-{round}.safetensors" for client in range(4) for round in (0, 1)]


def test_what_a_method_logs_is_in_no_hash(path: Path, ledger: Ledger) -> None:
    ledger.commit(done(0))
    assert logged(path) == []
    ledger.commit(done(1, logged=[LoggedRow(1, 7, "gap", 0.5), LoggedRow(1, None, "drift", None)]))
    silent = Ledger(path.with_name("silent.sqlite"), "start", CHOICES)
    for round in (0, 1):
        silent.commit(done(round))
    assert ledger.chain == silent.chain
    assert [tuple(row) for row in logged(path)] == [(1, 7, "gap", 0.5), (1, None, "drift", None)]
    audit(ledger)
    ledger.truncate_after(0)
    assert logged(path) == []


# --- checkpoints that stay, with the client states that belong to them ------------------------------------------------

STORED = [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("newest", set()), ("best", {3}), ("every:2", {1, 3, 5}), ((1, 6, 9), {0, 5}), ((), set())],
)
def test_rounds_are_counted_from_1(keep: str | tuple[int, ...], kept: set[int]) -> None:
    assert CheckpointRules(keep).kept(STORED, best=3) == kept


def committed(path: Path, keep: str | tuple[int, ...], accuracies: list[float | None]) -> Ledger:
    """A round per accuracy; client 7 is visited in each, client 8 in rounds 0 and 3."""
    ledger = Ledger(path, "start", None, CheckpointRules(keep))
    for round, accuracy in enumerate(accuracies):
        states = {7: (f"7-{round}", "aa"), **({8: (f"8-{round}", "bb")} if round in (0, 3) else {})}
        row = row_of(round, accuracy)
        obsolete = ledger.commit(Commit(row, states=states, checkpoint=(f"c-{round}", "cc")))
        assert not set(obsolete) & ledger.files()
    return ledger


def row_of(round: int, accuracy: float | None) -> RoundRow:
    return ROUND._replace(round=round, accuracy=accuracy)


def test_a_kept_checkpoint_keeps_the_states_of_its_round(tmp_path: Path) -> None:
    ledger = committed(tmp_path / "ledger.sqlite", (2,), [0.5] * 6)
    assert [round for round, _, _ in ledger.checkpoints()] == [5, 4, 1]
    assert ledger.files() == {"c-1", "c-4", "c-5", "7-1", "7-4", "7-5", "8-0", "8-3"}
    assert ledger.client_states(1) == {7: ("7-1", "aa"), 8: ("8-0", "bb")}
    audit(ledger)
    assert ledger.truncate_after(1) == ["7-4", "7-5", "8-3", "c-4", "c-5"]
    ledger.close()


def test_the_best_checkpoint_stays_until_a_better_one(tmp_path: Path) -> None:
    ledger = committed(tmp_path / "ledger.sqlite", "best", [0.2, 0.6, None, 0.6, 0.4, 0.5])
    assert [round for round, _, _ in ledger.checkpoints()] == [5, 4, 1]
    ledger.commit(Commit(row_of(6, 0.7), checkpoint=("c-6", "cc")))
    assert [round for round, _, _ in ledger.checkpoints()] == [6, 5]
    audit(ledger)
    ledger.close()
