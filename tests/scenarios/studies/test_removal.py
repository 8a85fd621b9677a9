"""What ``ls --rm`` removes, refuses and leaves: only files that runs write, and never through a link."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.files import folder_lock
from scenarios.cli.main import run_command
from scenarios.run import extension
from scenarios.studies.removal import OLD_SECONDS, waste
from tests.ledgers import made_run, virtual_rows
from tests.scenarios.in_this_process import pool_in_this_process, run
from tests.scenarios.runs import opened, refused, resumed

__all__ = ["pool_in_this_process"]
FEDAVG = 'method = "fedavg"\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedbr-edge"


def begun(folder: Path) -> Path:
    """A run that was killed before its first round."""
    (folder / "logs").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "scenario.toml").write_text(FEDAVG)
    return folder


def sweep(folder: Path) -> Path:
    made_run(folder / "a", (0.5,), FEDAVG)
    made_run(folder / "b", (0.5,), FEDAVG)
    (folder / "study.json").write_text('{"study": "sweep"}')
    for name in ("sweep.md", "sweep.csv", "runs.csv", "report.html", "runs.html"):
        (folder / name).write_text("")
    return folder


# --- rm ---------------------------------------------------------------------------------------------------------------


def test_runs_and_run_sets_are_removed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, several = made_run(tmp_path / "one", (0.5,), FEDAVG), sweep(tmp_path / "sweep")
    for name in ("report.html", "rounds.csv", "rounds-evaluations.csv", "measure.json"):
        (one / name).write_text("")
    nbytes = sum(file.stat().st_size for top in (one, several) for file in top.rglob("*") if file.is_file())
    assert run_command(["ls", "--rm", str(one), str(several), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folders": [str(one), str(several)], "bytes": nbytes, "left": []}
    assert not one.exists() and not several.exists()


def test_files_that_no_run_writes_stay_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "round-000000.safetensors").write_text("")
    folder = made_run(tmp_path / "run", (0.5,), FEDAVG)
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoints").symlink_to(outside)
    assert run_command(["ls", "--rm", str(folder), "--yes"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "notes.txt"]
    assert (outside / "round-000000.safetensors").exists()
    why = "stays: no run writes it, or it cannot be removed"
    assert capsys.readouterr().err.splitlines() == [
        f"fedbr: warning: {folder / 'checkpoints'} {why}",
        f"fedbr: warning: {folder / 'notes.txt'} {why}",
    ]


def no_run(place: Path) -> Path:
    place.mkdir()
    (place / "scenario.toml").write_text(FEDAVG)
    return place


def linked(place: Path) -> Path:
    place.symlink_to(made_run(place.with_name("real"), (0.5,), FEDAVG))
    return place


@pytest.mark.parametrize(
    ("make", "why"),
    [(no_run, "is no run, and no folder of a run set"), (linked, "is a link"), (lambda place: place, "no such folder")],
)
def test_what_is_no_run_is_refused_before_anything_is_removed(
    make: Callable[[Path], Path], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = made_run(tmp_path / "good", (0.5,), FEDAVG), make(tmp_path / "bad")
    assert refused(capsys, "ls", "--rm", str(good), str(bad), "--yes") == f"{bad}: {why}"
    assert (good / "ledger.sqlite").exists()
    assert not (tmp_path / "real").exists() or (tmp_path / "real" / "ledger.sqlite").exists()


def test_what_is_running_is_refused_also_within_a_run_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep(tmp_path / "sweep")
    with folder_lock(folder / "a"):
        assert refused(capsys, "ls", "--rm", str(folder), "--yes") == f"{folder / 'a'}: is running; stop it first"
    with folder_lock(folder):
        assert refused(capsys, "ls", "--rm", str(folder), "--yes") == f"{folder}: is running; stop it first"
    assert (folder / "b" / "ledger.sqlite").exists()


@pytest.mark.parametrize(("answer", "is_removed"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_a_user_is_asked_after_the_folders_have_been_shown(
    answer: str, is_removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(tmp_path / "run", (0.5,), FEDAVG)
    terminal, wires = os.pipe()
    os.write(wires, answer.encode())
    os.close(wires)
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_command(["ls", "--rm", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert str(folder) in printed.partition("Remove 1 folder, ")[0]
    assert folder.exists() != is_removed
    assert ("nothing was removed" in printed) != is_removed


def test_where_nobody_can_be_asked_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(tmp_path / "run", (0.5,), FEDAVG)
    with Path(os.devnull).open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_command(["ls", "--rm", str(folder)]) == 2
    assert capsys.readouterr().err == "fedbr: --rm: nobody can be asked here; to remove them, add --yes\n"
    assert folder.exists()


# --- gc ---------------------------------------------------------------------------------------------------------------


def test_runs_without_a_round_and_half_made_folders_are_waste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    good, killed = made_run(out / "digits" / "good", (0.5,), FEDAVG), begun(out / "digits" / "killed")
    inside = begun(sweep(out / "digits" / "sweep") / "c")
    empty = out / "digits" / "empty"
    empty.mkdir()
    (empty / "study.json").write_text('{"study": "sweep"}')
    old, young = (begun(out / "digits" / f".x.new-{name}" / "new").parent for name in ("aaaaaaaa", "bbbbbbbb"))
    os.utime(old, (0, 0))
    assert run_command(["ls", "--unneeded", "--rm", str(out), "--json"]) == 0  # shows it
    shown = json.loads(capsys.readouterr().out)
    assert (shown["removed"], {item["path"]: item["why"] for item in shown["items"]}) == (
        False,
        {
            str(killed): "without a committed round",
            str(inside): "without a committed round",
            str(empty): "sweep without a run",
            str(old): "left half made",
        },
    )
    assert killed.exists()
    assert run_command(["ls", "--unneeded", "--rm", str(out), "--yes"]) == 0
    assert not any(path.exists() for path in (killed, inside, empty, old))
    assert young.exists() and (good / "ledger.sqlite").exists() and (inside.parent / "a" / "ledger.sqlite").exists()
    assert run_command(["ls", "--unneeded", "--rm", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to free"
    assert OLD_SECONDS == 86_400


def test_kept_checkpoints_go_if_they_are_asked_for_and_the_run_can_still_go_on(tmp_path: Path) -> None:
    words = ("method=fedper", "rounds.max=5", "checkpoints.keep=every:1", "stop.target_accuracy=1.0")
    folder, untouched = run(tmp_path / "runs", *words), run(tmp_path / "kept", *words)
    assert waste([tmp_path / "runs"]) == []
    (found,) = waste([tmp_path / "runs"], checkpoints=True)
    before = set(folder.rglob("*.safetensors"))
    found.remove()
    gone = before - set(folder.rglob("*.safetensors"))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "round-000003.safetensors",
        "round-000004.safetensors",
    ]
    assert any(path.parent.name == "state" for path in gone)
    assert waste([tmp_path / "runs"], checkpoints=True) == []
    with WorkerLauncher(()) as launcher:
        for each in (folder, untouched):
            loaded, _ = opened(each)
            extension.extend(loaded, each, {"rounds.max": 6})
            resumed(each, launcher)
    assert virtual_rows(folder)["rounds"] == virtual_rows(untouched)["rounds"]
    assert len(virtual_rows(folder)["rounds"]) == 6
