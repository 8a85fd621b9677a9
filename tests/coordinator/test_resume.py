"""A run that is broken off at any round and taken up again ends as if it had never been broken off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.federation import Progress
from coordinator.ledger import read
from coordinator.resume import take_up
from coordinator.rounds import POLICIES
from edge.config import TrainConfig
from tests.toy import Run, federation, play, unsteady_world

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
VIRTUAL = ("rounds", "visits", "transfers", "choices", "states", "checkpoints")
each_policy = pytest.mark.parametrize("policy", POLICIES)


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: [tuple(row) for row in read(folder / "ledger.sqlite", f"SELECT * FROM {table}")] for table in VIRTUAL
    }


def broken_off(folder: Path, method: str, after: int, how: dict[str, Any]) -> None:
    """A run whose coordinator dies while the next round is already under way."""

    class Killed(BaseException):
        pass

    def look(progress: Progress) -> None:
        if progress.rounds == after:
            raise Killed

    run = federation(folder, method, on_round=look, **how)
    with pytest.raises(Killed):
        POLICIES[run.rules.policy](run)
    run.ledger.close()


def resumed(folder: Path, method: str, how: dict[str, Any]) -> Run:
    run = federation(folder, method, again=True, **how)
    rule = take_up(run) or POLICIES[run.rules.policy](run)
    run.tidy()
    run.ledger.close()
    return Run(run, rule)


@each_policy
@pytest.mark.parametrize("method", ["fedavg", "fedbr"])
def test_resumed_after_any_round_is_uninterrupted(policy: str, method: str, tmp_path: Path) -> None:
    how = unsteady_world(policy) | {"rounds": 6, "eval_every": 2}
    straight = play(tmp_path / "straight", method, **how)
    for after in (1, 4, 5):
        folder = tmp_path / f"after {after}"
        broken_off(folder, method, after, how)
        again = resumed(folder, method, how)
        assert again.stopped_by == straight.stopped_by == "rounds"
        assert np.array_equal(again.model, straight.model)
        assert everything(folder) == everything(tmp_path / "straight")
        assert again.federation.budget.spent == straight.federation.budget.spent
        assert again.federation.committed == straight.federation.committed
