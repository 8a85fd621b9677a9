"""Temporary folders: gone with their owners, and what dead owners have left is removed by the next; nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edge.protocol.scratch import YOUNG_SECONDS, scratch

OWNER = """
import subprocess, sys, time
from edge.protocol.scratch import scratch

with scratch() as folder:
    (folder / "pool").write_text("x")
    child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
    print(folder, child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    then = folder.stat().st_mtime - YOUNG_SECONDS - 1
    os.utime(folder, (then, then))
    return folder


def left(place: Path) -> list[str]:
    with scratch() as own:
        return sorted(path.name for path in place.iterdir() if path != own)


def test_a_folder_is_gone_with_its_context_and_what_is_in_it(place: Path) -> None:
    with scratch() as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (place, 0o700)
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("x")
    assert list(place.iterdir()) == []


def test_what_an_owner_that_was_killed_has_left_is_removed_although_its_child_lives(place: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name, child = owner.stdout.readline().split()
    try:
        folder = aged(Path(name))
        assert left(place) == [folder.name]  # its owner lives
        owner.kill()
        owner.wait()
        assert left(place) == []
    finally:
        owner.kill()
        owner.communicate()
        os.kill(int(child), signal.SIGKILL)


def test_what_is_young_or_another_kind_of_thing_stays(place: Path) -> None:
    def made(name: str, mode: int = 0o700) -> Path:
        (place / name).mkdir(mode)
        return aged(place / name)

    made("fedbr-abcdefg1.scratch")
    (place / "fedbr-abcdefg2.scratch").mkdir(0o700)  # young
    made("fedbr-abcdefg3.scratch", 0o755)
    for name in ("fedbr-analysis", "fedbr-my-thesis.scratch", "fedbr-abcdefg4.scratch.bak"):
        made(name)
    (place / "fedbr-abcdefg5.scratch").write_text("a file")
    (place / "fedbr-abcdefg6.scratch").symlink_to(made("elsewhere"))
    aged(place / "fedbr-abcdefg5.scratch")
    assert left(place) == [
        "elsewhere", "fedbr-abcdefg2.scratch", "fedbr-abcdefg3.scratch", "fedbr-abcdefg4.scratch.bak",
        "fedbr-abcdefg5.scratch", "fedbr-abcdefg6.scratch", "fedbr-analysis", "fedbr-my-thesis.scratch",
    ]  # fmt: skip
