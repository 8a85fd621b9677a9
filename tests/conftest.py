"""Fixtures that several folders of tests share."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher
from tests.pools import Host, Opener, Pools


@pytest.fixture(scope="session", autouse=True)
def no_reports() -> Iterator[None]:
    """Runs of tests draw no reports, which takes longer than most of the runs; tests of reports ask for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBR_REPORT", "0")
        yield


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test draw their reports."""
    monkeypatch.delenv("FEDBR_REPORT")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A suite that a shell started in the background ignores SIGINT, and so would the commands that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def launcher() -> Iterator[WorkerLauncher]:
    """One fork server for the pools of one file."""
    with WorkerLauncher(preload=("tests.pools",)) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def trainers() -> Iterator[WorkerLauncher]:
    """One fork server for all runs of a file that train: to import torch anew takes longer than most of them do."""
    with WorkerLauncher() as launcher:
        yield launcher


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files: pytest's own paths can be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def pools(launcher: WorkerLauncher, tmp_path: Path, short_folder: Path) -> Pools:
    """Opens pools of local workers."""
    return Pools(launcher, tmp_path, short_folder)


@pytest.fixture
def listening(launcher: WorkerLauncher, tmp_path: Path, short_folder: Path) -> Iterator[Opener]:
    """Opens pools that remote workers may join."""
    with ExitStack() as opened:

        def open_pool(workers: int) -> Host:
            host = Host(workers, launcher, tmp_path)
            opened.enter_context(host.pool)
            return host

        yield open_pool
