"""Callbacks are told of a run, may stop it, and may fail without harm to it. Rounds here are made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished, RunFailed
from scenarios.api.callbacks import Callback, CallbackObserver, CommittedRound
from scenarios.config.load import load

ROW = RoundRow(
    *(0, 0.0, 1.5, 2, 0.25, None, 2.0, 300, 200, 500.0, 1e6, 1e6, 4.0), *(3.0, 0.0, 0, 0.0, 1, "compute", "ab")
)


def finished(rounds: int = 1, **changes: Any) -> RoundFinished:
    return RoundFinished(ROW._replace(**changes), rounds, 900, 800, {}, {"clients/gap": 0.5, "server/drift": None})


def watching(*callbacks: Any) -> CallbackObserver:
    watch = CallbackObserver(callbacks)
    watch.on_start(Path("runs/digits/a"), load("digits"))
    return watch


def test_a_function_is_given_rounds_counted_from_one_with_this_rounds_and_all_bytes() -> None:
    rounds: list[CommittedRound] = []
    watching(rounds.append).on_round(finished(rounds=3, round=2))
    (round,) = rounds
    assert (round.round, round.is_whole, round.accuracy, round.test_loss, round.virtual_seconds) == (
        *(3, True, 0.25),
        *(None, 1.5),
    )
    assert (round.bytes_down, round.bytes_up, round.total_bytes_down, round.total_bytes_up) == (300, 200, 900, 800)
    assert round.ledger_row["round"] == 2
    assert "test_loss" not in round.numbers()
    assert round.logged == {"clients/gap": 0.5, "server/drift": None}
    assert (round.numbers()["clients/gap"], "server/drift" in round.numbers()) == (0.5, False)
    assert round.numbers()["participants"] == 2.0


@pytest.mark.parametrize(
    "stop",
    [lambda round: False, lambda round: np.float64(0.5) > 0.9, lambda round: round.stop()],
    ids=["False", "numpy's False", "stop()"],
)
def test_a_callback_stops_the_run(stop: Any) -> None:
    watch = watching(stop)
    assert watch.on_round(finished())
    watch.check(None)  # which is no error


def test_an_error_stops_the_run_and_is_named_while_the_others_are_told_all_the_same() -> None:
    told: list[str] = []

    class Broken(Callback):
        def on_round(self, round: CommittedRound) -> None:
            raise KeyError("size")

    class Told(Callback):
        def on_end(self, summary: Mapping[str, Any] | None) -> None:
            told.append("end")

    watch = watching(Broken(), Told())
    assert watch.on_round(finished())
    watch.on_end({})
    assert told == ["end"]
    with pytest.raises(
        RunFailed, match=r"callback .*Broken: KeyError: 'size' \(/.*, line \d+\); resume it\nrun folder: runs/a"
    ) as failed:
        watch.check(Path("runs/a"), "resume it")
    assert isinstance(failed.value.__cause__, KeyError)


class Diary(Callback):
    """Notes what it is told, by the folder of the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_start(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        self.lines.append(f"{folder.name} starts")

    def on_round(self, round: CommittedRound) -> None:
        self.lines.append(f"{round.folder.name} round {round.round}")

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        assert summary is not None
        self.lines.append(f"{Path(summary['run_dir']).name} ends: {summary['stopped_by']}")


def test_runs_at_the_same_time_are_told_apart_by_their_folders() -> None:
    diary, digits = Diary(), load("digits")
    watch = CallbackObserver(diary)
    for name in ("one", "two"):
        watch.about(name)
        watch.on_start(Path("runs", name), digits)
    for name in ("two", "one"):
        watch.about(name)
        watch.on_round(finished())
    watch.about("one")
    watch.on_end({"run_dir": "runs/one", "stopped_by": "rounds"})
    watch.about("two")
    watch.on_end(None)
    assert diary.lines == [
        *("one starts", "two starts", "two round 1", "one round 1", "one ends: rounds", "two ends: None")
    ]
