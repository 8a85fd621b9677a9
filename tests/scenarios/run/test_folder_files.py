"""A run folder from others, or one that was rearranged: nothing outside of it is touched, and nothing of a stranger's.

One run is stopped after two of its three rounds; each test goes on with a copy of its folder.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from edge.data.atomic_cache import CacheError, build_once, text_once
from scenarios.cli.main import run_command
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.experiment.executors import InTurn, make_runs
from scenarios.experiment.run_set import MARK, PlannedRun, RunSet
from scenarios.report import html
from scenarios.run import folder_files, runner
from scenarios.run.folder_files import SUPER_JOURNAL
from scenarios.run.host import Host
from tests.crossed import every
from tests.observers import Listener
from tests.scenarios.runs import QUICK, never, opened, resumed

DIGITS = (*QUICK, "rounds.max=3", "method=fedbr")
NEWEST = "checkpoints/round-000001.safetensors"


@pytest.fixture(scope="module")
def stopped(launcher: WorkerLauncher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done: list[RoundFinished] = []
    host = Host(tmp_path_factory.mktemp("out"), 2, "cpu", "cut", [Listener(on_round=done.append)])
    result = runner.run(load("digits", parse_all(DIGITS)), host, launcher, lambda: len(done) >= 2, True)
    assert (result["stopped_by"], result["rounds"]) == ("user", 2)
    return Path(result["run_dir"])


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "digits" / "cut"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "thesis.tex"
    path.parent.mkdir()
    path.write_text("years of work")
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edited(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
        db.commit()


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    every(2, ["checkpoints", "state", "scenario.toml", "ledger.sqlite", "ledger.sqlite-wal",
     "logs/coordinator.log", "logs/worker-1.log", ]),
)  # fmt: skip
@pytest.mark.parametrize("command", [("resume",), ("diff", "--again")], ids=" ".join)
def test_a_link_in_a_folder_is_refused_and_what_lies_behind_it_stays(
    command: tuple[str, ...], name: str, folder: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / name
    if place.is_dir():
        shutil.copytree(place, precious.parent, dirs_exist_ok=True)
        shutil.rmtree(place)
        place.symlink_to(precious.parent)
    else:
        if place.exists():
            place.rename(precious)
        place.symlink_to(precious)
    before = files(precious.parent)
    assert run_command([*command, str(folder)]) == 2
    why = f"fedbr: {place} is a link: nothing outside of a run folder is written"
    assert capsys.readouterr().err.startswith(why)
    assert files(precious.parent) == before


def test_a_log_is_not_written_through_a_link_that_comes_later(
    folder: Path, precious: Path, launcher: WorkerLauncher
) -> None:
    loaded, device = opened(folder)

    def on_start(*_: object) -> None:
        for path in (folder / "logs").glob("worker-*.log"):
            path.unlink()
            path.symlink_to(precious)

    host = Host(folder.parent, 2, device, observers=[Listener(on_start=on_start)])
    result = runner.resume(loaded, host, folder, launcher, never)
    assert result["rounds"] == 3  # other workers, with other logs, took their places
    assert precious.read_text() == "years of work"


def test_a_journal_that_names_another_is_refused(
    folder: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = folder / "ledger.sqlite-journal"
    journal.write_bytes(bytes(512) + str(precious).encode() + SUPER_JOURNAL)
    assert run_command(["resume", str(folder)]) == 2
    assert f"fedbr: {journal} names another journal" in capsys.readouterr().err
    assert precious.exists()


def test_a_report_replaces_a_link_but_follows_one_that_the_user_names(
    folder: Path, precious: Path, tmp_path: Path
) -> None:
    (folder / "report.html").symlink_to(precious)
    assert html.from_folder(folder) == folder / "report.html"
    assert not (folder / "report.html").is_symlink()
    assert precious.read_text() == "years of work"
    (tmp_path / "mine.html").symlink_to(tmp_path / "elsewhere" / "report.html")
    assert html.from_folder(folder, tmp_path / "mine.html") == tmp_path / "mine.html"
    assert (tmp_path / "mine.html").is_symlink()
    assert (tmp_path / "elsewhere" / "report.html").read_text() == (folder / "report.html").read_text()


# --- names that a ledger gives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", every(3, ["states", "checkpoints"]))
@pytest.mark.parametrize("name", ["../../../../precious", "thesis.tex", "01-0.safetensors"])
def test_a_ledger_that_names_a_file_of_no_run_is_refused_and_nothing_is_removed(
    table: str, name: str, folder: Path, launcher: WorkerLauncher
) -> None:
    edited(folder, f"UPDATE {table} SET file = '{name}' WHERE rowid = (SELECT MAX(rowid) FROM {table})")
    stranger = folder / "checkpoints" / "thesis.tex"
    stranger.write_text("years of work")
    before = {name for name in files(folder) if not name.startswith(("logs", "ledger"))}
    with pytest.raises(RunFailed) as refused:
        resumed(folder, launcher)
    said = str(refused.value).splitlines()[0]
    assert said == f"{folder / 'ledger.sqlite'}: table {table} names the file {name!r}, which no run has written"
    assert {name for name in files(folder) if not name.startswith(("logs", "ledger"))} == before


# --- what is removed --------------------------------------------------------------------------------------------------


def test_a_strangers_files_stay_where_they_are(folder: Path, launcher: WorkerLauncher) -> None:
    strangers = {folder / place / "thesis.tex" for place in ("checkpoints", "state", "logs", ".")}
    for path in strangers:
        path.write_text("years of work")
    ours = [folder / "checkpoints" / "round-000009.safetensors.part", folder / "state" / "7-7.safetensors.12.part"]
    for path in ours:
        path.write_text("half")
    assert resumed(folder, launcher)["rounds"] == 3
    assert {path.read_text() for path in strangers} == {"years of work"}
    assert [path.exists() for path in ours] == [False, False]


def test_a_run_that_is_discarded_leaves_no_folder_but_for_what_is_not_its_own(folder: Path, precious: Path) -> None:
    other = Path(shutil.copytree(folder, folder.parent / "other"))
    folder_files.discard(other)
    assert not other.exists()
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(precious.parent)
    (folder / "logs" / "notes").write_text("mine")
    folder_files.discard(folder)
    assert precious.exists()
    assert sorted(path.name for path in folder.rglob("*")) == ["checkpoints", "logs", "notes"]


# --- studies ----------------------------------------------------------------------------------------------------------


def study(out: Path, place: Callable[[Path], object]) -> RunSet:
    """One run of its own, in a folder that was begun; ``place`` makes the run's."""
    made = RunSet("budget", "digits", [PlannedRun("one", load("digits", parse_all(DIGITS)), {"rounds": 2})], "a")
    folder = out / "digits" / "a"
    folder.mkdir(parents=True)
    (folder / MARK).write_text('{"study": "budget"}')
    place(folder / "one")
    return made


