"""What is placed on the nodes of a cluster, without a cluster: agents and their keepers, runs and theirs."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from edge.runtime.keys import new_pair
from scenarios.cluster.keepers import (
    AgentKeeper,
    AgentLook,
    AgentOrder,
    RunKeeper,
    RunOrder,
    unpack,
)
from scenarios.cluster.ray_engine import check_address, run_shares
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.experiment.executors import run_request
from scenarios.experiment.run_set import PlannedRun
from scenarios.run.child_process import Message
from scenarios.run.host import Host
from tests.scenarios.runs import refused


@contextmanager
def kept(name: str, *arguments: str) -> Iterator[AgentKeeper]:
    """The keeper of an agent that finds no run."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    keeper = AgentKeeper(AgentOrder(name, endpoint, new_pair().public, new_pair(), arguments))
    try:
        yield keeper
    finally:
        keeper.end()


def after(keeper: AgentKeeper) -> AgentLook:
    """How an agent is once it has ended."""
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while (look := keeper.look()).status is None:
        lines += look.lines
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return look._replace(lines=lines + look.lines)


def agent_of(supervisor: psutil.Process) -> psutil.Process:
    """The one child of a supervisor, which says its own number before it starts that."""
    deadline = time.monotonic() + 60
    while not (agents := supervisor.children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (agent,) = agents
    return agent


def test_a_keeper_says_how_its_agent_ended_and_leaves_nothing(short_folder: Path) -> None:
    with kept("00000001", "--wait", "0.2") as keeper:
        (folder,) = short_folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "agent.key").stat().st_mode & 0o777 == 0o600
        look = after(keeper)
    assert look.status == 3
    assert "no answer within 0.2 s" in look.lines[-1]
    assert list(short_folder.iterdir()) == []


def test_an_agent_outlives_its_keeper_which_finds_it_again(short_folder: Path) -> None:
    with kept("00000002", "--wait", "60") as first:
        pid = first.look().pid
        assert pid is not None
        supervisor = psutil.Process(pid)
        agent = agent_of(supervisor)
        assert os.getsid(pid) == pid != os.getsid(0)  # no signal to this process' session reaches it
        assert AgentKeeper(first._order).look() == AgentLook(None, [], pid)
        supervisor.send_signal(signal.SIGKILL)
        agent.wait(10)
        assert first.look().status == -signal.SIGKILL
    assert list(short_folder.iterdir()) == []


def test_a_run_that_is_made_elsewhere_comes_back_whole(tmp_path: Path) -> None:
    loaded = load("digits", parsed(["method=fedavg", "rounds.max=1", "train.local_steps=1", "data.clients=6"]))
    path = tmp_path / "digits" / "spread" / "one"
    request = run_request(PlannedRun("one", loaded, {}), path, Host(tmp_path, 1, "cpu"), 1)
    before = set(psutil.Process().children(recursive=True))
    keeper = RunKeeper(RunOrder(request, "no-such-file"))
    try:
        messages: list[Message] = []
        while not (news := keeper.news()).is_over:
            messages += news.messages
        assert [next(iter(message)) for message in [*messages, *news.messages]][-2:] == ["round", "ended"]
        assert not path.exists()
        unpack(news.archive, path)
        assert (path / "scenario.toml").is_file()
        assert (path / "ledger.sqlite").is_file()
    finally:
        keeper.end()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("cpus", "most", "missing", "parallel", "workers", "shares"),
    [
        (8, 4, 12, None, None, [1] * 8),  # as many runs as there are cores
        (8, 4, 3, None, None, [2, 2, 2]),
        (8, 4, 1, None, None, [4]),  # no run has more cores than a node
        (8, 4, 12, None, 4, [4, 4]),
        (8, 4, 12, 3, None, [2, 2, 2]),
        (8, 4, 0, None, None, []),
    ],
)
def test_cores_are_shared_out_among_runs(
    cpus: float, most: float, missing: int, parallel: int | None, workers: int | None, shares: list[int]
) -> None:
    assert run_shares(cpus, most, missing, parallel, workers) == shares


def test_a_run_that_no_node_has_room_for_is_refused() -> None:
    with pytest.raises(ScenarioError, match="--workers 5: a run needs a node with as many cores; the largest has 4"):
        run_shares(8, 4, 2, None, 5)


def test_an_address_is_checked_and_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("ray", "auto", "10.0.0.1:6379", "ray://head:10001")
    assert [check_address(address) for address in given] == ["local", *given[1:]]
    for wrong in ("10.0.0.1", "http://head:1", "ray://head", "slurm", "host:65536"):
        with pytest.raises(ScenarioError, match=f"--on {wrong}: must be ray, auto, HOST:PORT or ray://HOST:PORT"):
            check_address(wrong)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"--on auto: Ray is not installed here; pip install 'fedbr-edge\[ray\]'"):
        check_address("auto")


def test_options_that_do_not_go_with_a_cluster_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    on = ("run", "digits", "--on", "ray")
    assert refused(capsys, *on, "--allow", "a.pub") == "--allow: the keys are made for each run with --on; leave it out"
    assert refused(capsys, *on, "--any-machine").startswith("--any-machine: needs --listen; with --on, nodes of other")
    assert refused(capsys, *on, "--workers", "0").startswith("--workers 0: every node needs a worker")
    assert refused(capsys, *on, "--listen", "head:1") == "--listen head:1: must be tcp://HOST:PORT"
