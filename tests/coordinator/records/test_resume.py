"""A run that is broken off at any round and taken up again ends as if it had never been broken off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.resume import resume_checkpoint
from coordinator.rounds.budget import Limits, RunLimits
from coordinator.rounds.policy import POLICIES, PolicyName
from coordinator.rounds.run import RoundFinished
from coordinator.rounds.synchronous import run_rounds
from edge.protocol.config import TrainConfig
from tests.ledgers import virtual_rows
from tests.toy import Run, federation, play, store, unsteady_world

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
each_policy = pytest.mark.parametrize("policy", POLICIES)


def broken_off(folder: Path, method: str, after: int, how: dict[str, Any]) -> None:
    """A run whose coordinator dies while the next round is already under way."""

    class Killed(BaseException):
        pass

    def look(progress: RoundFinished) -> None:
        if progress.rounds == after:
            raise Killed

    run = federation(folder, method, on_round=look, **how)
    if how.get("again"):
        assert resume_checkpoint(run, store(run)) is None
    with pytest.raises(Killed):
        run_rounds(run)
    store(run).ledger.close()


def resumed(folder: Path, method: str, how: dict[str, Any]) -> Run:
    run = federation(folder, method, again=True, **how)
    rule = resume_checkpoint(run, store(run)) or run_rounds(run)
    store(run).remove_orphans()
    store(run).ledger.close()
    return Run(run, rule)


@each_policy
@pytest.mark.parametrize("method", ["fedavg", "fedbr"])
def test_resumed_after_any_round_is_uninterrupted(policy: PolicyName, method: str, tmp_path: Path) -> None:
    how = unsteady_world(policy) | {"rounds": 6, "eval_every": 2}
    straight = play(tmp_path / "straight", method, **how)
    for after in (1, 4, 5):
        folder = tmp_path / f"after {after}"
        broken_off(folder, method, after, how)
        again = resumed(folder, method, how)
        assert again.stopped_by == straight.stopped_by == "rounds"
        assert np.array_equal(again.model, straight.model)
        assert virtual_rows(folder) == virtual_rows(tmp_path / "straight")
        assert again.federation.budget.spent == straight.federation.budget.spent
        assert again.federation.committed == straight.federation.committed


@each_policy
def test_resumed_twice_with_budgets_of_clients_it_is_still_the_same(policy: PolicyName, tmp_path: Path) -> None:
    limits = RunLimits(client=Limits(joules=3.0))
    how = unsteady_world(policy) | {"rounds": 6, "limits": limits}
    straight = play(tmp_path / "straight", "fedavg", **how)
    folder = tmp_path / "twice"
    broken_off(folder, "fedavg", 1, how)
    broken_off(folder, "fedavg", 3, {**how, "again": True})
    again = resumed(folder, "fedavg", how)
    assert virtual_rows(folder) == virtual_rows(tmp_path / "straight")
    assert again.stopped_by == straight.stopped_by


def test_a_run_that_a_budget_has_ended_stays_ended(tmp_path: Path) -> None:
    how: dict[str, Any] = {"participants": 3, "train": TrainConfig(lr=0.1, batch=32, local_steps=2), "period": 2}
    whole = play(tmp_path / "whole", "fedbr", **how, rounds=1)
    ((spent,),) = whole.rows("SELECT SUM(bytes_down + bytes_up) FROM visits")
    how |= {"rounds": 9, "limits": RunLimits(bytes=int(2.4 * spent))}
    ended = play(tmp_path / "ended", "fedbr", **how)
    assert ended.stopped_by == "bytes"
    # Killed after the last commit, before it was summed up: smaller visits might fit in what is left.
    again = federation(tmp_path / "ended", "fedbr", **how, again=True)
    assert resume_checkpoint(again, store(again)) == "bytes"
    store(again).ledger.close()
