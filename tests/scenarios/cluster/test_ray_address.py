"""An address of a cluster at which nobody listens, and an agent's wait for a run, are told soon."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedbr
from edge.runtime.connection import Credentials
from edge.runtime.keys import new_pair
from scenarios.cluster import node_agent
from scenarios.cluster.node_agent import NodeAgent, NodeOptions
from scenarios.cluster.ray_engine import RayEngine, why_unreachable
from scenarios.errors import ScenarioError
from tests.scenarios.runs import refused


def test_a_port_at_which_nobody_listens_is_named_before_ray_tries_it_for_minutes() -> None:
    notes: list[str] = []
    engine = RayEngine("127.0.0.1:1")
    engine.on_note = notes.append
    why = "--on 127.0.0.1:1: no cluster is there: Connection refused; `ray start --head` starts one"
    with pytest.raises(ScenarioError, match=why), engine:
        pass
    assert notes == ["--on 127.0.0.1:1: connecting, for 120 s at most"]


def test_a_port_that_no_machine_has_is_no_address() -> None:
    with pytest.raises(ScenarioError, match="--on host:65536: must be ray, auto"):
        RayEngine("host:65536")


def test_a_port_at_which_somebody_listens_and_an_address_without_one_are_left_to_ray() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        assert why_unreachable(f"ray://127.0.0.1:{server.getsockname()[1]}") == ""
    assert why_unreachable("auto") == ""


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", ""), ("no-such.invalid", "; no machine is known here as no-such.invalid")]
)
def test_an_agent_says_once_that_it_waits_and_whether_there_is_such_a_machine(
    host: str, why: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_agent, "NOTE_SECONDS", 0.0)
    pair = new_pair()
    with ExitStack() as stack:
        agent = NodeAgent(
            f"tcp://{host}:1", Credentials(pair, pair.public), NodeOptions(1, "auto", None, "", 0.3), stack
        )
        last = why.removeprefix("; ") or "the run has ended, or has not begun to listen"
        assert [agent.serve(0.3).why for _ in range(2)] == [f"no answer within 0.3 s: {last}"] * 2
    assert capfd.readouterr().err == f"fedbr worker: tcp://{host}:1: waiting for a run, 0.3 s at most{why}\n"


@pytest.mark.parametrize(
    "words", [("sweep",), ("compare",), ("study", "budget"), ("study", "trial"), ("study", "tune")]
)
def test_every_command_that_makes_several_runs_has_them_made_on_a_cluster(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    grid = {
        "sweep": ["seed=1,2"],
        "budget": ["--bytes", "1 MB"],
        "tune": ["data.validation=0.2", "--grid", "train.lr=0.1,0.2"],
    }
    command = (*words, "digits", *grid.get(words[-1], []), "--out", str(tmp_path), "--on", "slurm", "--quiet")
    assert refused(capsys, *command) == "--on slurm: must be ray, auto, HOST:PORT or ray://HOST:PORT"


@pytest.mark.parametrize(
    "call", [lambda **on: fedbr.sweep("digits", {"seed": [1, 2]}, **on), partial(fedbr.compare, "digits")]
)
def test_python_calls_that_make_several_runs_have_them_made_on_a_cluster(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match="on = slurm: must be ray, auto"):
        call(out=tmp_path, on="slurm")
    with pytest.raises(ScenarioError, match="workers = 0: "):
        call(out=tmp_path, on="ray", workers=0)
