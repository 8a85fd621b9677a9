"""Synchronous policies: who counts, what late and lost visits cost, and when a run stops.

Clients are a clockwork: download, computing and upload of each take literal seconds, and a client draws 2 W while it
receives, 8 W while it trains, 4 W while it sends and 1 W while it waits for the others.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds import selection
from coordinator.rounds.budget import (
    BYTES,
    BYTES_DOWN,
    BYTES_UP,
    CLIENTS,
    JOULES,
    ROUNDS,
    SECONDS,
    TARGET,
    Limits,
    RunLimits,
)
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.policy import POLICIES, PolicyName, RoundPolicy
from coordinator.rounds.synchronous import run_rounds
from coordinator.workers.task import PoolError
from costmodel.network.links import Links
from costmodel.network.tcp import wire_bits
from tests.coordinator.rounds.clockwork import BRIEF, DOWN_NBYTES, EVER, FOUR, IID, UP_NBYTES, ran, windows
from tests.crossed import every
from tests.ledgers import virtual_rows
from tests.toy import Run, committed_states, federation, model_sha256, play, store, unsteady_world

each_policy = pytest.mark.parametrize("policy", POLICIES)
each_synchronous = pytest.mark.parametrize("policy", ["sync", "over_select", "deadline"])


def kinds(run: Run, round: int = 0) -> str:
    """Of the visits of a round by client, such as "0 train, 3 late"."""
    rows = run.rows(f"SELECT client, kind FROM visits WHERE round = {round} ORDER BY client")
    return ", ".join(f"{client} {kind}" for client, kind in rows)


# --- sync -------------------------------------------------------------------------------------------------------------


def test_sync_waits_for_everyone_and_whoever_waits_draws_power(tmp_path: Path) -> None:
    run = ran(tmp_path)
    assert run.rows("SELECT start_s, end_s, participants, critical, bottleneck FROM rounds") == [
        (0, 16, 4, 3, "own link")
    ]
    # 2 W down, 8 W computing, 4 W up, 1 W until 16 s.
    assert run.rows("SELECT joules FROM visits ORDER BY client") == [
        (2 + 8 + 8 + 12,),
        (2 + 16 + 4 + 12,),
        (4 + 16 + 16 + 8,),
        (8 + 32 + 32 + 0,),
    ]
    query = "SELECT busy_s, wasted_s, wasted_bytes, wasted_joules, joules FROM rounds"
    assert run.rows(query) == [(32, 0, 0, 0, 30 + 34 + 44 + 72)]


def test_the_round_lasts_until_the_server_has_added_the_updates_up(tmp_path: Path) -> None:
    equal = [(1.0, 1.0, 2.0)] * 2
    slow = Links(aggregate_bytes_per_second=float(UP_NBYTES))
    run = ran(tmp_path / "one", seconds=equal, links=slow)
    # Two updates at one a second, and both clients wait: 18 J for the visit and 2 J.
    assert run.rows("SELECT end_s, joules FROM rounds") == [(6, 40)]
    # What the wait will cost is foreseen: 39 J are not enough for both.
    part = RoundPolicy(min_fraction=0.5)
    run = ran(tmp_path / "two", part, equal, links=slow, rounds=1, limits=RunLimits(joules=39.0))
    assert (run.stopped_by, run.rows("SELECT end_s, joules, participants FROM rounds")) == (ROUNDS, [(5, 19, 1)])


# --- over-selection ---------------------------------------------------------------------------------------------------

TWO_OF_FOUR = RoundPolicy("over_select", over_select=2.0)


def test_over_selection_takes_the_first_and_charges_the_late_up_to_the_cut_untrained(tmp_path: Path) -> None:
    run = ran(tmp_path / "run", TWO_OF_FOUR, participants=2)
    assert kinds(run) == "0 train, 1 train, 2 late, 3 late"
    assert run.rows("SELECT end_s, participants FROM rounds") == [(4, 2)]
    # Client 2 has received and computed for 2 s each; client 3 has just received.
    query = "SELECT bytes_down, bytes_up, flops > 0, joules, up_end_s, loss FROM visits WHERE client > 1"
    assert run.rows(query) == [(DOWN_NBYTES, 0, 1, 2 * 2 + 2 * 8, 4, None), (DOWN_NBYTES, 0, 0, 4 * 2, 4, None)]
    query = "SELECT wasted_s, wasted_bytes, wasted_joules, busy_s FROM rounds"
    assert run.rows(query) == [(8, 2 * DOWN_NBYTES, 28, 16)]
    assert sorted(run.workers.trained) == [(0, 0), (0, 1)]
    replies = federation(tmp_path / "by hand", clients=4, train=BRIEF, partition=IID)
    visits = [replies.prepare(client, 0) for client in (0, 1)]
    CohortTraining(replies.trainer, replies.server, visits).wait()
    replies.server.step()
    store(replies).ledger.close()
    assert model_sha256(run.federation) == model_sha256(replies)


def test_who_arrives_at_the_same_moment_counts_by_number(tmp_path: Path) -> None:
    run = ran(tmp_path, TWO_OF_FOUR, [(1.0, 1.0, 2.0)] * 4, participants=2)
    assert kinds(run) == "0 train, 1 train, 2 late, 3 late"
    # The others had sent all of it, too, but in vain.
    assert run.rows("SELECT bytes_up, up_end_s, joules FROM visits WHERE client > 1") == [(UP_NBYTES, 4, 18)] * 2
    assert run.rows("SELECT direction, key, nbytes FROM transfers WHERE client = 2") == [
        ("down", "cut", DOWN_NBYTES),
        ("up", "cut", UP_NBYTES),
    ]


def test_over_selection_takes_who_is_left_and_blames_nobody_whom_it_did_not_wait_for(tmp_path: Path) -> None:
    run = ran(tmp_path / "late", TWO_OF_FOUR, FOUR[::-1], participants=2)
    assert kinds(run) == "0 late, 1 late, 2 train, 3 train"
    assert run.rows("SELECT critical, bottleneck FROM rounds") == [(2, "own link")]
    away = windows([EVER], [(0, 3)], [(0, 3)], [(0, 3)])
    run = ran(tmp_path / "lost", TWO_OF_FOUR, participants=2, behaviour=away)
    assert kinds(run) == "0 train, 1 lost, 2 lost, 3 lost"
    assert run.rows("SELECT end_s, participants, critical FROM rounds") == [(4, 1, 0)]


# --- deadline ---------------------------------------------------------------------------------------------------------


def test_a_deadline_takes_what_is_there_in_time(tmp_path: Path) -> None:
    run = ran(tmp_path, RoundPolicy("deadline", deadline=6.0))
    assert kinds(run) == "0 train, 1 train, 2 late, 3 late"
    assert run.rows("SELECT end_s, participants FROM rounds") == [(6, 2)]
    # Those in time wait for 2 s; client 2 has sent half of its update, client 3 has computed half of it.
    assert run.rows("SELECT joules FROM visits ORDER BY client") == [(20,), (24,), (4 + 16 + 8,), (8 + 16,)]
    assert run.rows("SELECT bytes_up FROM visits WHERE client > 1") == [(UP_NBYTES // 2,), (0,)]
    (whole,), (half,) = run.rows("SELECT flops FROM visits WHERE client IN (0, 3) ORDER BY client")
    assert half == whole / 2
    assert run.rows("SELECT wasted_s, wasted_bytes, wasted_joules FROM rounds") == [
        (12, 2 * DOWN_NBYTES + UP_NBYTES // 2, 28 + 24)
    ]
    # It was waited for them in vain.
    assert run.rows("SELECT critical FROM rounds") == [(2,)]


@pytest.mark.parametrize(
    ("rules", "end_s", "participants"),
    [
        (RoundPolicy("deadline", deadline=8.0), 8, 3),
        (RoundPolicy("deadline", deadline=100.0), 16, 4),
        (RoundPolicy("deadline", deadline=6.0, min_fraction=0.5), 6, 2),
    ],
)
def test_who_ends_at_the_deadline_counts_and_just_enough_in_time_are_enough(
    rules: RoundPolicy, end_s: float, participants: int, tmp_path: Path
) -> None:
    run = ran(tmp_path, rules)
    assert run.rows("SELECT end_s, participants FROM rounds") == [(end_s, participants)]
    assert kinds(run) == ", ".join(f"{k} {'train' if k < participants else 'late'}" for k in range(4))


@pytest.mark.parametrize(
    "rules", [RoundPolicy("deadline", deadline=2.0), RoundPolicy("deadline", deadline=6.0, min_fraction=0.75)]
)
def test_a_round_with_too_few_in_time_changes_nothing_but_counts(rules: RoundPolicy, tmp_path: Path) -> None:
    run = ran(tmp_path, rules, rounds=2)
    assert (run.stopped_by, run.federation.rounds) == (ROUNDS, 2)
    assert run.rows("SELECT round, start_s, end_s, participants FROM rounds") == [
        (0, 0, rules.deadline, 0),
        (1, rules.deadline, 2 * rules.deadline, 0),
    ]
    assert kinds(run) == "0 late, 1 late, 2 late, 3 late"
    assert np.array_equal(run.model, run.start)
    assert run.workers.trained == []
    assert run.rows("SELECT wasted_joules = joules, wasted_s = busy_s FROM rounds") == [(1, 1)] * 2


def test_a_late_client_keeps_nothing_and_has_not_been_seen_but_the_bandit_has_counted(tmp_path: Path) -> None:
    run = ran(tmp_path, RoundPolicy("deadline", deadline=6.0), method="fedbr", alpha=1)
    assert kinds(run) == "0 train, 1 train, 2 late, 3 late"
    assert sorted(committed_states(run.federation)) == [0, 1]
    state = run.federation.server.state()
    assert state["last_seen"].tolist() == [0, 0, -1, -1]
    assert state["n"][:, 0].tolist() == [1, 1, 1, 1]
    # No feedback, and so the next visit brings the whole model.
    assert run.rows("SELECT client FROM choices") == [(0,), (1,)]
    assert [run.federation.server.download(client, 1).choice["full"] for client in range(4)] == [0, 0, 1, 1]


# --- clients that leave, crash or run out of power --------------------------------------------------------------------


def test_a_client_that_leaves_is_lost_and_charged_until_then(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=2, behaviour=windows([EVER], [(0, 2.5)], [EVER], [EVER]))
    assert kinds(run) == "0 train, 1 lost, 2 train, 3 train"
    # 1 s of receiving and 1.5 s of computing; it does not wait for the others.
    assert run.rows("SELECT joules, bytes_down, bytes_up, up_end_s FROM visits WHERE kind = 'lost'") == [
        (2 + 12, DOWN_NBYTES, 0, 2.5)
    ]
    assert run.rows("SELECT wasted_s, wasted_joules, end_s FROM rounds") == [(2.5, 14, 16), (0, 0, 32)]
    assert kinds(run, 1) == "0 train, 2 train, 3 train"


def test_a_round_begins_when_the_first_client_is_there(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=2, seconds=FOUR[:2], behaviour=windows([(64, 67), (128, 1e6)], [(80, 81), (256, 1e6)]))
    # Client 0 is lost at 67 s, client 1 at 81 s; then client 0 alone is there.
    assert run.rows("SELECT start_s, end_s, participants, critical, bottleneck FROM rounds") == [
        (0, 67, 0, 0, "waiting"),
        (67, 81, 0, 1, "waiting"),
    ]
    assert run.rows("SELECT start_s, up_end_s FROM visits") == [(64, 67), (80, 81)]


@each_policy
def test_a_run_ends_when_nobody_will_ever_be_there_again(policy: PolicyName, tmp_path: Path) -> None:
    gone = windows([(0, 10)], [(0, 10)], [(0, 10)], [(0, 10)])
    run = ran(tmp_path, RoundPolicy(policy, buffer=2), rounds=99, behaviour=gone)
    assert run.stopped_by == CLIENTS
    assert run.rows("SELECT MAX(up_end_s) FROM visits") == [(10,)]
    # A buffer that was not full has made no step.
    kinds = ["cut", "lost", "train"] if policy == "fedbuff" else ["lost", "train"]
    assert [kind for (kind,) in run.rows("SELECT DISTINCT kind FROM visits ORDER BY kind")] == kinds


def test_batteries_run_out_for_waiting_too_and_then_the_run_is_over(tmp_path: Path) -> None:
    # A visit takes 18 J. Of 40 J, 4 J are left for the third: 1 s of receiving, then 8 W for 0.25 s.
    run = ran(tmp_path / "out", seconds=[(1.0, 1.0, 2.0)] * 2, rounds=99, fleet={"battery": 40.0})
    assert run.stopped_by == CLIENTS
    assert run.rows("SELECT end_s, participants, joules FROM rounds") == [(4, 2, 36), (8, 2, 36), (9.25, 0, 8)]
    assert kinds(run, 2) == "0 lost, 1 lost"
    # Client 0 spends 18 J on a visit and 12 J on waiting for client 1, who spends 72 J. Its other 28 J last for 6.5 s,
    # so that client 0 then waits for 2.5 s.
    run = ran(tmp_path / "waits", seconds=[FOUR[0], FOUR[3]], rounds=2, fleet={"battery": 100.0})
    assert run.federation.clock.state()["spent_joules"].tolist() == [18 + 12 + 18 + 2.5, 100]
    assert kinds(run, 1) == "0 train, 1 lost"


def counted(calls: Any, before: Any) -> Any:
    """A method of a policy, which fails if it is called too often."""

    def method(*arguments: Any) -> Any:
        assert next(calls, None) is not None, "this goes on for ever"
        return before(*arguments)

    return method


# --- budgets ----------------------------------------------------------------------------------------------------------


def visits_of(run: Run, clients: int = 4) -> list[int]:
    counts = dict(run.rows("SELECT client, COUNT(*) FROM visits GROUP BY client"))
    return [counts.get(client, 0) for client in range(clients)]


@each_policy
@pytest.mark.parametrize(
    ("limit", "visits"),
    every(
        2,
        [
            ({"bytes": int(2.5 * (DOWN_NBYTES + UP_NBYTES))}, [2, 2, 2, 2]),
            ({"virtual_seconds": 9.0}, [2, 2, 1, 0]),
        ],
        first=1,
    ),
)
def test_a_client_that_has_spent_its_own_budget_takes_part_no_more(
    policy: PolicyName, limit: dict[str, Any], visits: list[int], tmp_path: Path
) -> None:
    rules = RoundPolicy(policy, over_select=1.0, deadline=100.0, buffer=2, min_fraction=0.0)
    run = ran(tmp_path, rules, rounds=99, limits=RunLimits(client=Limits(**limit)))
    assert (run.stopped_by, visits_of(run)) == (CLIENTS, visits)


@each_synchronous
def test_a_run_ends_before_the_first_round_that_lacks_a_client_without_budget(
    policy: PolicyName, tmp_path: Path
) -> None:
    # Visits of 4, 4, 8 and 16 s: clients 2 and 3 have spent 9 s before the others.
    how: dict[str, Any] = {"rounds": 99, "limits": RunLimits(client=Limits(virtual_seconds=20.0))}
    whole = RoundPolicy(policy, over_select=1.0, deadline=100.0)
    run = ran(tmp_path / "whole", whole, **how)
    assert (run.stopped_by, visits_of(run)) == (CLIENTS, [1, 1, 1, 1])
    part = RoundPolicy(policy, over_select=1.0, deadline=100.0, min_fraction=0.75)
    run = ran(tmp_path / "part", part, **how)
    assert (run.stopped_by, visits_of(run)) == (CLIENTS, [2, 2, 2, 1])
    assert run.rows("SELECT participants, cut_by FROM rounds") == [(4, ""), (3, CLIENTS)]


def test_clients_that_can_pay_only_alone_take_turns(tmp_path: Path) -> None:
    # An upload takes 8 s on the server's link, or 16 s if both send: 10 or 18 s in all.
    narrow = Links(up=float(wire_bits(UP_NBYTES)) / 8)
    own = Limits(virtual_seconds=12.0)
    part = RoundPolicy(min_fraction=0.5)
    run = ran(tmp_path, part, [(1.0, 1.0, 1.0)] * 2, links=narrow, rounds=99, limits=RunLimits(client=own))
    assert run.stopped_by == CLIENTS
    assert run.rows("SELECT round, client, up_end_s - start_s FROM visits") == [(0, 0, 10), (1, 1, 10)]


@each_policy
@pytest.mark.parametrize(
    ("rule", "limit"),
    every(2, [(BYTES_UP, 13 * UP_NBYTES // 2), (BYTES, 13 * (DOWN_NBYTES + UP_NBYTES) // 2)], first=1),
)
def test_bytes_are_never_overspent_and_nothing_that_was_paid_for_is_broken_off(
    policy: PolicyName, rule: str, limit: int, tmp_path: Path
) -> None:
    rules = RoundPolicy(policy, over_select=1.0, deadline=100.0, buffer=2, min_fraction=0.5)
    budget: dict[str, Any] = {rule: limit}
    run = ran(tmp_path, rules, rounds=99, limits=RunLimits(**budget))
    assert (run.stopped_by, run.rows("SELECT COUNT(*), MIN(kind), MAX(kind) FROM visits")) == (
        rule,
        [(6, "train", "train")],
    )


@each_synchronous
@pytest.mark.parametrize(
    ("rule", "limit"),
    every(
        2,
        [
            # Each of four visits: 5,344 B down and 5,398 B up; with 18, 22, 36 and 72 J, and 12, 12 and 8 J of waiting.
            (BYTES, 6 * (DOWN_NBYTES + UP_NBYTES)),
            (BYTES_DOWN, 6 * DOWN_NBYTES),
            (JOULES, 180.0 + 72.0),
        ],
    ),
)
def test_a_budget_ends_a_run_before_the_round_that_it_cannot_pay_for_whole(
    policy: PolicyName, rule: str, limit: float, tmp_path: Path
) -> None:
    budget: dict[str, Any] = {rule: limit}
    how: dict[str, Any] = {"rounds": 99, "limits": RunLimits(**budget)}
    one = ran(tmp_path / "one")
    run = ran(tmp_path / "whole", RoundPolicy(policy, over_select=1.0, deadline=100.0), **how)
    assert (run.stopped_by, run.rows("SELECT participants, cut_by FROM rounds")) == (rule, [(4, "")])
    assert np.array_equal(run.model, one.model)
    # The rest is left, not spent, and a share of clients makes a round if that is enough.
    assert run.federation.budget.spent.bytes == 4 * (DOWN_NBYTES + UP_NBYTES)
    part = RoundPolicy(policy, over_select=1.0, deadline=100.0, min_fraction=0.5)
    run = ran(tmp_path / "part", part, **how)
    assert (run.stopped_by, run.rows("SELECT participants, cut_by FROM rounds")) == (rule, [(4, ""), (2, rule)])
    assert not np.array_equal(run.model, one.model)


@each_synchronous
def test_the_visits_that_end_in_time_make_a_last_round_if_the_scenario_says_so(
    policy: PolicyName, tmp_path: Path
) -> None:
    # Visits of 4, 4, 8 and 16 s; the first round ends at 16 s, and the second is interrupted at 25 s.
    how: dict[str, Any] = {"rounds": 99, "limits": RunLimits(virtual_seconds=25.0)}
    shares = {None: [(4, 16, ""), (0, 25, SECONDS)], 0.75: [(4, 16, ""), (3, 25, SECONDS)]}
    for share, rounds in shares.items():
        rules = RoundPolicy(policy, over_select=1.0, deadline=100.0, min_fraction=share)
        run = ran(tmp_path / str(share), rules, **how)
        assert (run.stopped_by, run.federation.clock.now) == (SECONDS, 25.0)
        assert run.rows("SELECT participants, end_s, cut_by FROM rounds") == rounds
    assert kinds(run, 1) == "0 train, 1 train, 2 train, 3 cut"
    assert run.federation.rounds == 2


# --- the end of time, and the goal ------------------------------------------------------------------------------------


@each_policy
def test_time_that_ends_before_the_first_visit_does_leaves_the_model_as_it_was(
    policy: PolicyName, tmp_path: Path
) -> None:
    run = ran(
        tmp_path, RoundPolicy(policy, over_select=1.0, buffer=2), rounds=99, limits=RunLimits(virtual_seconds=3.0)
    )
    assert (run.stopped_by, run.federation.clock.now, run.federation.rounds) == (SECONDS, 3.0, 0)
    assert kinds(run) == "0 cut, 1 cut, 2 cut, 3 cut"
    # Down for 1, 1, 2, 3 s; computing for 1, 2, 1, 0 s; client 0 has been sending for 1 s, half of its update.
    assert run.rows("SELECT joules FROM visits ORDER BY client") == [(14,), (18,), (12,), (6,)]
    spent = 3 * DOWN_NBYTES + math.floor(0.75 * DOWN_NBYTES) + UP_NBYTES // 2
    query = "SELECT start_s, end_s, participants, busy_s, wasted_s, wasted_bytes, wasted_joules FROM rounds"
    assert run.rows(query) == [(0, 3, 0, 12, 12, spent, 50)]
    assert np.array_equal(run.model, run.start)


@each_policy
@pytest.mark.parametrize(
    ("how", "stopped_by", "unscored"),
    [({"rounds": 99, "target": 0.01}, TARGET, [0]), ({"rounds": 3, "eval_every": 2}, ROUNDS, [1, 0, 0])],
)
def test_a_target_ends_the_run_in_the_round_that_reaches_it_and_the_last_round_is_scored(
    policy: PolicyName, how: dict[str, Any], stopped_by: str, unscored: list[int], tmp_path: Path
) -> None:
    run = ran(tmp_path, RoundPolicy(policy, over_select=1.0, deadline=100.0, buffer=2), **how)
    assert (run.stopped_by, run.federation.rounds) == (stopped_by, len(unscored))
    assert run.rows("SELECT round, accuracy IS NULL FROM rounds") == [*enumerate(unscored)]
    assert run.rows("SELECT COUNT(*) FROM rounds WHERE bottleneck = 'waiting'") == [(0,)]  # all are always there


# --- what holds for every policy --------------------------------------------------------------------------------------


def unsteady(folder: Path, policy: PolicyName, **how: Any) -> Run:
    """Clients of all kinds that come and go, crash and differ from visit to visit."""
    return play(folder, "fedbr", **{**unsteady_world(policy), **how})


@each_policy
def test_the_order_of_replies_changes_nothing(policy: PolicyName, tmp_path: Path) -> None:
    ordered = unsteady(tmp_path / "ordered", policy)
    assert ordered.rows("SELECT COUNT(*) FROM visits WHERE kind IN ('lost', 'late', 'cut')") != [(0,)]
    other = unsteady(tmp_path / "shuffled", policy, shuffle=1)
    assert model_sha256(other.federation) == model_sha256(ordered.federation)
    assert store(other.federation).ledger.chain == store(ordered.federation).ledger.chain
    assert virtual_rows(tmp_path / "shuffled") == virtual_rows(tmp_path / "ordered")


@each_policy
def test_the_ledger_of_a_run_adds_up_and_its_folder_holds_what_two_checkpoints_need(
    policy: PolicyName, tmp_path: Path
) -> None:
    run = unsteady(tmp_path, policy)
    turn = "visit" if policy in ("fedasync", "fedbuff") else "round"
    counted = run.rows(f"SELECT {turn}, client, bytes_down, bytes_up FROM visits WHERE kind = 'train'")
    assert counted
    for key, client, down, up in counted:
        assert run.workers.nbytes[key, client] == (down, up)
    by_direction = "SELECT visit, SUM(nbytes) FROM transfers WHERE direction = '{}' GROUP BY visit ORDER BY visit"
    for column, way in (("bytes_down", "down"), ("bytes_up", "up")):
        assert run.rows(by_direction.format(way)) == run.rows(f"SELECT visit, {column} FROM visits ORDER BY visit")
    for column in ("bytes_down", "bytes_up", "flops", "joules"):
        (whole,), (parts,) = (run.rows(f"SELECT SUM({column}) FROM {table}")[0] for table in ("rounds", "visits"))
        assert whole == pytest.approx(parts, rel=1e-12)
    spent = run.federation.budget.spent
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM rounds") == [(spent.bytes_down, spent.bytes_up)]
    committed = run.federation.committed
    assert (committed.bytes_down, committed.bytes_up) == (spent.bytes_down, spent.bytes_up)
    assert run.federation.budget.reserve([]) == ([], None)
    visits = run.rows("SELECT visit, start_s FROM visits ORDER BY visit")
    assert [number for number, _ in visits] == list(range(len(visits)))
    assert [start for _, start in visits] == sorted(start for _, start in visits)
    assert run.federation.visits == len(visits)
    files, kept = {path.name for path in (tmp_path / "state").iterdir()}, committed_states(run.federation)
    assert files == {name for (name,) in run.rows("SELECT file FROM states")} >= set(kept.values())
    last = run.rows("SELECT MAX(round) FROM rounds")[0][0]
    newest = "SELECT client, file FROM states WHERE round <= {} GROUP BY client HAVING round = MAX(round)"
    assert dict(run.rows(newest.format(last))) == kept
    assert files == {name for round in (last, last - 1) for _, name in run.rows(newest.format(round))}
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    chosen = run.rows("SELECT round, client FROM choices ORDER BY round, client")
    assert chosen == run.rows("SELECT round, client FROM visits WHERE kind = 'train' ORDER BY round, client")


# --- rounds one after another -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "committed"), [(RuntimeError("no more"), [(0,)]), (PoolError("all gone"), [])])
def test_a_round_that_has_ended_is_committed_even_if_the_next_one_cannot_begin(
    error: Exception, committed: list[tuple[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = selection.sample_cohort

    def draw_once(seed: int, number: int, *rest: Any) -> list[int]:
        if number == 1:
            raise error
        return draw(seed, number, *rest)

    monkeypatch.setattr(selection, "sample_cohort", draw_once)
    run = federation(tmp_path, rounds=3, train=BRIEF, partition=IID)
    with pytest.raises(type(error)):
        run_rounds(run)
    store(run).ledger.close()
    assert Run(run, "").rows("SELECT round FROM rounds") == committed
