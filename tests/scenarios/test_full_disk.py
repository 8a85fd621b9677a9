"""Disks that take nothing more in mid-run: what is committed is kept, the user is told, and the run can go on later."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli.main import run_command
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from tests import warm
from tests.ledgers import virtual_rows
from tests.remains import Watch
from tests.scenarios import meddler
from tests.scenarios.runs import QUICK, committed, never, refused, resumed, undisturbed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-R", str(place)], check=True)


COMMIT = ("coordinator.records.store:Ledger.commit", "before", 2)
CHECKPOINT = ("coordinator.records.checkpoints:write_vectors", "before", 2)
TRAINING = ("coordinator.rounds.pool_trainer:PoolTrainer.submit", "before", 1)
SUMMARY = ("coordinator.records.store:Ledger.finish", "before", 1)


PLAIN = ["method=fedavg"]
KEEPING = ["method=scaffold", "faults.on_bad_client=skip"]
"""A worker that cannot write what its client keeps has not met a bad client."""


@pytest.mark.parametrize(
    ("overrides", "instant", "harm", "rounds", "said"),
    [
        pytest.param(PLAIN, COMMIT, "fill=", 1, "ledger.sqlite: database or disk is full", id="commit"),
        pytest.param(
            KEEPING,
            TRAINING,
            "seal=state",
            0,
            "-0.safetensors: Read-only file system",
            id="state",
            marks=pytest.mark.long,
        ),
        pytest.param(
            PLAIN,
            SUMMARY,
            "fill=",
            4,
            "ledger.sqlite: database or disk is full",
            id="summary",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_disk_that_takes_nothing_more_ends_a_run_that_can_go_on_later(
    overrides: list[str],
    instant: tuple[str, str, int],
    harm: str,
    rounds: int,
    said: str,
    disk: Path,
    tmp_path: Path,
    launcher: WorkerLauncher,
    watch: Watch,
) -> None:
    folder = disk / "digits" / "a"
    what = harm.replace("=", f"={folder}/")
    words = ["run", "digits", *QUICK, "rounds.max=4", *overrides, "--workers", "2", "--out", str(disk), "--run-id", "a"]
    ended = warm.run([*words, "--json"], meddler=(what, *map(str, instant)), env=watch.environment)
    assert (ended.returncode, ended.stdout) == (3, ""), ended
    message, place = ended.stderr.splitlines()
    assert message.startswith(f"fedbr: {folder}/") and message.endswith(said), message
    assert place == f"run folder: {folder}"
    assert watch.remains() == []
    assert committed(folder) == rounds
    if what.startswith("seal="):
        subprocess.run(["umount", what.removeprefix("seal=")], check=True)
    (folder / "filler").unlink(missing_ok=True)
    assert resumed(folder, launcher)["rounds"] == 4
    assert virtual_rows(folder) == virtual_rows(undisturbed(tmp_path, launcher, "rounds.max=4", *overrides))
    assert list(folder.rglob("*.part")) == []


@pytest.mark.usefixtures("reports")
def test_a_disk_without_room_is_refused_before_anything_is_started(
    disk: Path, launcher: WorkerLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, folder = undisturbed(disk, launcher, "rounds.max=1"), disk / "digits" / "begun"
    folder.mkdir()
    shutil.copy(ended / "scenario.toml", folder)
    meddler.fill(disk)
    no_place, no_folder = f"--out: cannot write to {disk / 'digits'}", f"run folder {folder} cannot be written"
    assert refused(capsys, "run", "digits", "--out", str(disk)) == f"{no_place}: No space left on device"
    assert refused(capsys, "resume", str(folder), "--json") == f"{no_folder}: No space left on device"
    assert run_command(["resume", str(ended), "--json"]) == 0  # there is nothing that it needs room for
    assert capsys.readouterr().err == (
        f"fedbr: warning: there is no report: [Errno 28] No space left on device: '{ended / 'report.html'}'\n"
    )
    (disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert refused(capsys, "run", "digits", "--out", str(disk)) == f"{no_place}: Read-only file system"
    assert refused(capsys, "resume", str(folder)) == f"{no_folder}: Read-only file system"
    assert run_command(["resume", str(ended), "--json"]) == 0
    assert sorted(path.name for path in (disk / "digits").iterdir()) == ["begun", "whole"]


@pytest.mark.long
def test_a_cache_that_can_only_be_read_is_used_as_far_as_it_goes(
    disk: Path, tmp_path: Path, launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str, *overrides: str) -> str:
        loaded = load("digits", parse_all(["rounds.max=1", "method=fedavg", "train.local_steps=1", *overrides]))
        return str(runner.run(loaded, Host(tmp_path, 1, "cpu", name), launcher, never, True)["model_sha256"])

    expected = made("elsewhere", "data.clients=7")
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(ScenarioError, match=rf"^digits: cannot write to the cache {disk}/.*: Read-only file system$"):
        made("without data")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    made("fills it", "data.clients=8")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert made("without this partition", "data.clients=7") == expected
    log = tmp_path / "digits" / "without this partition" / "logs" / "worker-0.log"
    assert log.read_text().endswith(": Read-only file system; going on without it\n")


@pytest.mark.usefixtures("reports")
def test_a_report_for_which_there_is_no_room_leaves_no_half_of_itself(
    disk: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = disk / "digits" / "a"
    words = [
        "run",
        "digits",
        "rounds.max=1",
        "train.local_steps=1",
        "--workers",
        "1",
        "--out",
        str(disk),
        "--run-id",
        "a",
        "--json",
    ]
    filling = (f"fill={disk}", "scenarios.report.html:write_text", "before", "1")
    ended = warm.run(words, meddler=filling, env=watch.environment)
    assert (ended.returncode, json.loads(ended.stdout)["stopped_by"]) == (0, "rounds")
    assert ended.stderr.startswith("fedbr: warning: there is no report: ")
    assert ended.stderr.endswith(f"No space left on device: '{folder / 'report.html'}'\n")
    assert [path.name for path in folder.glob("report.html*")] == []
    assert watch.remains() == []
