"""Fixtures that several folders of tests share."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

import tests.portable_kernels  # noqa: F401 - before NumPy and torch
from coordinator.workers.launcher import WorkerLauncher
from scenarios.run.session import Session
from tests import brief, unflushed
from tests.pools import Host, Opener, Pools
from tests.remains import kill_at_the_end
from tests.toy_cache import cache_folder

HANG_SECONDS = 300
"""After the limit of a test"""
FLOWER = "tests/scenarios/flower"
LONGEST = ("tests/scenarios/", "tests/api/", "tests/test_docs")


def pytest_configure() -> None:
    """Before torch is imported: several processes of tests compute at the same time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kill_at_the_end()
    cache_folder()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is compiled for the next time, even where Python is told not to: it is half of the time of collecting.

    Modules that tests write and import later are not kept: they may change within the time that a file's date tells.
    What is collected stays to the end, so that nobody needs to look through it for garbage; then libraries count what
    is left of them.
    """
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = written
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """All tests of a file in one process, and all of Flower's, for which that process has Flower's processes warm."""

    def _split_scope(self, nodeid: str) -> str:
        return FLOWER if nodeid.startswith(FLOWER) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """How several processes share the tests."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest first, so that all processes of a suite have work to its end."""
    items.sort(key=lambda item: (not item.nodeid.startswith(FLOWER), not item.nodeid.startswith(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End this process, with a traceback, if a test hangs where its own limit cannot interrupt it."""
    own = item.get_closest_marker("timeout")
    seconds = float(own.args[0]) if own is not None else float(item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + HANG_SECONDS, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def no_reports() -> Iterator[None]:
    """Runs of tests draw no reports, which takes longer than most of the runs; tests of reports ask for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBR_REPORT", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def brief_figures() -> Iterator[None]:
    """Pages of tests have few figures, in which nothing is drawn."""
    with brief.brief_figures():
        yield


@pytest.fixture
def drawn_figures() -> Iterator[None]:
    """Pages of this test have all figures."""
    with brief.drawn_figures():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_flushing() -> Iterator[None]:
    """Files of tests are not flushed to the disk, which takes longer than to write them; a kill loses nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        unflushed.leave_to_the_system(patch.setattr)
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


@pytest.fixture(scope="session")
def launcher() -> Iterator[WorkerLauncher]:
    """One fork server for all pools and runs of a suite: to import torch anew takes longer than most of them do.

    Its workers are forked for each of them. They have the environment of its start, and know no later entries of the
    path.
    """
    with WorkerLauncher(preload=("edge.training.trainer", "tests.pools")) as launcher:
        yield launcher


@pytest.fixture
def warm_workers(launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and calls of this test have `launcher` instead of a fork server of their own."""
    monkeypatch.setattr(Session, "_launcher", lambda session, runs: nullcontext(launcher))
    monkeypatch.setattr("scenarios.studies.forecast.check.WorkerLauncher", lambda instructions: nullcontext(launcher))


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
