"""A run folder that is moved, removed or replaced in mid-run: the run ends and says so; the moved folder goes on."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from edge.runtime.keys import make
from scenarios.cli.main import run_command
from scenarios.report.html import build
from scenarios.run.folder_files import run_lock
from tests import warm
from tests.ledgers import virtual_rows
from tests.remains import Watch
from tests.scenarios.runs import QUICK, resumed, undisturbed

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


def contents(folder: Path) -> dict[str, str]:
    """Path -> hash of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


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
        pytest.param(BUFFERED, TRAINING, id="asynchronous"),
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


@pytest.mark.parametrize(
    "instant", [COMMIT, DESCRIBED, *(pytest.param(each, marks=pytest.mark.long) for each in (CHECKPOINT, SUMMARY))]
)
def test_a_run_whose_folder_is_removed_ends_and_makes_none(
    instant: tuple[str, str, int], tmp_path: Path, watch: Watch
) -> None:
    folder = tmp_path / "digits" / "a"
    said = f"fedbr: {folder} was removed, or moved to another disk, in mid-run\n"
    assert harmed("remove", instant, tmp_path, watch, PLAIN) == (3, "", said)
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("instant", [COMMIT, pytest.param(SUMMARY, marks=pytest.mark.long)])
def test_nothing_is_changed_in_the_folder_that_has_taken_the_place_of_a_runs(
    instant: tuple[str, str, int], tmp_path: Path, launcher: WorkerLauncher, whole_rows: WholeRows, watch: Watch
) -> None:
    folder, moved = tmp_path / "digits" / "a", tmp_path / "digits" / "a-moved"
    said = f"fedbr: {folder} was moved to {moved} in mid-run\nrun folder: {moved}\n"
    assert harmed("replace", instant, tmp_path, watch, PLAIN) == (3, "", said)
    before = contents(moved)
    logs = {name for name in before if name.startswith("logs/")}  # go on in the moved folder
    copy = contents(folder)
    assert {name: copy[name] for name in copy.keys() - logs} == {name: before[name] for name in before.keys() - logs}
    for each in (folder, moved):
        assert resumed(each, launcher)["rounds"] == 3
        assert virtual_rows(each) == whole_rows(PLAIN)


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


def test_a_report_is_not_drawn_into_a_folder_that_is_gone(tmp_path: Path, launcher: WorkerLauncher) -> None:
    folder = undisturbed(tmp_path, launcher, "method=fedavg", "rounds.max=1")
    with pytest.raises(FileNotFoundError):
        build([folder], tmp_path / "gone" / "report.html", "digits")
    assert not (tmp_path / "gone").exists()


# --- several runs, and other machines ---------------------------------------------------------------------------------

STUDY = ["compare", "digits", *QUICK, "rounds.max=2", "method=fedavg,fedprox", "--workers", "2", "--quiet"]
HEARD = ("scenarios.experiment.executors:AtOnce._on_message", "before", 3)
"""In the process that hands out the runs, which others make"""


@pytest.mark.parametrize(
    ("more", "instant"),
    [
        pytest.param([], COMMIT, id="in turn"),
        pytest.param(["--parallel", "2"], HEARD, id="at once", marks=pytest.mark.long),
    ],
)
def test_a_comparison_whose_folder_is_moved_begins_no_other_run_and_goes_on_where_it_is(
    more: list[str],
    instant: tuple[str, str, int],
    tmp_path: Path,
    watch: Watch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, moved = tmp_path / "digits" / "a", tmp_path / "digits" / "a-moved"
    words = [*STUDY, "--out", str(tmp_path), "--json", *more]
    ended = warm.run([*words, "--run-id", "a"], meddler=(f"move={folder}", *map(str, instant)), env=watch.environment)
    said = f"fedbr: {folder} was moved to {moved} in mid-run\nrun folder: {moved}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", said)
    assert watch.remains() == []
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a-moved"]
    assert run_command([*words, "--run-id", "a-moved"]) == 0
    capsys.readouterr()
    assert sorted(path.name for path in moved.iterdir() if path.is_dir()) == ["fedavg", "fedprox"]


def test_a_node_agent_is_let_go_and_another_works_for_the_run_where_it_is(
    tmp_path: Path, short_folder: Path, whole_rows: WholeRows, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved = tmp_path / "digits" / "a", tmp_path / "digits" / "a-moved"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for name in ("run", "alice"):
        make(name, tmp_path)
    keys = ["--keys", str(tmp_path / "run.key"), "--allow", str(tmp_path / "alice.pub"), "--workers", "0", "--quiet"]
    here = ["--listen", address, *keys]
    agent = ["worker", "--connect", address, "--keys", str(tmp_path / "alice.key"), "--workers", "2"]
    agent += ["--server", str(tmp_path / "run.pub")]
    words = ["run", "digits", *QUICK, *KEEPING, "--out", str(tmp_path), "--run-id", "a", *here]
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with Path(os.devnull).open("w") as nowhere, warm.start(agent, errors=nowhere.fileno()) as alice:
        ended = warm.run(words, meddler=(f"move={folder}", *map(str, COMMIT)), env=watch.environment)
        said = f"fedbr: {folder} was moved to {moved} in mid-run\nrun folder: {moved}\n"
        assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", said)
        assert (watch.remains(), alice.wait()) == ([], 0)
    with Path(os.devnull).open("w") as nowhere, warm.start(agent, errors=nowhere.fileno()) as alice:
        assert run_command(["resume", str(moved), *here]) == 0
        assert alice.wait() == 0
    assert virtual_rows(moved) == whole_rows(KEEPING)
