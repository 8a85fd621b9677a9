"""Apps that do more than they should: what they start ends with them, what they print is bounded, and they can be
stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from coordinator.rounds.run import RunFailed
from coordinator.workers.task import Stopped
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.app_folder import flower_app
from scenarios.run.host import Host
from tests.scenarios.flower.apps import CLIENT, SERVER, STILL, Apps, write_app

START = 'FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.zeros(10)]), num_rounds=context.run_config["rounds"])'
METRICS = '    metrics = MetricRecord({"num-examples": 1})'
LEFT = """
import subprocess

def leave(folder, name):
    write = f"echo $$ > {folder}/{name}-$1.pid; exec sleep 600"
    subprocess.Popen(["sh", "-c", write, "sh", "child"])
    subprocess.Popen(["sh", "-c", write, "sh", "session"], start_new_session=True)
    subprocess.run(["sh", "-c", f"setsid sh -c '{write}' sh orphan &"])
    while len(list(__import__("pathlib").Path(folder).glob(f"{name}-*.pid"))) < 3:
        pass
"""
"""Starts a child, one in a session of its own, and one there whose parent has ended"""


def is_running(pid: int) -> bool:
    """Whether a process goes on running; one that has ended may wait for whatever adopts orphans here.

    A busy machine may need a while to end a process that was killed.
    """
    until = time.monotonic() + 10
    try:
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > until:
                return True
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pass
    return False


def server(statements: str) -> str:
    assert SERVER.count(START) == 1
    return SERVER.replace(START, statements)


def client(statements: str) -> str:
    assert CLIENT.count(METRICS) == 1
    return CLIENT.replace(METRICS, f"    {statements}\n{METRICS}")


def test_what_an_app_has_started_ends_with_its_run(apps: Apps, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    leave = f"leave({str(pids)!r}, '{{}}')"
    apps.play(
        "data.clients=1",
        client=LEFT + client(leave.format("client")),
        server=LEFT + server(f"{leave.format('server')}; {START.replace('()', ONE, 1)}"),
    )
    left = [int(file.read_text()) for file in sorted(pids.iterdir())]
    assert len(left) == 6
    assert [pid for pid in left if is_running(pid)] == []


ONE = "(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)"


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getppid(), 9); [None for _ in iter(int, 1)]"])
def test_a_server_app_that_forks_and_dies_does_not_hang_its_run(apps: Apps, tmp_path: Path, end: str) -> None:
    forks = f"import os, time; pid = os.fork(); open({str(tmp_path / 'pid')!r}, 'a').write(f'{{pid or os.getpid()}} ')"
    statements = f"{forks}\n    if not pid: time.sleep(600)\n    {end}"
    began = time.monotonic()
    with pytest.raises(RunFailed, match="the ServerApp's process has ended; its output is in"):
        apps.play("data.clients=2", server=server(statements))
    assert time.monotonic() - began < 20  # no limit of time has ended it
    forked = int((tmp_path / "pid").read_text().split()[0])
    assert not is_running(forked)


@pytest.mark.parametrize(
    "statements",
    [
        "while True:\n        try: [None for _ in iter(int, 1)]\n        except BaseException: pass",
        "while True: grid.get_node_ids(); grid.sleep(0.0); grid.push_messages([Message(RecordDict(), "
        "next(iter(grid.get_node_ids())), 'train')])",
    ],
    ids=["catches all", "asks"],
)
def test_a_run_can_be_stopped_whatever_its_server_app_does(apps: Apps, tmp_path: Path, statements: str) -> None:
    mark = tmp_path / "mark"
    text = server(f"open({str(mark)!r}, 'w').close()\n    {statements}")
    text = text.replace("ArrayRecord,", "ArrayRecord, Message, RecordDict,")
    loaded = load("digits", parse_all([f"method=flower:{write_app(tmp_path / 'app', server=text)}", *STILL]))
    since: list[float] = []

    def stopped() -> bool:
        if mark.exists() and not since:
            since.append(time.monotonic())
        return bool(since)

    with pytest.raises(Stopped):
        raise_if_stopped(dict(runner.run(loaded, Host(tmp_path, 1, "cpu", "run"), apps.launcher, stopped, True)))
    assert time.monotonic() - since[0] < 15


def raise_if_stopped(result: dict[str, object]) -> None:
    if result["stopped_by"] == "user":
        raise Stopped


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8_000_001)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("pyproject.toml", pipe, "is no ordinary file; a Flower app is a folder with a pyproject.toml .."),
        ("pyproject.toml", sparse, "has more than 8000000 bytes, the most of a source file; .."),
        ("pyproject.toml", lambda path: path.write_text(f"a = {'[' * 9000}{']' * 9000}"), ".. are nested too deeply"),
        ("probe/large.py", sparse, "has more than 8000000 bytes, the most of a source file"),
    ],
    ids=["pipe", "large", "lists", "module"],
)
def test_files_of_an_app_are_files_and_not_too_large(
    flower: None, tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    app = write_app(tmp_path / "app")
    (app / name).unlink(missing_ok=True)
    make(app / name)
    with pytest.raises(ScenarioError) as refused:
        flower_app(load("digits", parse_all([f"method=flower:{app}"])))
    place, text = str(refused.value).split(": ", 1)
    assert place == str(app / name)
    start, dots, end = message.partition("..")
    assert text.startswith(start) and text.endswith(end) and (dots or text == message)
