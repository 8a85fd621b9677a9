"""A run folder that is moved, removed or replaced in mid-run: the run ends and says so; the moved folder goes on."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from scenarios.run.folder_files import run_lock
from tests import warm
from tests.ledgers import virtual_rows
from tests.remains import Watch
from tests.scenarios.runs import QUICK, undisturbed

COMMIT = ("coordinator.records.checkpoints:CheckpointStore.commit", "before", 2)
CHECKPOINT = ("coordinator.records.checkpoints:write_vectors", "before", 2)
LEDGER = ("coordinator.records.store:Ledger.commit", "before", 2)
TRAINING = ("coordinator.rounds.pool_trainer:PoolTrainer.submit", "before", 2)
SUMMARY = ("coordinator.records.store:Ledger.finish", "before", 1)
DESCRIBED = ("scenarios.run.evaluated_clients:check_validation", "after", 1)
"""The moments of a run: before the second round is committed, its checkpoint written, and its rows; before its visits
are trained; before the run's end is recorded; and before the ledger is made."""

PLAIN = ["method=fedavg", "rounds.max=3"]
KEEPING = ["method=scaffold", "train.lr=0.01", "rounds.max=3"]
HEADS = ["method=fedper", "rounds.max=3"]
BUFFERED = ["method=scaffold", "train.lr=0.01", "rounds.policy=fedbuff", "rounds.max=3"]


WholeRows = Callable[[list[str]], dict[str, list[tuple[Any, ...]]]]


def harmed(
    kind: str, instant: tuple[str, str, int], out: Path, watch: Watch, overrides: list[str]
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a run in ``out/digits/a`` whose folder is harmed; nothing of it is left."""
    words = ["run", "digits", *QUICK, *overrides, "--workers", "2", "--out", str(out), "--run-id", "a", "--quiet"]
    meddler = (f"{kind}={out}/digits/a", *map(str, instant))
    ended = warm.run(words, meddler=meddler, env=watch.environment)
    assert watch.remains() == []
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def whole_rows(tmp_path_factory: pytest.TempPathFactory, launcher: WorkerLauncher) -> WholeRows:
    """The rows of a run with these overrides that nobody disturbs, which is made once."""

    @functools.cache
    def rows(*overrides: str) -> dict[str, list[tuple[Any, ...]]]:
        return virtual_rows(undisturbed(tmp_path_factory.mktemp("whole"), launcher, *overrides))

    return lambda overrides: rows(*overrides)


@pytest.mark.parametrize(
    ("overrides", "instant"),
    [
        pytest.param(PLAIN, COMMIT, id="commit"),
        pytest.param(PLAIN, CHECKPOINT, id="checkpoint", marks=pytest.mark.long),
        pytest.param(PLAIN, LEDGER, id="ledger", marks=pytest.mark.long),
        pytest.param(PLAIN, SUMMARY, id="summary", marks=pytest.mark.long),
        pytest.param(PLAIN, DESCRIBED, id="before the ledger", marks=pytest.mark.long),
        pytest.param(KEEPING, TRAINING, id="client state", marks=pytest.mark.long),
        pytest.param(HEADS, TRAINING, id="private heads", marks=pytest.mark.long),
        pytest.param(BUFFERED, TRAINING, id="asynchronous", marks=pytest.mark.long),
        pytest.param(BUFFERED, COMMIT, id="asynchronous commit", marks=pytest.mark.long),
    ],
)
def test_a_run_whose_folder_is_moved_ends_and_goes_on_where_it_is(
    overrides: list[str], instant: tuple[str, str, int], tmp_path: Path, whole_rows: WholeRows, watch: Watch
) -> None:
    folder, moved = tmp_path / "digits" / "a", tmp_path / "digits" / "a-moved"
    said = f"fedbr: {folder} was moved to {moved} in mid-run\nrun folder: {moved}\n"
    assert harmed("move", instant, tmp_path, watch, overrides) == (3, "", said)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a-moved"]
    assert warm.run(["resume", str(moved), "--workers", "2", "--quiet"]).returncode == 0
    assert virtual_rows(moved) == whole_rows(overrides)


def test_a_folder_that_is_held_must_stay_and_so_must_its_ledger(tmp_path: Path) -> None:
    folder, ledger = tmp_path / "a", tmp_path / "a" / "ledger.sqlite"
    folder.mkdir()
    ledger.write_text("rows")
    with run_lock(folder) as held, ledger.open():
        held.keep(ledger)
        held.check()
        assert (held.watched(lambda: False)(), held.watched(lambda: True)()) == (False, True)
        shutil.copy(ledger, tmp_path / "copy")
        (tmp_path / "copy").replace(ledger)
        with pytest.raises(RunFailed, match=rf"^{ledger} was removed or replaced in mid-run\nrun folder: {folder}$"):
            held.check()
        folder.rename(tmp_path / "b")
        folder.symlink_to(tmp_path / "b")
        with pytest.raises(RunFailed, match=r"was removed or replaced"):  # a link to the folder leads to it
            held.check()
        folder.unlink()
        folder.mkdir()
        with pytest.raises(RunFailed, match=rf"^{folder} was moved to {tmp_path / 'b'} in mid-run\n"):
            held.watched(bool)()


# --- several runs, and other machines ---------------------------------------------------------------------------------
