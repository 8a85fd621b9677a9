"""An archive of a run or run set: what is in it, what is not, and that a reader can work with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from coordinator.records.schema import HostEvent
from coordinator.records.store import Ledger
from edge.protocol.files import folder_lock
from scenarios.cli.main import run_command
from scenarios.config.errors import ScenarioError
from scenarios.run import input_files
from scenarios.run.app_folder import sources_sha256
from scenarios.run.run_folder import RunFolder
from scenarios.studies.archive import pack
from scenarios.studies.run_list import entries
from tests.ledgers import made_run
from tests.scenarios.in_this_process import pool_in_this_process, run
from tests.scenarios.runs import refused

__all__ = ["pool_in_this_process"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, whose ledger has an event that names the home folder."""
    folder = run(tmp_path_factory.mktemp("out"), "rounds.max=2")
    with closing(Ledger(folder / "ledger.sqlite", None)) as ledger:
        ledger.event(HostEvent("worker_died", "1", "a", time.time()))
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("UPDATE host_events SET detail = ?", (f"File {Path.home()}/fed/mine.py",))
        db.commit()
    (folder / "report.html").write_text(f"<td>{Path.home()}/fed</td>")
    (folder / "measure.json").write_text(json.dumps({"folder": f"{Path.home()}/fed"}))
    return folder


def unpacked(archive: str, place: Path) -> Path:
    """The one folder in an archive."""
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    ((folder,),) = (list(scenario.iterdir()) for scenario in place.iterdir() if scenario.name != "inputs")
    return folder


def test_an_archive_has_what_a_reader_needs_and_no_checkpoints_unless_they_are_asked_for(
    recorded: Path, tmp_path: Path
) -> None:
    packed = pack(recorded, tmp_path / "a.tar.gz")
    names = {
        "README.md",
        "description.msgpack",
        "environment.json",
        "ledger.sqlite",
        "measure.json",
        "report.html",
        "scenario.toml",
    }
    assert {Path(name).name for name in packed["files"]} == {*names, "summary.json"}
    assert {Path(name).parent for name in packed["files"]} == {Path("digits", recorded.name)}
    assert (packed["notes"], packed["bytes"]) == ([], (tmp_path / "a.tar.gz").stat().st_size)
    whole = pack(recorded, tmp_path / "b.tar.gz", checkpoints=True)
    assert {Path(name).parent.name for name in set(whole["files"]) - set(packed["files"])} == {"checkpoints"}


