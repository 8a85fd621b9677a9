"""A run's own copies of the files that its scenario names: it goes on, is repeated and replayed with them alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from edge.protocol.config import Job
from scenarios.cli.main import run_command
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import KEYS
from scenarios.config.schema import all_fields
from scenarios.run import folder_files, input_files, runner
from scenarios.run.run_folder import RunFolder
from scenarios.studies.removal import remove
from scenarios.studies.run_list import entry
from tests.scenarios.in_this_process import InThisProcess, pool_in_this_process, run
from tests.scenarios.runs import refused

__all__ = ["pool_in_this_process"]
FEW = ("data.clients=4", "rounds.participants=4", "rounds.max=2", "train.local_steps=1")
LINK = ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=t.csv")
WINDOWS = ("fleet.availability.kind=trace", "fleet.availability.file=phone_windows.csv")
SHARES = ("data.partition.kind=file", "data.partition.file=p.json")
SLOW, FAST = "seconds,bits_per_second\n0,1000000\n", "seconds,bits_per_second\n0,9000000\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recorded link, windows of availability in two files, and a partition."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path("t.csv").write_text(SLOW)
    Path("phone_windows.csv").write_text("device,start_s,end_s\na,0,80000\n")
    Path("phone_devices.csv").write_text("device,trace_start_s,trace_end_s\na,0,86400\n")
    Path("p.json").write_text(json.dumps({str(client): [*range(client, 400, 4)] for client in range(4)}))
    return here


def kept(folder: Path) -> list[str]:
    """The copies in a run folder."""
    return sorted(str(path.relative_to(folder / "inputs")) for path in folder.glob("inputs/*/*"))


def ends(folder: Path) -> list[tuple[float, str]]:
    """When each round ended, and with which model."""
    return [(row.end_s, row.model_sha256) for row in RunFolder(folder).rounds]


def test_every_key_that_names_a_file_is_among_those_whose_files_are_copied() -> None:
    named = {key for key, _ in all_fields() if key.endswith(("file", ".trace", ".path"))}
    assert named == {*KEYS, "data.file"}, "a run has its examples in arrays/"


def test_a_run_that_is_moved_needs_none_of_the_files_that_its_scenario_named(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(Path("runs"), *FEW, *LINK, *WINDOWS, *SHARES)
    assert kept(folder) == [
        "data.partition.file/p.json",
        "fleet.availability.file/phone_devices.csv",
        "fleet.availability.file/phone_windows.csv",
        "fleet.bandwidth.file/t.csv",
    ]
    rounds = ends(folder)
    moved, elsewhere = folder.rename(tmp_path / "moved"), tmp_path / "elsewhere"
    for file in here.glob("*.*"):
        file.unlink()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Path("t.csv").write_text(FAST)  # another link, which the run never saw
    assert run_command(["diff", "--again", str(moved), "--workers", "1", "-q"]) == 0
    assert run_command(["replay", str(moved), "--json"]) == 0
    recorded, replayed = json.loads(capsys.readouterr().out.splitlines()[-1])["virtual_seconds"]
    assert recorded == replayed
    assert run_command(["replay", str(moved), "fleet.bandwidth.file=t.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["virtual_seconds"][1] < recorded
    assert run_command(["report", str(moved), "--figure", "recorded_link", "--pdf", "link.svg"]) == 0
    assert run_command(["resume", str(moved), "rounds.max=3", "--workers", "1", "-q", "--no-report"]) == 0
    assert ends(moved)[:2] == rounds
    # Its scenario still has the names that its author gave, and a run of that is another one with the same rounds.
    assert RunFolder(moved).file_names["fleet.bandwidth.file"] == str(here / "t.csv")
    assert run_command(["run", str(moved / "scenario.toml"), "--run-id", "again", "-q", "--no-report"]) == 0
    assert ends(Path("runs/scenario/again")) == ends(moved)


def test_a_file_that_changes_while_a_run_is_stopped_changes_nothing_in_the_run_and_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(Path("whole"), *FEW, *LINK, *SHARES, "rounds.max=3")
    folder = run(Path("runs"), *FEW, *LINK, *SHARES)
    Path("t.csv").write_text(FAST)
    assert run_command(["resume", str(folder), "rounds.max=3", "--workers", "1", "-q", "--no-report"]) == 0
    note = f"fleet.bandwidth.file: {here}/t.csv has changed since the run began, which goes on with its copy"
    assert [line for line in capsys.readouterr().err.splitlines() if "changed" in line] == [f"fedbr: note: {note}"]
    assert ends(folder) == ends(whole)


def test_workers_train_with_the_copy_of_a_partition_so_that_the_file_may_change_in_mid_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []

    class Recorded(InThisProcess):
        def __init__(self, job: Job, *_: Any, **__: Any) -> None:
            files.append(job.data.partition.file)
            super().__init__(job)

    monkeypatch.setattr(runner, "Pool", Recorded)
    folder = run(Path("runs"), *FEW, *SHARES, "rounds.max=1")
    # Errors of the file are named before, as the user's.
    assert files == ["p.json", f"{here}/{folder}/inputs/data.partition.file/p.json"]


def test_a_copy_that_was_changed_is_refused_with_its_key(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(Path("runs"), *FEW, *LINK, *SHARES)
    copy = here / folder / "inputs" / "data.partition.file" / "p.json"
    copy.write_text(f"{copy.read_text()} ")
    why = f"{folder}: data.partition.file: {copy} has changed since the run began; restore it, or start a new run"
    assert refused(capsys, "resume", str(folder)) == why
    assert refused(capsys, "diff", "--again", str(folder)) == why
    copy.unlink()  # and the file itself has the content that it had
    assert run_command(["resume", str(folder), "--no-report"]) == 0


def test_a_large_file_stays_where_it_is_and_is_named_if_it_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(input_files, "MOST_NBYTES", 40)
    words = ["method=fedavg", *FEW, *LINK, *SHARES, "--run-id", "a", "-q", "--no-report", "--workers", "1"]
    assert run_command(["run", "digits", *words]) == 0
    note = "data.partition.file: p.json: the run keeps no copy of 0 MB (the most is 0); leave it where it is"
    assert f"fedbr: note: {note}" in capsys.readouterr().err
    folder = Path("runs/digits/a")
    assert kept(folder) == ["fleet.bandwidth.file/t.csv"]
    Path("p.json").write_text(f"{Path('p.json').read_text()} ")
    why = f"{here}/p.json has changed since the run began; restore it, or start a new run"
    assert refused(capsys, "resume", str(folder)) == f"{folder}: data.partition.file: {why}"


def test_runs_beside_each_other_share_large_copies_and_no_other_content(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "LINKED_NBYTES", 100)

    def copies() -> list[os.stat_result]:
        folder = run(Path("runs"), *FEW, *LINK, *SHARES)
        return [(folder / "inputs" / name).stat() for name in kept(folder)]

    (first, small), (second, other_small) = copies(), copies()
    assert os.path.samestat(first, second)
    assert not os.path.samestat(small, other_small)
    assert (first.st_ino, small.st_ino) != (Path("p.json").stat().st_ino, Path("t.csv").stat().st_ino)
    Path("p.json").write_text(f"{Path('p.json').read_text()} ")
    third, _ = copies()
    assert not os.path.samestat(first, third)


def test_a_file_that_is_a_link_is_copied_under_its_name_and_two_runs_of_it_are_the_same(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("data").mkdir()
    Path("t.csv").rename("data/v2.csv")
    Path("t.csv").symlink_to("data/v2.csv")
    first, second = (run(Path("runs"), *FEW, *LINK, "rounds.max=1") for _ in range(2))
    assert (kept(first), RunFolder(first).file_names["fleet.bandwidth.file"]) == (
        ["fleet.bandwidth.file/t.csv"],
        str(here / "t.csv"),
    )
    assert not (first / "inputs" / "fleet.bandwidth.file" / "t.csv").is_symlink()
    assert run_command(["diff", str(first), str(second)]) == 0


def test_copies_are_removed_with_their_run_and_what_somebody_put_beside_them_stays(here: Path, tmp_path: Path) -> None:
    folder, other = (run(Path("runs"), *FEW, *WINDOWS, *SHARES, "rounds.max=1") for _ in range(2))
    (other / "inputs" / "data.partition.file" / "notes.txt").write_text("mine")
    (other / "inputs" / "fleet.availability.file").rename(tmp_path / "outside")
    (other / "inputs" / "fleet.availability.file").symlink_to(tmp_path / "outside")
    with pytest.raises(
        ScenarioError, match=r"inputs/fleet.availability.file is a link: nothing outside of a run folder"
    ):
        folder_files.check(other)
    for each in (folder, other):
        found = entry(each)
        assert found is not None
        remove(found)
    assert not folder.exists()
    left = sorted(str(path.relative_to(other)) for path in other.rglob("*") if not path.is_dir() or path.is_symlink())
    assert left == ["inputs/data.partition.file/notes.txt", "inputs/fleet.availability.file"]
    assert len(list((tmp_path / "outside").iterdir())) == 2


def test_an_archive_has_the_examples_of_a_data_file_and_repeats_where_that_is_not(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [f"{name},{place % 2},{place}" for name in ("ann", "bo") for place in range(10)]
    Path("pens.csv").write_text("\n".join(["client,label,x", *rows]) + "\n")
    folder = run(Path("runs"), "data.file=pens.csv", "model.name=mlp", "rounds.participants=2", "rounds.max=2")
    assert run_command(["report", str(folder), "--pack", "-o", str(tmp_path / "a.tar.gz")]) == 0
    assert "arrays has all examples of data.file, 1.7 kB" in capsys.readouterr().err
    shutil.unpack_archive(tmp_path / "a.tar.gz", tmp_path / "other", filter="data")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    Path("pens.csv").unlink()
    monkeypatch.chdir(tmp_path / "other" / "digits" / folder.name)
    assert run_command(["diff", "--again", ".", "--workers", "1", "-q"]) == 0
    assert run_command(["run", "scenario.toml", "--out", str(tmp_path), "--run-id", "again", "-q", "--no-report"]) == 0
    assert ends(tmp_path / "scenario" / "again") == ends(Path())
