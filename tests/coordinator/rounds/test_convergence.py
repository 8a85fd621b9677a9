"""The stop rule of patience: which evaluation ends a run, in which policies, and after a kill right before it.

A step size of 0 changes no model, so that the first evaluation stays the best one, and every later one is no better.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import Ledger, evaluations
from coordinator.rounds.budget import CONVERGED, ROUNDS, TARGET, Budget, RunLimits
from coordinator.rounds.policy import PolicyName, RoundPolicy
from edge.protocol.config import PartitionConfig, TrainConfig
from tests.ledgers import virtual_rows
from tests.toy import broken_off, play, resumed

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
