"""Checkpoints of chosen rounds stay, with the client states that belong to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.records.kept_checkpoints import CheckpointRules
from coordinator.records.resume import audit
from coordinator.records.schema import RoundRow
from coordinator.records.store import Commit, Ledger

ROW = RoundRow(0, 0.0, 2.5, 1, 0.5, 1.25, 2.0, 100, 80, 400.0, 1e6, 2e6, 3.5, 2.5, 0.0, 0, 0.0, 7, "own link", "ab12")
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
    return ROW._replace(round=round, accuracy=accuracy)


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
