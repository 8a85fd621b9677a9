"""A node agent that is stopped: while it is busy, and while it ends, when it keeps its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from edge.runtime.connection import Credentials
from edge.runtime.keys import KeyPair
from scenarios.cluster.node_agent import (
    FINISHED,
    STOPPED,
    NodeAgent,
    NodeOptions,
    ServedConnection,
    join_run,
)

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Those of the test's process are its own again."""
    before = [signal.getsignal(number) for number in BOTH]
    yield
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("first", "code"), [(signal.SIGTERM, STOPPED), (signal.SIGINT, STOPPED), (None, FINISHED)])
def test_signals_do_not_interrupt_an_agent_that_ends(
    first: signal.Signals | None, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    def serve(agent: NodeAgent, wait_seconds: float) -> ServedConnection:
        agent._launchers.callback(ended.append, "fork server")
        for number in BOTH:
            agent._launchers.callback(os.kill, os.getpid(), number)
        if first is not None:
            os.kill(os.getpid(), first)
        return ServedConnection()

    monkeypatch.setattr(NodeAgent, "serve", serve)
    credentials = Credentials(KeyPair(b"", b""), b"")
    assert join_run("tcp://host:1", credentials, NodeOptions(1, "auto", None, "", 60.0)) == code
    assert ended == ["fork server"]
    assert capfd.readouterr().err == f"fedbr worker: {'the run has ended' if first is None else 'stopped'}\n"