def test_the_same_run_gives_the_same_bytes_on_another_day(recorded: Path, tmp_path: Path) -> None:
    first, second = (Path(pack(recorded, tmp_path / name)["archive"]) for name in ("a.tar.gz", "b.tar.gz"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as file:
        started = json.loads((recorded / "environment.json").read_text())["started_utc"]
        assert {member.mtime for member in file} == {datetime.fromisoformat(started).timestamp()}
    os.utime(recorded / "scenario.toml", (0, 0))
    assert Path(pack(recorded, second)["archive"]).read_bytes() == first.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]  # and nothing half written


def test_no_file_names_a_home_folder(recorded: Path, tmp_path: Path) -> None:
    assert str(Path.home()).encode() in (recorded / "ledger.sqlite").read_bytes()
    folder = unpacked(pack(recorded, tmp_path / "a.tar.gz")["archive"], tmp_path / "elsewhere")
    for file in folder.rglob("*"):
        assert f"{Path.home()}/fed".encode() not in file.read_bytes(), file
    assert (folder / "report.html").read_text() == "<td>~/fed</td>"
    assert json.loads((folder / "measure.json").read_text()) == {"folder": "~/fed"}


def test_a_reader_can_list_report_replay_verify_and_resume_it(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hashlib.sha256((recorded / "ledger.sqlite").read_bytes()).digest()
    folder = unpacked(pack(recorded, tmp_path / "a.tar.gz", checkpoints=True)["archive"], tmp_path / "elsewhere")
    assert hashlib.sha256((recorded / "ledger.sqlite").read_bytes()).digest() == before
    (listed,) = entries([folder])
    assert (listed.state, listed.rounds, listed.scenario) == ("finished", 2, "digits")
    assert run_command(["diff", str(recorded), str(folder)]) == 0
    (folder / "report.html").unlink()
    (folder / "measure.json").unlink()
    assert run_command(["report", str(folder)]) == 0
    assert run_command(["replay", str(folder), "fleet.server.up=1 Mbit/s"]) == 0
    assert run_command(["diff", "--again", str(folder), "--workers", "1", "-q"]) == 0
    assert "all 2 rounds of" in capsys.readouterr().out
    assert run_command(["resume", str(folder), "rounds.max=3", "--workers", "1", "-q", "--no-report"]) == 0


def test_a_run_set_is_packed_with_its_runs_and_tables(tmp_path: Path) -> None:
    folder = tmp_path / "digits" / "compared"
    runs = [made_run(folder / name, (0.5,), 'method = "fedavg"\n') for name in ("a", "b")]
    result = {"study": "compare", "runs": [{"name": run.name, "run_dir": str(run)} for run in runs]}
    (folder / "compare.json").write_text(json.dumps(result))
    (folder / "report.html").write_text("")
    (folder / "notes.txt").write_text("mine")
    (folder / "killed" / "logs").mkdir(parents=True)
    (folder / "killed" / "scenario.toml").write_text('method = "fedavg"\n')
    packed = pack(folder, tmp_path / "a.tar.gz")
    assert packed["notes"] == ["killed has not committed a round, and is left out"]
    place = unpacked(packed["archive"], tmp_path / "elsewhere")
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "a", "b", "compare.json", "report.html"]
    assert [run["run_dir"] for run in json.loads((place / "compare.json").read_text())["runs"]] == ["a", "b"]
    assert (
        "This folder holds a comparison of 2 runs, each in a folder of its own, made by"
        in (place / "README.md").read_text()
    )
    (listed,) = entries([tmp_path / "elsewhere"])
    assert (listed.kind, [run.folder.name for run in listed.runs]) == ("compare", ["a", "b"])


def test_what_cannot_be_packed_is_refused(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "report", "--pack", str(tmp_path)) == f"{tmp_path}: is no run, and no folder of a run set"
    (tmp_path / "new" / "logs").mkdir(parents=True)
    (tmp_path / "new" / "scenario.toml").write_text("")
    why = "no round has been committed, so there is nothing to pack"
    assert refused(capsys, "report", "--pack", str(tmp_path / "new")) == f"{tmp_path / 'new'}: {why}"
    with folder_lock(recorded), pytest.raises(ScenarioError, match="another process has locked this run"):
        pack(recorded, tmp_path / "a.tar.gz")
    with pytest.raises(ScenarioError, match=f"{tmp_path}: is a folder; name the archive, such as "):
        pack(recorded, tmp_path)
    (recorded / "uncertainty.json").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="is a link"):
        pack(recorded, tmp_path / "a.tar.gz")
    (recorded / "uncertainty.json").unlink()
    assert not (tmp_path / "a.tar.gz").exists()


