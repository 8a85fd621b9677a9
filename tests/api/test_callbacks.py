"""Callbacks are told of a run, may stop it, and may fail without harm to it. Rounds here are made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.task import Stopped
from scenarios.api.callbacks import Callback, CallbackDisplay, CommittedRound
from scenarios.config.load import load
from scenarios.report.live import LiveTable, ParallelTable
from tests.ledgers import made_run

ROW = RoundRow(
    *(0, 0.0, 1.5, 2, 0.25, None, 2.0, 300, 200, 500.0, 1e6, 1e6, 4.0),
    *(3.0, 0.0, 0, 0.0, 1, "compute", "ab"),
)


def finished(rounds: int = 1, **changes: Any) -> RoundFinished:
    return RoundFinished(ROW._replace(**changes), rounds, 900, 800, {}, {"clients/gap": 0.5, "server/drift": None})


def watching(*callbacks: Any) -> CallbackDisplay:
    watch = CallbackDisplay(LiveTable(["fedavg"], quiet=True), callbacks)
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


@pytest.mark.parametrize(("busy_s", "number"), [(3.0, 4), (0.0, 3)], ids=["a cut round", "a late evaluation"])
def test_a_row_that_is_no_round_says_so(busy_s: float, number: int) -> None:
    rounds: list[CommittedRound] = []
    watching(rounds.append).on_round(finished(rounds=3, round=3, busy_s=busy_s))
    assert (rounds[0].round, rounds[0].is_whole) == (number, False)


@pytest.mark.parametrize(
    "stop",
    [lambda round: False, lambda round: np.float64(0.5) > 0.9, lambda round: round.stop()],
    ids=["False", "numpy's False", "stop()"],
)
def test_a_callback_stops_the_run(stop: Any) -> None:
    watch = watching(stop)
    assert not watch()
    watch.on_round(finished())
    assert watch()
    watch.check(None)  # which is no error


def test_any_other_answer_does_not() -> None:
    watch = watching(lambda round: None, lambda round: 0)
    watch.on_round(finished())
    assert not watch()


def test_callbacks_are_told_of_the_end_of_a_run_only_if_they_were_told_of_its_start() -> None:
    told: list[object] = []

    class Told(Callback):
        def on_end(self, summary: Mapping[str, Any] | None) -> None:
            told.append(summary)

    CallbackDisplay(LiveTable(["fedavg"], quiet=True), Told()).on_end(None)
    assert told == []
    watching(Told()).on_end(None)
    assert told == [None]


def test_an_error_stops_the_run_and_is_named_while_the_others_are_told_all_the_same() -> None:
    told: list[str] = []

    class Broken(Callback):
        def on_round(self, round: CommittedRound) -> None:
            raise KeyError("size")

    class Told(Callback):
        def on_end(self, summary: Mapping[str, Any] | None) -> None:
            told.append("end")

    watch = watching(Broken(), Told())
    watch.on_round(finished())
    watch.on_end({})
    assert (watch(), told) == (True, ["end"])
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


def test_of_runs_that_follow_each_other_each_ends_before_the_next_one_starts(tmp_path: Path) -> None:
    diary, digits = Diary(), load("digits")
    watch = CallbackDisplay(LiveTable(["fedavg", "fedbr"], quiet=True), diary)
    with watch.ending_all():
        for name in ("a", "b"):
            watch.on_start(made_run(tmp_path / name, (0.5,), "", ()) if name == "a" else tmp_path / name, digits)
            watch.on_round(finished())
    assert diary.lines == [
        *("a starts", "a round 1", "a ends: rounds"),
        *("b starts", "b round 1", "b ends: None"),  # it failed
    ]


def test_runs_at_the_same_time_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    diary, digits = Diary(), load("digits")
    watch = CallbackDisplay(ParallelTable(["one", "two"], quiet=True), diary)
    folders = {name: made_run(tmp_path / name, (0.5,), "", ()) for name in ("one", "two")}
    with watch.ending_all():
        for name, folder in folders.items():
            watch.about(name)
            watch.on_start(folder, digits)
        for name in ("two", "one"):
            watch.about(name)
            watch.on_round(finished())
        watch.about("one", has_ended=True)
    assert diary.lines == [
        *("one starts", "two starts", "two round 1", "one round 1", "one ends: rounds", "two ends: rounds"),
    ]


def test_a_callback_that_fails_before_the_first_round_of_several_runs_is_the_reason_of_the_stop(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_start(self, folder: Path, scenario: Mapping[str, Any]) -> None:
            raise KeyError("size")

    watch = CallbackDisplay(LiveTable(["fedavg"], quiet=True), Broken())
    with pytest.raises(RunFailed, match="Broken: KeyError: 'size'"), watch.ending_all():
        watch.on_start(tmp_path, load("digits"))
        assert watch.or_stopped(lambda: False)()
        raise Stopped
