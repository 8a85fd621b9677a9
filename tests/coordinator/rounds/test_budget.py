"""Stop rules: a budget is never overspent, time is cut at its edge, and the rule that stopped a run is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.store import Ledger, evaluations
from coordinator.rounds.budget import (
    BYTES,
    BYTES_DOWN,
    BYTES_UP,
    CONVERGED,
    FLOPS,
    JOULES,
    ROUNDS,
    SECONDS,
    TARGET,
    Budget,
    Cost,
    Limits,
    RunLimits,
)
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.synchronous import Round
from edge.protocol.config import PartitionConfig, TrainConfig
from tests.ledgers import virtual_rows
from tests.toy import broken_off, committed_states, federation, model_sha256, play, resumed

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
IID = PartitionConfig("iid")
TOTALS = "SELECT SUM(bytes_down) + SUM(bytes_up), SUM(flops), SUM(joules), SUM(bytes_down), SUM(bytes_up) FROM rounds"


# --- the rules alone --------------------------------------------------------------------------------------------------


def test_visits_start_while_all_of_them_fit_and_may_end_one_by_one() -> None:
    budget = Budget(RunLimits(bytes=100, flops=50.0, joules=10.0), 9)
    first, second = Cost(30, 10, 1.0, 1.0), Cost(20, 40, 1.0, 1.0)
    assert budget.reserve([first, second]) == ([True, True], None)
    assert budget.reserve([Cost(1)]) == ([False], BYTES)
    budget.release([first])
    budget.settle([0, 1], [[15, 5], [10, 0], [1.0, 1.0], [2.0, 0.0], [5.0, 1.0]])
    assert (budget.spent.bytes, budget.spent.flops, budget.spent.joules) == (30, 2.0, 2.0)
    assert budget.reserve([Cost(11), Cost(10)]) == ([False, True], BYTES)
    budget.release([second, Cost(10)])
    assert budget.reserve([Cost(40, 30, 48.0, 8.0)]) == ([True], None)


def test_a_smaller_visit_may_start_after_a_refused_one_and_the_first_refusal_is_named() -> None:
    budget = Budget(RunLimits(bytes=100, flops=50.0, joules=10.0), 9)
    asked = [Cost(1, 0, 60.0, 1.0), Cost(1, 0, 1.0, 11.0), Cost(90, 10, 1.0, 1.0)]
    assert budget.reserve(asked) == ([False, False, True], FLOPS)
    assert Budget(RunLimits(joules=1.0), 9).reserve([Cost(joules=1.5)]) == ([False], JOULES)


def test_each_direction_may_have_a_budget_of_its_own() -> None:
    budget = Budget(RunLimits(bytes=100, bytes_down=60, bytes_up=30), 9)
    assert budget.reserve([Cost(61, 0), Cost(0, 31), Cost(60, 30)]) == ([False, False, True], BYTES_DOWN)
    assert budget.reserve([Cost(0, 1)]) == ([False], BYTES_UP)


def test_time_refuses_no_visit_of_the_fleet_but_may_one_of_a_client() -> None:
    budget = Budget(RunLimits(virtual_seconds=1.0, client=Limits(virtual_seconds=3.0)), 9)
    assert budget.reserve([Cost(virtual_seconds=2.0)]) == ([True], None)
    assert budget.admits(5, Cost(virtual_seconds=3.0))
    budget.settle([5], [[0], [0], [0.0], [0.0], [2.0]])
    assert not budget.admits(5, Cost(virtual_seconds=1.5))
    assert budget.admits(6, Cost(virtual_seconds=1.5))


def test_a_client_pays_for_its_own_visits_alone() -> None:
    budget = Budget(RunLimits(client=Limits(bytes=100, bytes_up=30, flops=5.0, joules=4.0)), 9)
    budget.settle([0, 0], [[30, 20], [20, 0], [1.0, 2.0], [2.0, 0.0], [1.0, 1.0]])
    affordable = Cost(20, 10, 2.0, 2.0)
    assert budget.admits(0, affordable)
    for more in (Cost(1), Cost(0, 1), Cost(flops=0.5), Cost(joules=0.5)):
        assert not budget.admits(0, affordable + more)
        assert budget.admits(1, affordable + more)


def test_a_target_comes_before_the_last_round() -> None:
    budget = Budget(RunLimits(), 3, 0.5)
    assert [budget.reached(1, None), budget.reached(2, 0.49), budget.reached(3, 0.5)] == [None, None, TARGET]
    assert budget.reached(3, 0.49) == ROUNDS


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "column"), [(BYTES, 0), (FLOPS, 1), (JOULES, 2), (BYTES_DOWN, 3), (BYTES_UP, 4)])
def test_a_budget_is_never_overspent_and_may_be_used_up(rule: str, column: int, tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", rounds=3, train=BRIEF, partition=IID)
    first, second, third = (row[column] for row in whole.rows(f"{TOTALS} GROUP BY round"))
    limit = type(first)(first + second + 0.6 * third)  # bytes are whole
    how: dict[str, Any] = {"rounds": 99, "limits": RunLimits(**{rule: limit}), "train": BRIEF, "partition": IID}
    run = play(tmp_path / "rounds", **how)
    assert (run.stopped_by, run.rows(TOTALS)[0][column]) == (rule, first + second)
    run = play(tmp_path / "visits", **how, rules=RoundPolicy(min_fraction=0.5))
    assert run.stopped_by == rule
    assert run.rows(TOTALS)[0][column] <= limit
    # Two of the four visits of the third round: a third one would not have fitted.
    assert run.rows("SELECT participants FROM rounds") == [(4,), (4,), (2,)]


def test_a_budget_that_pays_for_no_visit_trains_nothing(tmp_path: Path) -> None:
    run = play(tmp_path, rounds=99, limits=RunLimits(bytes=100), train=BRIEF)
    assert (run.stopped_by, run.federation.rounds, run.rows(TOTALS)) == (BYTES, 0, [(None,) * 5])
    assert np.array_equal(run.model, run.start)


def test_virtual_time_is_cut_exactly_at_its_edge(tmp_path: Path) -> None:
    first, second = play(tmp_path / "two", rounds=2, train=BRIEF).rows("SELECT start_s, end_s FROM rounds")
    edge = (second[0] + second[1]) / 2
    run = play(tmp_path / "run", rounds=99, limits=RunLimits(virtual_seconds=edge), train=BRIEF)
    assert run.stopped_by == SECONDS
    assert run.federation.clock.now == edge
    assert run.federation.rounds == 1
    query = "SELECT start_s, end_s, participants, wasted_bytes, bytes_down + bytes_up, accuracy, wasted_s FROM rounds"
    whole, cut = run.rows(query)
    assert whole[:4] == (first[0], first[1], 4, 0)
    # The second round is charged up to the edge, all of it wasted; it counts for nothing.
    assert cut[:3] == (first[1], edge, 0)
    assert cut[3] == cut[4] > 0
    assert cut[5] is None  # the model was scored after the first round
    assert cut[6] == pytest.approx(4 * (edge - first[1]), rel=1e-12)
    sent = run.rows("SELECT SUM(nbytes) FROM transfers WHERE round = 1 AND key = 'cut'")
    assert sent == [(cut[4],)]
    visits = run.rows(
        "SELECT visit, kind, samples, steps, loss, up_end_s, nominal_bytes, nominal_flops FROM visits WHERE round = 1"
    )
    # What was planned is on record, but no loss is known and the paper would charge nothing.
    assert visits == [(4 + i, "cut", 64, 2, None, edge, 0.0, 0.0) for i in range(4)]
    # By the middle of the round all have computed, and are sending.
    flops = [run.rows(f"SELECT flops FROM visits WHERE round = {round}") for round in (0, 1)]
    assert flops[0] == flops[1]


def test_a_cut_round_leaves_model_and_clients_as_they_were(tmp_path: Path) -> None:
    one = play(tmp_path / "one", "fedbr", rounds=1, train=BRIEF)
    ((start, end),) = play(tmp_path / "two", "fedbr", rounds=2, train=BRIEF).rows(
        "SELECT start_s, end_s FROM rounds WHERE round = 1"
    )
    edge = (start + end) / 2
    run = play(tmp_path / "run", "fedbr", rounds=99, limits=RunLimits(virtual_seconds=edge), train=BRIEF)
    assert (run.stopped_by, run.federation.clock.now) == (SECONDS, edge)
    assert np.array_equal(run.model, one.model)
    assert committed_states(run.federation) == committed_states(one.federation)
    assert run.federation.server.state()["n"].tolist() == one.federation.server.state()["n"].tolist()
    assert run.rows("SELECT DISTINCT model_sha256 FROM rounds") == [(model_sha256(one.federation),)]


def test_a_visit_that_ends_at_the_edge_counts_and_no_round_starts_there(tmp_path: Path) -> None:
    one = play(tmp_path / "one", rounds=1, train=BRIEF)
    edge = one.federation.clock.now
    for rounds, stopped_by in ((1, ROUNDS), (9, SECONDS)):
        run = play(tmp_path / stopped_by, rounds=rounds, limits=RunLimits(virtual_seconds=edge), train=BRIEF)
        assert (run.stopped_by, run.federation.clock.now) == (stopped_by, edge)
        assert run.rows("SELECT round, participants FROM rounds") == [(0, 4)]
        assert np.array_equal(run.model, one.model)


@pytest.mark.parametrize("share", [0.35, 0.8])
def test_joules_hold_on_a_contended_link_too(share: float, tmp_path: Path) -> None:
    # Whoever is left when visits are refused uses the link at other times, and may spend more than was foreseen.
    how: dict[str, Any] = {"train": BRIEF, "partition": IID, "clients": 6, "server_link": 2e6}
    whole = play(tmp_path / "whole", rounds=1, **how).rows(TOTALS)[0][2]
    how["rules"] = RoundPolicy(min_fraction=0.0)
    run = play(tmp_path / "run", rounds=1, limits=RunLimits(joules=share * whole), **how)
    spent = run.rows(TOTALS)[0][2]
    assert 0 < spent <= share * whole


def test_whoever_is_left_is_priced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three of four fit at first, but three alone would spend 4.5 J of 3.2 J; two spend 2 J.
    joules = {4: 1.0, 3: 1.5, 2: 1.0}
    monkeypatch.setattr(Round, "_costs", lambda self, visits: [Cost(1, 0, 1.0, joules[len(visits)])] * len(visits))
    run = federation(tmp_path, rounds=1, limits=RunLimits(joules=3.2), rules=RoundPolicy(min_fraction=0.5))
    round = Round(run, 0)
    admitted = round._admitted()
    assert ([visit.client for visit in admitted], round.stopped_by) == ([0, 1], JOULES)


def test_a_run_that_ends_between_evaluations_scores_its_last_model(tmp_path: Path) -> None:
    times = play(tmp_path / "three", rounds=3, train=BRIEF).rows("SELECT end_s, accuracy FROM rounds")
    edge, wanted = (times[0][0] + times[1][0]) / 2, times[0][1]
    cut = play(tmp_path / "cut", rounds=99, limits=RunLimits(virtual_seconds=edge), train=BRIEF, eval_every=5)
    assert cut.rows("SELECT participants, accuracy FROM rounds") == [(4, None), (0, wanted)]

    one_round = play(tmp_path / "one", rounds=1, train=BRIEF).rows(TOTALS)[0][0]
    spent = play(tmp_path / "spent", rounds=99, limits=RunLimits(bytes=one_round), train=BRIEF, eval_every=5)
    assert (spent.stopped_by, spent.rows("SELECT participants, accuracy FROM rounds")) == (
        BYTES,
        [(4, None), (0, wanted)],
    )
    assert spent.federation.rounds == 1


# --- patience: a step size of 0 changes no model, so that the first evaluation stays the best -------------------------

STILL = TrainConfig(lr=0.0, batch=32, local_steps=1)
LEARNING = TrainConfig(lr=0.1, batch=32, local_steps=2)
VALIDATED: dict[str, Any] = {"validation": 0.2, "evaluation": {"on": "clients", "select": "validation"}}


def test_a_run_converges_so_many_rounds_after_its_best_and_an_equal_value_is_no_better() -> None:
    budget = Budget(RunLimits(), 99, patience=3)
    asked = [(1, 0.5), (2, 0.4), (3, 0.6), (4, 0.6), (5, None), (6, 0.6)]
    assert [budget.reached(rounds, value, value) for rounds, value in asked] == [*[None] * 5, CONVERGED]
    assert (budget.convergence.best, budget.convergence.best_rounds) == (0.6, 3)
    assert budget.reached(6, 0.6, 0.6) == CONVERGED  # whoever asks again
    assert budget.reached(6, 0.7, 0.7) is None


def test_a_target_comes_before_convergence_and_convergence_before_the_last_round() -> None:
    budget = Budget(RunLimits(), 3, 0.5, patience=1)
    assert [budget.reached(n, 0.5, 0.1) for n in (1, 2)] == [TARGET, TARGET]
    assert [budget.reached(3, 0.4, 0.1), budget.reached(3, None)] == [CONVERGED, ROUNDS]
    assert Budget(RunLimits(), 3).reached(3, 0.4, 0.4) == ROUNDS


@pytest.mark.parametrize(
    ("policy", "every", "rounds"), [("sync", 1, 3), ("sync", 3, 6), ("fedbuff", 1, 3), ("fedasync", 3, 6)]
)
def test_patience_is_counted_in_rounds_and_ends_every_policy_at_an_evaluation(
    policy: PolicyName, every: int, rounds: int, tmp_path: Path
) -> None:
    # Best after round 1 (or 3); two rounds later the next evaluation is the third (or the sixth).
    rules = RoundPolicy(policy, buffer=2)
    run = play(tmp_path, rounds=9, rules=rules, patience=2, eval_every=every, train=STILL)
    assert (run.stopped_by, run.federation.rounds) == (CONVERGED, rounds)
    with_accuracy = [number for (number,) in run.rows("SELECT round + 1 FROM rounds WHERE accuracy IS NOT NULL")]
    assert with_accuracy == list(range(every, rounds + 1, every))


def test_the_validation_examples_decide_where_they_select(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": LEARNING, "partition": PartitionConfig("dirichlet", alpha=0.3), **VALIDATED}
    whole = play(tmp_path / "whole", rounds=8, **how)
    held_out = [row for row in evaluations(tmp_path / "whole" / "ledger.sqlite") if row["kind"] == "validation"]
    rows = [row for row in held_out if row["metric"] == "accuracy"]
    means = [
        sum(values) / len(values) for values in ([row["value"] for row in rows if row["round"] == n] for n in range(8))
    ]
    ends = next((n + 1 for n in range(1, 8) if means[n] <= max(means[:n])), None)
    assert ends is not None, means
    run = play(tmp_path / "run", rounds=8, patience=1, **how)
    assert (run.stopped_by, run.federation.rounds) == (CONVERGED, ends)
    assert run.rows("SELECT accuracy FROM rounds") == whole.rows("SELECT accuracy FROM rounds")[:ends]


def ended_by(folder: Path) -> Any:
    ledger = Ledger(folder / "ledger.sqlite", None)
    try:
        return ledger.stopped_by(ledger.rounds()[-1].round)
    finally:
        ledger.close()


@pytest.mark.parametrize("policy", ["sync", "fedbuff"])
def test_killed_right_before_the_round_that_ends_it_or_right_after_a_run_ends_the_same(
    policy: PolicyName, tmp_path: Path
) -> None:
    how = {"rounds": 9, "rules": RoundPolicy(policy, buffer=2), "patience": 3, "train": STILL, **VALIDATED}
    whole = play(tmp_path / "whole", **how)
    assert (whole.stopped_by, whole.federation.rounds, ended_by(tmp_path / "whole")) == (CONVERGED, 4, CONVERGED)
    for after in (3, 4):
        broken_off(tmp_path / f"after {after}", "fedavg", after, **how)
        again = resumed(tmp_path / f"after {after}", "fedavg", **how)
        assert (again.stopped_by, again.federation.rounds) == (CONVERGED, 4)
        assert virtual_rows(tmp_path / f"after {after}") == virtual_rows(tmp_path / "whole")