def test_an_archive_has_the_files_that_the_scenario_names_so_that_a_reader_can_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    Path("t.csv").write_text("seconds,bits_per_second\n0,5000000\n1,9000000\n")
    Path("p.json").write_text(json.dumps({str(client): [*range(client, 1437, 10)] for client in range(10)}))
    link = ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=t.csv")
    folder = run(tmp_path / "out", *link, "data.partition.kind=file", "data.partition.file=p.json", "rounds.max=2")
    (folder / "report.html").write_text("")
    Path("t.csv").write_text("seconds,bits_per_second\n0,1000000\n")  # the run has its own
    Path("p.json").unlink()
    packed = pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    inputs = sorted(name.partition("/inputs/")[2] for name in packed["files"] if "/inputs/" in name)
    assert (packed["notes"], inputs) == ([], ["data.partition.file/p.json", "fleet.bandwidth.file/t.csv"])
    first = RunFolder(folder).rounds[-1].end_s
    shutil.rmtree(folder)
    monkeypatch.chdir(elsewhere)
    reader = unpacked(str(tmp_path / "a.tar.gz"), elsewhere)
    assert RunFolder(reader).file_names == {
        "fleet.bandwidth.file": "inputs/fleet.bandwidth.file/t.csv",
        "data.partition.file": "inputs/data.partition.file/p.json",
    }
    other = Path("inputs/fleet.bandwidth.file/t.csv")  # of another archive, in the current folder
    other.parent.mkdir(parents=True)
    other.write_text("seconds,bits_per_second\n0,1000\n")
    assert run_command(["diff", "--again", str(reader), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"]
    assert run_command(["replay", str(reader), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["virtual_seconds"] == [first, first]
    again = ["run", str(reader / "scenario.toml"), "--run-id", "again", "--workers", "1", "-q", "--no-report"]
    assert run_command(again) == 0
    assert RunFolder(Path("runs/scenario/again")).rounds[-1].end_s == first
    assert run_command(["resume", str(reader), "rounds.max=3", "--workers", "1", "-q", "--no-report"]) == 0
    assert RunFolder(reader).file_names["data.partition.file"] == "inputs/data.partition.file/p.json"
    assert "Data sets are never packed" in (reader / "README.md").read_text()


def test_what_is_missing_in_an_archive_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(input_files, "MOST_NBYTES", 0)  # the run has no copies
    Path("t.csv").write_text("seconds,bits_per_second\n0,5000000\n")
    Path("p.json").write_text(json.dumps({str(client): [*range(client, 400, 10)] for client in range(10)}))
    link = ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=t.csv")
    folder = run(Path("out"), *link, "data.partition.kind=file", "data.partition.file=p.json", "rounds.max=1")
    (folder / "report.html").write_text("")
    assert pack(folder, Path("whole.tar.gz"))["notes"] == []  # they are where they were
    Path("t.csv").write_text("seconds,bits_per_second\n0,1000000\n")
    Path("p.json").unlink()
    assert [note.partition(" is left out: ")[::2] for note in pack(folder, Path("a.tar.gz"))["notes"]] == [
        ("fleet.bandwidth.file:", f"{tmp_path}/t.csv has changed since the run"),
        (
            "data.partition.file:",
            f"data.partition.file = '{tmp_path}/p.json': no such file; searched {tmp_path}/p.json",
        ),
    ]


def test_the_figures_of_a_calibrated_device_are_said_to_be_missing(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "digits" / "a", (0.5,), 'method = "fedavg"\n')
    (folder / "environment.json").write_text(json.dumps({"calibrations": {"mine": []}}))
    (folder / "report.html").write_text("")
    assert pack(folder, tmp_path / "a.tar.gz")["notes"] == [
        "fleet.devices: mine was calibrated on this machine, and its figures are left out; those of a run with "
        "fleet.device_file = mine.toml are not"
    ]


def test_an_archive_has_the_sources_of_a_flower_app_and_its_replies_only_if_asked_for(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text("[project]\n")
    (app / "client.py").write_text("app = None\n")
    (app / "weights.bin").write_text("not a source")
    folder = made_run(tmp_path / "digits" / "a", (0.5,), f'method = "flower:{app}"\n')
    (folder / "environment.json").write_text(json.dumps({"data": {"sha256": sources_sha256(app)}}))
    (folder / "report.html").write_text("")
    (folder / "messages").mkdir()
    (folder / "messages" / "000000.reply").write_text("")
    names = {Path(name).name for name in pack(folder, tmp_path / "a.tar.gz")["files"]}
    assert {"pyproject.toml", "client.py"} < names
    assert names.isdisjoint({"weights.bin", "000000.reply"})
    reader = unpacked(str(tmp_path / "a.tar.gz"), tmp_path / "elsewhere")
    assert 'name the copy in `scenario.toml`: `method = "flower:PLACE"`' in (reader / "README.md").read_text()
    assert "000000.reply" in {
        Path(name).name for name in pack(folder, tmp_path / "b.tar.gz", checkpoints=True)["files"]
    }
    (app / "client.py").write_text("app = 1\n")
    assert pack(folder, tmp_path / "c.tar.gz")["notes"] == [
        f"method: is left out: the Flower app {app} has changed since the run, or is not there",
    ]
