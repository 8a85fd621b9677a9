"""``checkpoints.keep``: a run that is cut and resumed keeps what an undisturbed one keeps, with the same chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.rounds.run import RoundFinished
from tests.ledgers import chain
from tests.observers import Listener
from tests.scenarios.in_this_process import pool_in_this_process, resume, run, summary_of_run
from tests.scenarios.runs import opened

__all__ = ["pool_in_this_process"]
SHORT = ("method=fedper", "rounds.max=5", "data.clients=3", "rounds.participants=2", "model.width=4")
KEEP = "checkpoints.keep=every:2"


class Cut(Exception):  # noqa: N818 - no error
    """The process ends here."""


def cut(progress: RoundFinished) -> None:
    if progress.rounds == 3:
        raise Cut


def kept(folder: Path) -> set[str]:
    return {f"{place}/{path.name}" for place in ("checkpoints", "state") for path in (folder / place).iterdir()}


def test_kept_checkpoints_survive_an_end_and_a_resume(tmp_path: Path) -> None:
    whole, plain = run(tmp_path / "whole", *SHORT, KEEP), run(tmp_path / "plain", *SHORT)
    with pytest.raises(Cut):
        summary_of_run(tmp_path, *SHORT, KEEP, run_id="cut", observers=[Listener(on_round=cut)])
    folder = tmp_path / "digits" / "cut"
    resume(opened(folder)[0], folder)
    assert {name for name in kept(whole) if "round" in name} == {
        f"checkpoints/round-00000{number}.safetensors" for number in (1, 3, 4)
    }
    assert kept(folder) == kept(whole)
    assert chain(folder) == chain(whole) == chain(plain)
