"""``fedbr worker`` beside ``fedbr run --listen``: real processes, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest
import zmq

from edge.protocol import messages, serialization
from edge.runtime.keys import make, read_pair
from scenarios.cli import main
from tests import warm
from tests.edge.protocol.mutations import JOB
from tests.scenarios.runs import fedbr

TINY = ["digits", "method=fedavg", "train.local_epochs=1", "rounds.max=2"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Key pairs of a run, of alice and of eve."""
    for name in ("run", "alice", "eve"):
        make(name, tmp_path)
    return tmp_path


class Agent(NamedTuple):
    """A node agent in a process of its own."""

    process: subprocess.Popen[bytes] | warm.WarmProcess
    errors: TextIO

    def ended(self) -> tuple[int, list[str]]:
        """Exit code, and what it said, but for the line of one that waits for a run that is slow to begin."""
        said = self.errors.read().splitlines()  # to its end
        lines = [line.removeprefix("fedbr worker: ") for line in said]
        return self.process.wait(), [line for line in lines if ": waiting for a run, " not in line]


@contextmanager
def worker(folder: Path, port: int, name: str = "alice", *more: str, warm_start: bool = True) -> Iterator[Agent]:
    """A node agent with this name's key, and two workers: forked or, as on another machine, executed."""
    keys = ["--keys", str(folder / f"{name}.key"), "--server", str(folder / "run.pub")]
    words = ["worker", "--connect", f"tcp://127.0.0.1:{port}", *keys, "--workers", "2", *more]
    reading, writing = os.pipe()
    process = warm.start(words, errors=writing) if warm_start else subprocess.Popen(fedbr(*words), stderr=writing)
    os.close(writing)
    with process, os.fdopen(reading) as errors:
        try:
            yield Agent(process, errors)
        finally:
            process.kill()


def listening(folder: Path, port: int, run_id: str) -> list[str]:
    """Words of a run that listens for alice."""
    keys = ["--keys", str(folder / "run.key"), "--allow", str(folder / "alice.pub")]
    where = ["--listen", f"tcp://127.0.0.1:{port}", *keys, "--out", str(folder / "runs"), "--run-id", run_id, "--json"]
    return ["run", *TINY, *where]


def model_sha256(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main.run_command(words) == 0
    return str(json.loads(capsys.readouterr().out)["model_sha256"])


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_whose_run_is_killed_and_taken_up_again_joins_it_again(folder: Path) -> None:
    port = free_port()
    words = [*listening(folder, port, "again"), "stop.target_accuracy=1.0", "--workers", "0"]
    with worker(folder, port) as alice:
        killing = ("kill", "coordinator.records.store:Ledger.commit", "after", "1")
        assert warm.run(words, meddler=killing).returncode == -signal.SIGKILL
        run = folder / "runs" / "digits" / "again"
        resume = ["resume", str(run), *words[words.index("--listen") : words.index("--out")], "--json"]
        assert main.run_command([*resume, "--workers", "0"]) == 0
        status, said = alice.ended()
    gone = f"tcp://127.0.0.1:{port}: the coordinator is gone; trying again for 60 s"
    assert (status, said[1], said[3]) == (0, gone, "the run has ended")
    assert said[0] == said[2]
    assert said[0].startswith("joined run ")


def test_what_a_run_on_another_machine_says_does_not_reach_the_terminal_as_control_characters(folder: Path) -> None:
    pair, port = read_pair(folder / "run.key"), free_port()
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        worker(folder, port, "alice", "--device", "cpu") as alice,
    ):
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.CURVE_SERVER, True)
        router.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        router.bind(f"tcp://127.0.0.1:{port}")
        identity = router.recv_multipart()[0]

        def say(message: messages.Message, run_id: str) -> None:
            encoded = serialization.encode(message, run_id)
            envelope = serialization.Envelope(identity.decode()).pack()
            router.send_multipart([identity, envelope, encoded.header, *encoded.frames])

        say(messages.Welcome(replace(JOB, run_id="run-1", device="\x1b]0;a title\x07")), messages.NO_RUN)
        router.recv_multipart()  # its refusal
        say(messages.Shutdown(), "run-1")
        assert alice.ended() == (
            3,
            [
                "joined run run-1",
                f"tcp://127.0.0.1:{port}: --device cpu: the run computes on \\x1b]0;a title\\x07, and other devices "
                "are not bit-identical",
            ],
        )


def test_new_keys_are_a_pair_and_join_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["worker", "--new-keys", "alice", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / 'alice.key'}  private: keep it on this machine"
    assert (tmp_path / "alice.key").stat().st_mode & 0o777 == 0o600
