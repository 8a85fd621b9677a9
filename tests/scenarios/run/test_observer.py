"""Observers are told of a run from its start to its end, and may end it after a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.run.observer import InnerRun, NotePrinter, RunObserver
from scenarios.run.run_folder import RunFolder
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import summary_of_run

NOTE = "2 of 3 clients have no test examples, left out of means over clients"


class Diary(RunObserver):
    """Writes down what it is told, and ends the run after so many rounds."""

    def __init__(self, most: int = 99, fails: bool = False) -> None:
        self.lines: list[str] = []
        self._most, self._fails = most, fails

    def on_start(self, folder: Path, loaded: Any) -> None:
        self.lines.append(f"start of {folder.name}")

    def on_round(self, progress: Any) -> bool:
        self.lines.append(f"round {progress.rounds}")
        if self._fails:
            raise ScenarioError("no more")
        return bool(progress.rounds >= self._most)

    def on_end(self, summary: Any) -> None:
        self.lines.append("failed" if summary is None else f"end by {summary['stopped_by']}")


def run(out: Path, *observers: RunObserver) -> dict[str, Any]:
    shape = ("rounds.max=2", "data.clients=3", "rounds.participants=2")
    return summary_of_run(out, *shape, run_id="a", observers=observers)


def test_all_observers_are_told_of_a_run_in_their_order(tmp_path: Path) -> None:
    diary = Diary()
    run(tmp_path, diary, diary)
    assert diary.lines == [line for line in ("start of a", "round 1", "round 2", "end by rounds") for _ in range(2)]


def test_a_run_whose_observer_fails_has_ended_without_a_summary(tmp_path: Path) -> None:
    diary = Diary(fails=True)
    with pytest.raises(ScenarioError, match="no more"):
        run(tmp_path, diary)
    assert diary.lines == ["start of a", "round 1", "failed"]
    assert RunFolder(tmp_path / "digits" / "a").is_begun  # and can be resumed


def test_a_run_within_another_piece_of_work_is_known_by_its_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    diary, printer = Diary(), NotePrinter()
    inner = InnerRun([diary, printer])
    inner.on_start(Path("a"), load("digits"))
    for _ in range(2):
        inner.on_note(NOTE)
    assert (diary.lines, capsys.readouterr().err) == ([], f"fedbr: note: {NOTE}\n")