@pytest.mark.parametrize(("name", "ours"), [("", []), ("/checkpoints/thesis.tex", ["round-000000.safetensors"])])
def test_a_run_of_a_study_is_not_made_anew_over_a_strangers_file(
    name: str, ours: list[str], tmp_path: Path, launcher: WorkerLauncher
) -> None:
    stranger = tmp_path / "digits" / "a" / f"one{name}"

    def place(_: Path) -> None:
        stranger.parent.mkdir(parents=True, exist_ok=True)
        for path in (stranger, *(stranger.with_name(one) for one in ours)):
            path.write_text("years of work")

    with pytest.raises(ScenarioError, match=f"one{name} is no file of a run"):
        make_runs(study(tmp_path, place), Host(tmp_path, 2, "cpu"), InTurn(launcher), never)
    assert stranger.read_text() == "years of work"


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_lock_or_a_beginning_in_the_cache_that_is_a_link_harms_nothing(precious: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".a.lock").symlink_to(precious)
    with pytest.raises(CacheError, match=r"cannot write to the cache .*/a: .a.lock: Too many levels of symbolic links"):
        build_once(cache / "a", lambda folder: None)
    assert text_once(cache / "a", lambda: "made") == "made"
    (cache / "b.part").symlink_to(precious)
    assert text_once(cache / "b", lambda: "made") == "made"
    assert precious.read_text() == "years of work"


# --- checkpoints that are none ----------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_a_link_to_a_device_is_damaged(folder: Path, launcher: WorkerLauncher) -> None:
    (folder / NEWEST).unlink()
    (folder / NEWEST).symlink_to("/dev/zero")
    assert resumed(folder, launcher)["rounds"] == 3
    ((detail,),) = read(folder / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'checkpoint_damaged'")
    assert detail == f"round 2: {NEWEST} is missing or not what was committed; going back to round 1"
    assert (folder / NEWEST).is_file() and not (folder / NEWEST).is_symlink()
