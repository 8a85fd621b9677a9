"""Synchronous policies: who counts, what late and lost visits cost, who is to blame, and when a run stops.

Clients are a clockwork: download, computing and upload of each take literal seconds, and a client draws 2 W while it
receives, 8 W while it trains, 4 W while it sends and 1 W while it waits for the others.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
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
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.synchronous import Round, run_rounds
from coordinator.workers.task import PoolError
from costmodel.clock import Clock
from costmodel.fleet.dynamics import PAUSE
from costmodel.network.links import Links
from costmodel.network.tcp import wire_bits
from edge.protocol.rng import keyed_generator
from tests.coordinator.rounds.clockwork import BRIEF, DOWN_NBYTES, EVER, FOUR, IID, UP_NBYTES, ran, windows
from tests.ledgers import virtual_rows
from tests.toy import Run, committed_states, federation, model_sha256, play, store, unsteady_world

each_policy = pytest.mark.parametrize("policy", POLICIES)
each_synchronous = pytest.mark.parametrize("policy", ["sync", "over_select", "deadline"])


def kinds(run: Run, round: int = 0) -> str:
    """Of the visits of a round by client, such as "0 train, 3 late"."""
    rows = run.rows(f"SELECT client, kind FROM visits WHERE round = {round} ORDER BY client")
    return ", ".join(f"{client} {kind}" for client, kind in rows)


def test_the_messages_of_the_clockwork_are_as_long_as_its_figures_say(tmp_path: Path) -> None:
    run = ran(tmp_path)
    assert run.rows("SELECT DISTINCT bytes_down, bytes_up FROM visits") == [(DOWN_NBYTES, UP_NBYTES)]
    times = run.rows("SELECT start_s, down_end_s, compute_end_s, up_end_s FROM visits ORDER BY client")
    assert times == [(0, 1, 2, 4), (0, 1, 3, 4), (0, 2, 4, 8), (0, 4, 8, 16)]


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


def test_the_round_lasts_until_the_server_has_handled_each_visit_that_counts(tmp_path: Path) -> None:
    busy = Links(aggregate_bytes_per_second=float(UP_NBYTES), seconds_per_visit=0.5)
    run = ran(tmp_path / "all", seconds=[(1.0, 1.0, 2.0)] * 2, links=busy)
    # Two updates at 4 s: a second each for their bytes, and half a second each beside them.
    assert run.rows("SELECT end_s FROM rounds") == [(7,)]
    # The two that are late are not handled: 4 s, and half a second for each of the others.
    busy = Links(seconds_per_visit=0.5)
    run = ran(tmp_path / "two", RoundPolicy("over_select", over_select=2.0), participants=2, links=busy)
    assert run.rows("SELECT end_s, participants FROM rounds") == [(5, 2)]


@pytest.mark.parametrize("rules", [RoundPolicy("over_select", over_select=2.0), RoundPolicy("deadline", deadline=4.0)])
def test_late_clients_go_on_while_the_server_adds_up_and_stay_late(rules: RoundPolicy, tmp_path: Path) -> None:
    # Both updates are there at 4 s and take 5 s to add up. Client 2 is done at 8 s, client 3 sends from 8 s on.
    slow = Links(aggregate_bytes_per_second=UP_NBYTES / 2.5)
    run = ran(tmp_path, rules, participants=2 if rules.policy == "over_select" else 4, links=slow)
    assert run.rows("SELECT end_s, participants FROM rounds") == [(9, 2)]
    query = "SELECT client, kind, bytes_up, joules, up_end_s FROM visits WHERE client > 1 ORDER BY client"
    assert run.rows(query) == [(2, "late", UP_NBYTES, 4 + 16 + 16 + 1, 8), (3, "late", UP_NBYTES // 8, 8 + 32 + 4, 9)]


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


@pytest.mark.parametrize(("factor", "wanted", "cohort"), [(1.3, 10, 13), (1.1, 10, 11), (1.25, 10, 13), (1.0, 7, 7)])
def test_how_many_begin(factor: float, wanted: int, cohort: int) -> None:
    assert RoundPolicy("over_select", wanted, over_select=factor).cohort == cohort
    assert RoundPolicy("deadline", wanted, over_select=factor).cohort == wanted


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


def test_the_fraction_that_is_asked_for_is_enough_however_it_is_rounded(tmp_path: Path) -> None:
    assert 0.14 * 50 > 7
    seconds = [(1.0, 1.0, 2.0)] * 7 + [(4.0, 4.0, 8.0)] * 43
    run = ran(tmp_path, RoundPolicy("deadline", deadline=4.0, min_fraction=0.14), seconds=seconds)
    assert run.rows("SELECT participants FROM rounds") == [(7,)]


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


def test_a_visit_may_pause_while_its_client_is_away(tmp_path: Path) -> None:
    paused = windows([EVER], [(0, 2), (10, 1e6)], on_loss=PAUSE)
    run = ran(tmp_path, seconds=FOUR[:2], behaviour=paused)
    # Client 1 computes from 1 to 2 s and from 10 to 11 s, then sends for 1 s; 8 J are its baseline in between.
    query = "SELECT kind, compute_end_s, up_end_s, paused_s, joules FROM visits WHERE client = 1"
    assert run.rows(query) == [("train", 11, 12, 8, 2 + 16 + 4 + 8)]
    assert run.rows("SELECT end_s, critical, bottleneck FROM rounds") == [(12, 1, "waiting")]


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


def test_a_client_that_is_lost_at_the_very_end_of_the_round_is_lost(tmp_path: Path) -> None:
    # Client 1 at the deadline; client 0 is late then, and still connected.
    run = ran(tmp_path, RoundPolicy("deadline", deadline=3.0), FOUR[:2], behaviour=windows([EVER], [(0, 3)]))
    assert kinds(run) == "0 late, 1 lost"
    assert run.federation.clock.state()["last_down"].tolist() == [1, -math.inf]


def test_clients_crash_when_their_streams_say_so(tmp_path: Path) -> None:
    hazard = 0.1
    run = ran(tmp_path, rounds=4, fleet={"crashes_per_hour": 3600 * hazard})
    found = run.rows("SELECT round, client, kind, up_end_s - start_s FROM visits ORDER BY round, client")
    for round in range(4):
        rng = keyed_generator(0, "visits of a round", round, 0)
        rng.standard_normal((4, 3))
        rng.random((4, 2))
        crashes = rng.standard_exponential(4) / hazard
        for client, (crash, whole) in enumerate(zip(crashes, (4, 4, 8, 16), strict=True)):
            _, _, kind, lasted = found[4 * round + client]
            assert kind == ("lost" if crash < whole else "train")
            assert lasted == pytest.approx(min(crash, whole), rel=1e-12)
    assert {kind for _, _, kind, _ in found} == {"lost", "train"}


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


@each_policy
def test_a_crumb_in_a_battery_is_as_good_as_nothing(
    policy: PolicyName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bits of a download take more than is left, so that a further visit would end where it begins, for ever.
    how: dict[str, Any] = {"seconds": [(1.0, 1.0, 2.0)] * 2, "rounds": 40}
    (joules,) = ran(tmp_path / "mains", **(how | {"rounds": 1}), fleet={"radio_energy": "rate"}).rows(
        "SELECT MAX(joules) FROM visits"
    )[0]
    how["fleet"] = {"radio_energy": "rate", "battery": joules + 0.001}
    visits = iter(range(50))
    monkeypatch.setattr(FederatedRun, "uncontended_cost", counted(visits, FederatedRun.uncontended_cost))
    monkeypatch.setattr(Round, "_costs", counted(visits, Round._costs))
    run = ran(tmp_path / "run", RoundPolicy(policy, over_select=1.0, buffer=2), **how)
    assert run.stopped_by == CLIENTS
    assert run.rows("SELECT COUNT(*) FROM visits WHERE up_end_s = start_s") == [(2,)]


# --- who is to blame --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "bottleneck"),
    [
        ((4.0, 4.0, 4.0), "own link"),
        ((4.0, 8.0, 4.0), "own link"),  # 8 s each: the first by name
        ((4.0, 16.0, 4.0), "compute"),
        ((0.5, 1.0, 8.0), "own link"),
    ],
)
def test_the_slowest_client_and_what_it_took_most_of(
    seconds: tuple[float, float, float], bottleneck: str, tmp_path: Path
) -> None:
    run = ran(tmp_path, seconds=[(1.0, 1.0, 1.0), seconds])
    assert run.rows("SELECT critical, bottleneck FROM rounds") == [(1, bottleneck)]


def test_a_link_that_all_share_is_to_blame_for_what_they_lose_there(tmp_path: Path) -> None:
    # Alone each would upload in 1 s, the server's link takes 8 s for each: both together 16 s.
    narrow = Links(up=float(wire_bits(UP_NBYTES)) / 8)
    run = ran(tmp_path, seconds=[(1.0, 1.0, 1.0)] * 2, links=narrow)
    assert run.rows("SELECT end_s, critical, bottleneck FROM rounds") == [(18, 0, "server link")]
    assert run.rows("SELECT shared_s, joules FROM visits") == [(15, 2 + 8 + 16 * 4)] * 2


# --- budgets ----------------------------------------------------------------------------------------------------------


def visits_of(run: Run, clients: int = 4) -> list[int]:
    counts = dict(run.rows("SELECT client, COUNT(*) FROM visits GROUP BY client"))
    return [counts.get(client, 0) for client in range(clients)]


@each_policy
@pytest.mark.parametrize(
    ("limit", "visits"),
    [
        ({"bytes": int(2.5 * (DOWN_NBYTES + UP_NBYTES))}, [2, 2, 2, 2]),
        ({"bytes_down": DOWN_NBYTES}, [1, 1, 1, 1]),
        ({"bytes_up": int(3.9 * UP_NBYTES)}, [3, 3, 3, 3]),
        ({"virtual_seconds": 9.0}, [2, 2, 1, 0]),
    ],
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


def test_joules_of_a_client_are_refused_with_what_it_waits(tmp_path: Path) -> None:
    # 18 J for each visit of client 0 alone, and 12 J for waiting for client 1, who needs 72 J.
    clients = Limits(joules=80.0)
    part = RoundPolicy(min_fraction=0.5)
    run = ran(tmp_path, part, [FOUR[0], FOUR[3]], rounds=99, limits=RunLimits(client=clients))
    # 30 J are spent after the first round; the others are without client 1.
    assert visits_of(run, 2) == [3, 1]
    assert run.rows("SELECT joules FROM visits WHERE client = 0") == [(30,), (18,), (18,)]


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
    ("rule", "limit"), [(BYTES_UP, 13 * UP_NBYTES // 2), (BYTES, 13 * (DOWN_NBYTES + UP_NBYTES) // 2)]
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
    [
        # Each of four visits: 5,344 B down and 5,398 B up; with 18, 22, 36 and 72 J, and 12, 12 and 8 J of waiting.
        (BYTES, 6 * (DOWN_NBYTES + UP_NBYTES)),
        (BYTES_DOWN, 6 * DOWN_NBYTES),
        (BYTES_UP, 6 * UP_NBYTES),
        (JOULES, 180.0 + 72.0),
    ],
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


def test_clients_that_would_not_count_anyway_are_no_loss(tmp_path: Path) -> None:
    # Two of four count, the first ones; a budget for six visits leaves the slowest out of the second round.
    how: dict[str, Any] = {"participants": 2, "rounds": 99}
    rules = RoundPolicy("over_select", over_select=2.0)
    limits = RunLimits(bytes_down=7 * DOWN_NBYTES)
    run = ran(tmp_path, rules, **how, limits=limits)
    assert (run.stopped_by, run.rows("SELECT participants, cut_by FROM rounds")) == (BYTES_DOWN, [(2, ""), (2, "")])
    assert kinds(run, 1) == "0 train, 1 train, 2 late"


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


def test_a_run_ends_with_its_last_round_even_if_the_clock_had_moved_on_to_the_next(tmp_path: Path) -> None:
    # Both updates are there at 4 s and take 2 s to add up; when the round ends, nobody is there until 64 s.
    away = windows([(0, 5), (64, 1e6)], [(0, 5), (64, 1e6)])
    slow = Links(aggregate_bytes_per_second=float(UP_NBYTES))
    run = ran(tmp_path, seconds=FOUR[:2], rounds=99, target=0.01, behaviour=away, links=slow)
    assert (run.stopped_by, kinds(run), kinds(run, 1)) == (TARGET, "0 train, 1 train", "")
    assert run.federation.clock.now == 64
    assert (run.federation.committed.rounds, run.federation.committed.virtual_seconds) == (1, 6)
    assert run.rows("SELECT start_s, end_s FROM rounds") == [(0, 6)]


@pytest.mark.parametrize(("seconds", "visits"), [(20.0, "0 cut, 1 cut, 2 cut, 3 cut"), (16.0, "")])
def test_a_target_that_is_met_only_when_time_has_ended_the_run_is_not_what_ended_it(
    seconds: float, visits: str, tmp_path: Path
) -> None:
    # Round 0 lasts until 16 s and is not scored; its model is, when no further round is played to its end.
    run = ran(tmp_path, rounds=99, limits=RunLimits(virtual_seconds=seconds), target=0.01, eval_every=2)
    assert run.rows("SELECT end_s, accuracy IS NULL FROM rounds") == [(16, 1), (seconds, 0)]
    assert kinds(run, 1) == visits
    assert run.stopped_by == SECONDS


# --- what holds for every policy --------------------------------------------------------------------------------------


def unsteady(folder: Path, policy: PolicyName, method: str = "fedbr", **how: Any) -> Run:
    """Clients of all kinds that come and go, crash and differ from visit to visit."""
    return play(folder, method, **{**unsteady_world(policy), **how})


@each_policy
@pytest.mark.parametrize("method", ["fedbr", "fedmlb+fedprox"])
def test_the_order_of_replies_changes_nothing(policy: PolicyName, method: str, tmp_path: Path) -> None:
    ordered = unsteady(tmp_path / "ordered", policy, method)
    assert ordered.rows("SELECT COUNT(*) FROM visits WHERE kind IN ('lost', 'late', 'cut')") != [(0,)]
    for name, shuffle in (("again", None), ("shuffled", 1)):
        other = unsteady(tmp_path / name, policy, method, shuffle=shuffle)
        assert model_sha256(other.federation) == model_sha256(ordered.federation)
        assert store(other.federation).ledger.chain == store(ordered.federation).ledger.chain
        assert virtual_rows(tmp_path / name) == virtual_rows(tmp_path / "ordered")


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


@each_policy
def test_the_wall_seconds_of_rounds_add_up_to_those_of_the_run(
    policy: PolicyName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([10.0, 11.0, 13.0, 16.0])  # when the run is put together, and at each commit
    monkeypatch.setattr("coordinator.records.checkpoints.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    run = ran(tmp_path, RoundPolicy(policy, over_select=1.0, deadline=100.0, buffer=2), rounds=3)
    assert run.rows("SELECT round, wall_s FROM host_rounds ORDER BY round") == [(0, 1), (1, 2), (2, 3)]


def test_a_round_that_would_begin_after_the_end_of_time_or_that_nobody_can_pay_for_does_not_begin(
    tmp_path: Path,
) -> None:
    late = windows([(64, 1e6)], [(64, 1e6)])
    limits = RunLimits(virtual_seconds=64.0)
    run = ran(tmp_path / "late", seconds=FOUR[:2], rounds=9, limits=limits, behaviour=late)
    assert (run.stopped_by, run.rows("SELECT * FROM rounds")) == (SECONDS, [])
    run = ran(tmp_path / "poor", rounds=9, limits=RunLimits(joules=17.0))
    assert (run.stopped_by, run.rows("SELECT * FROM visits")) == (JOULES, [])


def test_a_round_is_solved_once_for_its_price_and_its_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved, solve = [], Clock.solve_beside
    monkeypatch.setattr(Clock, "solve_beside", lambda clock, *how: solved.append(clock.now) or solve(clock, *how))  # type: ignore[func-returns-value]
    run = play(tmp_path, rounds=3)
    assert solved == [start for (start,) in run.rows("SELECT start_s FROM rounds")]


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


@each_policy
def test_rounds_add_up_and_a_loss_is_not_taken_for_an_accuracy(policy: PolicyName, tmp_path: Path) -> None:
    rules = RoundPolicy(policy, over_select=1.0, deadline=100.0, buffer=2)
    run = ran(tmp_path, rules, rounds=2, target=1.0)
    assert run.stopped_by == ROUNDS
    assert run.rows("SELECT MIN(test_loss) > 1, MAX(accuracy) < 1 FROM rounds") == [(1, 1)]
    (totals,) = run.rows("SELECT SUM(bytes_down), SUM(bytes_up), MAX(end_s) FROM rounds")
    committed = run.federation.committed
    assert (committed.bytes_down, committed.bytes_up, committed.virtual_seconds) == totals
    assert run.rows("SELECT COUNT(*) FROM rounds WHERE bottleneck = 'waiting'") == [(0,)]  # all are always there
